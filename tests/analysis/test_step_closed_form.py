"""A step against the formulas of the literature: an MLP by data, fully sharded and tensor parallel.

Each layer of Megatron's MLP sums its result once in the forward pass, and the gradient of its input
once in the backward pass, over `tensor` (Shoeybi et al., arXiv:1909.08053, section 3). ZeRO-3
gathers each weight before it is used and scatters the sum of its gradients, over `fsdp`; plain
data parallelism sums them, over `data` (Rajbhandari et al., arXiv:1910.02054, section 7). A ring
of n devices sends (n - 1) / n of what is gathered or scattered, and twice that of what is summed.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import stated_cost

SPEC = """\
shardspec: 1
axes: {{batch: {batch}, length: {length}, embed: {embed}, mlp: {mlp}, layers: {layers}}}
mesh: {{data: {data}, fsdp: {fsdp}, tensor: {tensor}}}
rules: ["batch -> (data, fsdp)", mlp -> tensor, embed -> fsdp, "length, layers -> none"]
params: {{"**/up": embed mlp, "**/down": mlp embed}}
scan: {{"stack/**": layers@0}}
arrays: {{{arrays}}}
activations: {{residual: batch length embed}}
state: {{optimizer: same, moments: 2, dtype: f32}}
step:
  remat: {remat}
  microbatches: {microbatches}
  program:
    - residual, "**/up" -> hidden
    - hidden, "**/down" -> residual
"""
APART = (
    '"layers_{{0..{last}}}/up": "f32[{embed}, {mlp}]",'
    ' "layers_{{0..{last}}}/down": "f32[{mlp}, {embed}]"'
)
STACK = "stack/up: 'f32[{layers}, {embed}, {mlp}]', stack/down: 'f32[{layers}, {mlp}, {embed}]'"

WAYS = st.sampled_from((1, 2, 4))
SIZES = st.fixed_dictionaries(
    {
        "batch": st.sampled_from((16, 64)),
        "length": st.sampled_from((8, 24)),
        "embed": st.sampled_from((256, 512)),
        "mlp": st.sampled_from((1024, 2048)),
        "layers": st.sampled_from((2, 3, 7)),
        "data": WAYS,
        "fsdp": WAYS,
        "tensor": WAYS,
    }
)


def cost_of(sizes: dict[str, int], remat: str, microbatches: int = 1, arrays: str = APART) -> Cost:
    listed = arrays.format(**sizes, last=sizes["layers"] - 1)
    text = SPEC.format(**sizes, remat=remat, microbatches=microbatches, arrays=listed)
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    return stated_cost(pipeline.compile_plans(spec)[0])


def part(ways: int) -> float:
    """Return the share that a device of a ring sends."""
    return (ways - 1) / ways


@given(SIZES, st.sampled_from(("none", "full")))
@settings(max_examples=40)
def test_a_layer_sends_what_the_formulas_say(sizes: dict[str, int], remat: str) -> None:
    cost = cost_of(sizes, remat)
    data, fsdp, tensor, layers = (sizes[name] for name in ("data", "fsdp", "tensor", "layers"))
    tokens = sizes["batch"] // (data * fsdp) * sizes["length"]
    weight = sizes["embed"] * sizes["mlp"] // tensor * 2  # bf16
    gathers = 1 if remat == "none" else 2
    expected = {
        ("tensor",): layers * 2 * 2 * part(tensor) * tokens * sizes["embed"] * 2,
        ("fsdp",): layers * 2 * (gathers + 1) * part(fsdp) * weight,
        ("data",): layers * 2 * 2 * part(data) * weight / fsdp,
    }
    assert cost.step is not None
    found = {axes: count for axes, count in cost.step.wire_bytes.items() if count}
    assert found == pytest.approx({axes: count for axes, count in expected.items() if count})
    products = 6 + (remat == "full")  # forward 2, backward 4; `hidden` again
    flops = products * layers * 2 * tokens * sizes["embed"] * sizes["mlp"] // tensor
    assert cost.step.flops == flops


@given(SIZES, st.sampled_from(("none", "full")), st.sampled_from((1, 2, 4)))
@settings(max_examples=30)
def test_a_device_holds_what_the_formulas_say(
    sizes: dict[str, int], remat: str, microbatches: int
) -> None:
    """Of layers that are done again only what comes into each is kept."""
    cost = cost_of(sizes, remat, microbatches if sizes["batch"] >= 64 else 1)
    ways = sizes["fsdp"] * sizes["tensor"]
    parameters = sizes["layers"] * 2 * sizes["embed"] * sizes["mlp"] * 4 // ways
    parts = {name: each.bytes for name, each in cost.memory.parts.items()}
    assert parts["parameters"] == parameters
    assert parts["optimizer"] == 2 * parameters
    assert sum(parts.values()) == cost.memory.total.bytes


@given(SIZES, st.sampled_from((2, 4)))
@settings(max_examples=20)
def test_microbatches_send_values_in_parts_and_weights_again(
    sizes: dict[str, int], microbatches: int
) -> None:
    sizes = {**sizes, "batch": 64}
    one, many = cost_of(sizes, "full").step, cost_of(sizes, "full", microbatches).step
    assert one is not None
    assert many is not None
    assert many.flops == one.flops
    assert many.wire_bytes.get(("tensor",)) == one.wire_bytes.get(("tensor",))
    if sizes["fsdp"] > 1:
        assert many.wire_bytes["fsdp",] == pytest.approx(microbatches * one.wire_bytes["fsdp",])
    if sizes["data"] > 1:
        assert many.wire_bytes["data",] >= one.wire_bytes["data",]


@given(SIZES, st.sampled_from(("none", "full")))
@settings(max_examples=20)
def test_layers_in_one_array_send_what_layers_of_their_own_do(
    sizes: dict[str, int], remat: str
) -> None:
    apart, stack = (cost_of(sizes, remat, arrays=each).step for each in (APART, STACK))
    assert apart is not None
    assert stack is not None
    assert stack.flops == apart.flops
    for axes in (("tensor",), ("data",)):
        assert stack.wire_bytes.get(axes, 0) == pytest.approx(apart.wire_bytes.get(axes, 0))


SLICES = """\
shardspec: 1
axes: {batch: 64, length: 8, embed: 512, mlp: 1024}
hardware: 2 * tpu v5e 2x2
mesh: {replica: 2 @ dcn, data: 4}
rules: ["batch -> (replica, data)", "embed, mlp, length -> none"]
params: {"**/up": embed mlp, "**/down": mlp embed}
arrays: {a/up: "f32[512, 1024]", a/down: "f32[1024, 512]"}
activations: {residual: batch length embed}
state: {optimizer: same}
step:
  remat: none
  program:
    - residual, "**/up" -> hidden
    - hidden, "**/down" -> residual
"""


def test_gradients_between_slices_are_summed_within_each_first() -> None:
    """Each of four chips sums a quarter within its slice, exchanges it, and gathers the rest.

    Source: hierarchical all-reduce, as XLA's `all-reduce` over slices of TPUs does it.
    """
    spec, faults = pipeline.load_text(SLICES)
    assert spec is not None, faults
    step = stated_cost(pipeline.compile_plans(spec)[0]).step
    assert step is not None
    weights = 2 * 512 * 1024 * 2  # bf16
    between = sum(n for axes, n in step.wire_bytes.items() if "replica" in axes)
    within = sum(n for axes, n in step.wire_bytes.items() if "replica" not in axes)
    assert within == 2 * 3 / 4 * weights
    assert between == 2 * 1 / 2 * weights / 4


@given(
    st.sampled_from((2, 3, 7)),
    WAYS,
    WAYS,
    WAYS,
    st.sampled_from(("none", "full")),
    st.sampled_from((APART, STACK)),
)
@settings(max_examples=30)
def test_where_values_are_large_a_layer_keeps_what_its_backward_pass_reads(
    layers: int, data: int, fsdp: int, tensor: int, remat: str, arrays: str
) -> None:
    """What comes into each layer, and `hidden` unless that is made again.

    Source: Korthikanti et al., arXiv:2205.05198, section 4, of the MLP, without a mask or norms.
    """
    sizes = {"batch": 4096, "length": 64, "embed": 16, "mlp": 64, "layers": layers}
    ways = {"data": data, "fsdp": fsdp, "tensor": tensor}
    parts = cost_of(sizes | ways, remat, arrays=arrays).memory.parts
    tokens = 4096 * 64 // (data * fsdp)
    residual, hidden = tokens * 16 * 2, tokens * 64 * 2 // tensor
    kept = residual + (hidden if remat == "none" else 0)
    assert parts["activations"].bytes == layers * kept
    assert parts["batch"].bytes == residual
    made_again = 0 if remat == "none" else hidden
    weights = 2 * 16 * 64 * 2 // tensor  # those of a layer that are gathered meanwhile
    assert 0 <= parts["temporaries"].bytes - hidden - made_again <= residual + weights
