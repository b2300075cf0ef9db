"""Steps that `step:` states, against figures worked out by hand."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.analysis.spec_step import Stated, stated_step
from shardspec.analysis.step_memory import step_memory
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import CollectiveKind, Step

#: Two layers of an MLP over a batch: B 8, L 16, E 32, M 64; four devices by two.
TEXT = """
axes: {batch: 8, length: 16, embed: 32, mlp: 64, layers: 2, vocab: 128}
mesh: {fsdp: 4, tensor: 2}
rules: [batch -> fsdp, mlp -> tensor, vocab -> tensor, embed -> fsdp, "length, layers -> none"]
params: {"**/up": embed mlp, "**/down": mlp embed, table: vocab embed, norm: embed}
scan: {layers/**: layers@0}
arrays:
  layers/up: f32[2, 32, 64]
  layers/down: f32[2, 64, 32]
  table: f32[128, 32]
activations: {residual: batch length embed}
step:
  remat: full
  program:
    - gather(tokens[batch length], "table") -> residual
    - residual, "**/up" -> hidden
    - hidden, "**/down" -> residual
    - residual, "table" -> logits
"""
UNROLLED = TEXT.replace("  layers/up: f32[2, 32, 64]", '  "layers_{0,1}/up": f32[32, 64]').replace(
    "  layers/down: f32[2, 64, 32]", '  "layers_{0,1}/down": f32[64, 32]'
)


def plan_of(text: str, **settings: str) -> ShardingPlan:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    spec, faults = pipeline.load_text(text, settings=named)
    assert spec is not None
    assert faults == ()
    return pipeline.compile_plans(spec)[0]


def stated(text: str, **settings: str) -> Stated:
    found = stated_step(plan_of(text, **settings))
    assert found is not None
    return found


def step_of(text: str, **settings: str) -> Step:
    return stated(text, **settings).step


def sent(step: Step) -> dict[tuple[str, str, str], float]:
    """Return how often what is sent over what, by kind, carried array and mesh axes."""
    found: dict[tuple[str, str, str], float] = {}
    for each in step.collectives:
        key = each.kind, str(each.carries), "+".join(each.mesh_axes)
        found[key] = found.get(key, 0) + each.count
    return found


LAYER = 2 * 8 * 16 * 32 * 64  # FLOPs of a product of a layer, on all devices
LOGITS = 2 * 8 * 16 * 32 * 128


def test_flops_are_those_of_the_products() -> None:
    """Forward, both gradients, and `up` once more; `down` of the last round nobody reads again."""
    whole = step_of(TEXT).flops * 8
    layers = 2 * (2 * LAYER + 4 * LAYER + LAYER)
    assert whole == layers + 3 * LOGITS


def test_without_remat_nothing_runs_twice() -> None:
    step = step_of(TEXT, step__remat="none")
    assert step.flops * 8 == 2 * 6 * LAYER + 3 * LOGITS
    assert "remat" not in {op.phase for op in step.ops}


@pytest.mark.parametrize("kept", ["dots", "hidden"])
def test_what_is_kept_is_not_done_again(kept: str) -> None:
    assert step_of(TEXT, step__remat=kept).flops == step_of(TEXT, step__remat="none").flops


def test_weights_are_gathered_twice_and_sums_are_made_once() -> None:
    found = sent(step_of(TEXT))
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    reduce = CollectiveKind.ALL_REDUCE
    assert found[gather, "weight layers/up", "fsdp"] == 4  # two rounds, forward and the rest
    assert found[gather, "weight layers/down", "fsdp"] == 4
    assert found[scatter, "gradient of layers/up", "fsdp"] == 2
    assert found[scatter, "gradient of layers/down", "fsdp"] == 2
    # forward of `down`, backward of `up`, rows of the table, backward of the logits
    assert found[reduce, "activation residual", "tensor"] == 2 + 2 + 1 + 1


def test_bytes_are_those_of_a_ring() -> None:
    step = step_of(TEXT)
    (gather,) = {
        each.wire_bytes_per_run
        for each in step.collectives
        if str(each.carries) == "weight layers/up"
    }
    assert gather == 3 * (32 * 64 // 2 // 4) * 2  # bf16 on the wire, f32 in memory
    sums = {
        each.wire_bytes_per_run
        for each in step.collectives
        if each.kind is CollectiveKind.ALL_REDUCE and str(each.carries) == "activation residual"
    }
    assert sums == {2 * (8 // 4 * 16 * 32 * 2) // 2}


def test_layers_that_keep_all_and_are_one_program_gather_once() -> None:
    """In a scan the backward pass has a loop of its own, which gathers again."""
    key = CollectiveKind.ALL_GATHER, "weight layers_0/up", "fsdp"
    assert sent(step_of(UNROLLED, step__remat="none"))[key] == 1
    assert sent(step_of(UNROLLED, step__remat="full"))[key] == 2


def test_layers_of_their_own_are_layers_in_one_array() -> None:
    stacked, apart = step_of(TEXT), step_of(UNROLLED)
    assert stacked.flops == apart.flops
    assert stacked.wire_bytes == apart.wire_bytes
    names = {each.carries.name for each in apart.collectives}
    assert {"layers_0/up", "layers_1/up"} <= names


def test_microbatches_gather_again_and_send_the_rest_once() -> None:
    one, two = step_of(TEXT), step_of(TEXT, step__microbatches="2")
    assert two.flops == one.flops
    key = CollectiveKind.ALL_GATHER, "weight layers/up", "fsdp"
    assert sent(two)[key] == 2 * sent(one)[key]
    tensor = [step.wire_bytes["tensor",] for step in (one, two)]
    assert tensor[0] == tensor[1]


def often(text: str, times: int) -> str:
    """Return a spec whose layers use each of their arrays so often."""
    text = text.replace('"**/up" -> hidden', f'"**/up" -> hidden x {times}')
    return text.replace('"**/down" -> residual', f'"**/down" -> residual x {times}')


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("text", [TEXT, UNROLLED])
def test_arrays_that_are_used_more_than_once_compute_and_send_as_often(
    text: str, remat: str
) -> None:
    """Every use of a scan gathers, and scatters its gradient; as Shardy has it."""
    thrice = step_of(often(text, 3), step__remat=remat)
    assert (thrice.flops * 8 - 3 * LOGITS) == 3 * 2 * (7 if remat == "full" else 6) * LAYER
    found, once = sent(thrice), sent(step_of(TEXT, step__remat=remat))
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    for kind, what in zip(kinds, ("weight", "gradient of"), strict=True):
        for name in ("up", "down"):
            runs = sum(
                count
                for (how, carried, _), count in found.items()
                if how is kind and carried.startswith(what) and carried.endswith(f"/{name}")
            )
            assert runs == 3 * once[kind, f"{what} layers/{name}", "fsdp"]
    # forward of `down` and backward of `up`; rows of the table and backward of the logits
    assert found[CollectiveKind.ALL_REDUCE, "activation residual", "tensor"] == 3 * (2 + 2) + 2


def test_every_use_of_an_array_keeps_its_values() -> None:
    step = step_of(often(TEXT, 3), step__remat="none")
    kept = {each.array.name: each.array.shape for each in step.tensors if each.array.shape[0] == 6}
    assert kept == {"hidden": (6, 8, 16, 64), "residual": (6, 8, 16, 32)}
    layers = (each.array for each in step.tensors if each.dies == step.end)
    held = sorted(each.shape for each in layers if each.name.startswith("layers/"))
    assert held == [(2, 32, 64), (2, 64, 32)]  # one gradient for all uses


def test_one_array_may_be_all_layers() -> None:
    """With `x 4` one array is four layers that share it, and lines of no array are among them."""
    text = often(TEXT, 4).replace("f32[2, 32, 64]", "f32[1, 32, 64]")
    text = text.replace("f32[2, 64, 32]", "f32[1, 64, 32]").replace("layers: 2", "layers: 1")
    apart = TEXT.replace("[2,", "[4,").replace("layers: 2", "layers: 4")
    one, four = step_of(text), step_of(apart)
    assert one.flops == four.flops
    assert one.wire_bytes == four.wire_bytes
    between = text.replace(
        '    - hidden, "**/down"',
        '    - op(hidden) -> hidden, flops 2 * batch * length * mlp x 4\n    - hidden, "**/down"',
    )
    (op,) = (op for op in step_of(between, step__mode="serve").ops if op.kind == "kernel")
    assert op.count == 4


def test_lines_of_a_layer_may_differ_in_how_often_they_use_it() -> None:
    text = TEXT.replace('"**/up" -> hidden', '"**/up" -> hidden x 3')
    whole = step_of(text, step__remat="none").flops * 8
    assert whole == 2 * 3 * (3 + 1) * LAYER + 3 * LOGITS


def test_gradients_of_all_uses_are_added_up_before_they_are_summed() -> None:
    """In f32, as the array is: a loop adds up what devices then sum once."""
    text = TEXT.replace("embed -> fsdp", "embed -> none")
    key = CollectiveKind.ALL_REDUCE, "gradient of layers/up", "fsdp"
    once, thrice = step_of(text), step_of(often(text, 3))
    assert sent(thrice)[key] == sent(once)[key] == 2

    def payload(step: Step) -> int:
        own = (e for e in step.collectives if (e.kind, str(e.carries)) == key[:2])
        return sum(each.wire_bytes_per_run for each in own)

    assert payload(thrice) == 2 * payload(once) > 0


def test_data_parallel_sums_gradients_of_a_scan_in_each_microbatch() -> None:
    """As compiled by libtpu 0.0.52 for v5e 2x4 and by XLA:GPU of jax 0.10.2 for 8 H100."""
    text = TEXT.replace("embed -> fsdp", "embed -> none").replace("mlp -> tensor", "mlp -> none")
    key = CollectiveKind.ALL_REDUCE, "gradient of layers/up", "fsdp"
    for microbatches in ("1", "2"):
        found = sent(step_of(text, step__microbatches=microbatches))
        assert found[key] == 2 * int(microbatches)
        assert not any("weight" in what for _, what, _ in found)


def test_zero_scatters_gradients_and_gathers_parameters() -> None:
    text = TEXT.replace("embed -> fsdp", "embed -> none") + "state: {optimizer: zero1, over: fsdp}"
    found = sent(step_of(text))
    assert found[CollectiveKind.REDUCE_SCATTER, "gradient of layers/up", "fsdp"] == 2
    assert found[CollectiveKind.ALL_GATHER, "weight layers/up", "fsdp"] == 1
    assert CollectiveKind.ALL_REDUCE not in {k for k, what, _ in found if "gradient" in what}


def test_arrays_in_no_line_have_gradients() -> None:
    text = TEXT.replace("  table: f32", "  norm: f32[32]\n  table: f32")
    text = text.replace("embed -> fsdp", "embed -> none")
    found = sent(step_of(text))
    assert found[CollectiveKind.ALL_REDUCE, "gradient of norm", "fsdp"] == 1


def test_training_without_state_is_told() -> None:
    """Memory that lacks what the optimizer keeps is no answer to whether a step fits."""
    assert any("no optimizer state" in note for note in step_of(TEXT).notes)
    assert step_of(TEXT, step__mode="serve").notes == ()
    for state in ("{optimizer: same}", "{moments: 0}"):
        assert step_of(f"{TEXT}state: {state}\n").notes == ()


def test_serving_is_the_forward_pass() -> None:
    step = step_of(TEXT, step__mode="serve")
    assert {op.phase for op in step.ops} == {"forward"}
    assert step.flops * 8 == 2 * 2 * LAYER + LOGITS
    assert sent(step)[CollectiveKind.ALL_GATHER, "weight layers/up", "fsdp"] == 2


def test_tokens_say_the_batch() -> None:
    assert stated(TEXT).tokens == 8 * 16
    many = stated(TEXT, step__tokens="1024")
    assert many.tokens == 1024
    assert many.step.flops == 8 * step_of(TEXT).flops


def test_causes_are_rules() -> None:
    for each in step_of(TEXT).collectives:
        assert [cause.mesh_axis for cause in each.because] == list(each.mesh_axes)
        assert all(cause.rule is not None for cause in each.because)


@pytest.mark.parametrize("text", [TEXT, UNROLLED])
def test_ticks_and_axes_are_those_of_a_step(text: str) -> None:
    """The invariants of `Step`."""
    step = step_of(text)
    assert step.source == "spec"
    ticks = [each.at for each in (*step.ops, *step.collectives)]
    assert all(0 <= tick <= step.end for tick in ticks)
    assert all(0 <= each.born <= each.dies <= step.end for each in step.tensors)
    named = {axis for each in (*step.ops, *step.collectives) for axis in each.mesh_axes}
    assert named <= set(step.mesh.names)


def test_full_remat_keeps_what_comes_into_a_round() -> None:
    plan = plan_of(TEXT)
    found = stated_step(plan)
    assert found is not None
    cost = cost_of(plan, found.step, tokens=found.tokens)
    assert cost.memory.activations is not None
    kept = 2 * (8 // 4) * 16 * 32 * 2
    assert kept <= cost.memory.activations.bytes <= 3 * kept
    assert cost.tokens == 128


ATTENTION = """
axes: {batch: 8, length: 16, embed: 32, heads: 4, kv_heads: 2, kv: 8, joined: heads * kv}
mesh: {data: 2, tensor: 2, context: 2}
rules: [batch -> data, "joined, heads, kv_heads -> tensor", length -> context, "embed, kv -> none"]
params: {q: embed joined, k: embed kv_heads kv, v: embed kv_heads kv, o: joined embed}
arrays: {q: "f32[32, 32]", k: "f32[32, 2, 8]", v: "f32[32, 2, 8]", o: "f32[32, 32]"}
activations: {residual: batch length embed, query: batch length heads kv}
step:
  program:
    - residual, "q" -> query
    - residual, "k" -> key
    - residual, "v" -> value
    - flash(query, key, value) -> context
    - context, "o" -> residual
"""


def test_keys_of_cross_attention_have_positions_of_their_own_name() -> None:
    """What is `length` of the queries is `source` of the keys, beside heads that differ too."""
    text = ATTENTION.replace("embed: 32,", "embed: 32, source: 64,")
    text = text.replace("query: batch", "encoded: batch source embed, query: batch")
    for name in ("k", "v"):
        text = text.replace(f'residual, "{name}"', f'encoded, "{name}"')
    step, own = step_of(text), step_of(ATTENTION)
    (cross,), (alone,) = (
        [op for op in each.ops if op.kind == "kernel"][:1] for each in (step, own)
    )
    assert cross.flops == alone.flops * 64 // 16


@pytest.mark.parametrize(("attention", "backward"), [("flash", 2.5), ("einsum", 2)])
def test_attention_computes_scores_and_sums(attention: str, backward: float) -> None:
    """Grouped heads: two heads of keys serve four of queries, and the FLOPs are the queries'."""
    step = step_of(ATTENTION, step__attention=attention)
    scores = 4 * 8 * 16 * 16 * 4 * 8
    lines = [op for op in step.ops if op.place.line == 13]
    assert sum(op.flops * op.count for op in lines) * 8 == pytest.approx(scores * (1 + backward))
    assert {op.kind for op in lines} == {"kernel" if attention == "flash" else "einsum"}


def test_attention_may_state_what_a_mask_leaves() -> None:
    causal = ATTENTION.replace(
        "-> context\n", "-> context, flops 2 * batch * length * length * joined\n"
    )
    step, whole = step_of(causal), step_of(ATTENTION)
    for own, other in zip(step.ops, whole.ops, strict=True):
        assert own.flops * (2 if own.place.line == 13 else 1) == other.flops
    assert sent(step) == sent(whole)


def test_context_parallel_gathers_keys_and_values() -> None:
    found = sent(step_of(ATTENTION))
    for name in ("key", "value"):
        assert found[CollectiveKind.ALL_GATHER, f"activation {name}", "context"] == 1
    assert (CollectiveKind.ALL_GATHER, "activation query", "context") not in found


def test_names_that_are_products_are_their_factors() -> None:
    """`joined` is `heads kv`: nothing moves between the projection and the heads."""
    assert not any("query" in what for _, what, _ in sent(step_of(ATTENTION)))


CACHE = """
axes: {batch: 4, length: 1, cache_length: 64, layers: 3, embed: 32, kv_heads: 2, kv: 8, heads: 4}
mesh: {tensor: 2}
rules: ["heads, kv_heads -> tensor", "batch, length, cache_length, layers, embed, kv -> none"]
params: {"**/q": embed heads kv, "**/o": heads kv embed}
scan: {layers/**: layers@0}
arrays: {layers/q: "bf16[3, 32, 4, 8]", layers/o: "bf16[3, 4, 8, 32]"}
activations: {residual: batch length embed}
step:
  mode: serve
  program:
    - residual, "**/q" -> query
    - flash(query, keys[layers batch cache_length kv_heads kv], values[layers batch cache_length
      kv_heads kv]) -> context
    - context, "**/o" -> residual
"""


def test_a_cache_is_held_for_all_layers_and_read_by_each() -> None:
    step = step_of(CACHE)
    caches = {each.path: each.array for each in step.arguments if each.role == "cache"}
    assert caches["keys"].shape == (3, 4, 64, 2, 8)
    assert caches["keys"].shard_shape == (3, 4, 64, 1, 8)
    (kernel,) = (op for op in step.ops if op.kind == "kernel")
    assert kernel.count == 3
    assert kernel.flops * 2 == 4 * 4 * 64 * 4 * 8


@pytest.mark.parametrize("attention", ["flash", "einsum"])
def test_a_cache_that_is_split_by_its_length_stays_where_it_is(attention: str) -> None:
    """Each device answers from its own part of the cache, and the answers are added up."""
    rules = 'rules: ["cache_length -> tensor", "batch, length, layers, heads, kv_heads -> none"]'
    lines = [rules if line.startswith("rules:") else line for line in CACHE.splitlines()]
    split = "\n".join(lines).replace("kv_heads -> none", "kv_heads, embed, kv -> none")
    step = step_of(split, step__attention=attention)
    assert sent(step) == {(CollectiveKind.ALL_REDUCE, "activation context", "tensor"): 3}
    assert sum(each.wire_bytes for each in step.collectives) == 3 * 4 * 4 * 8 * 2


def test_gradients_along_an_odd_number_of_tiles_are_summed_whole() -> None:
    """Of 3 * 128 elements on a device libtpu slices a sum that is whole, and scatters 2 * 128."""
    head = "hardware: tpu v5e 4x4\n" + TEXT.replace(
        "mesh: {fsdp: 4,", "mesh: {replica: 2, fsdp: 4,"
    )
    head = head.replace("[batch -> fsdp", '["batch -> (replica, fsdp)"')
    found = {}
    for embed in (1024, 1536):
        for each in step_of(head.replace(" 32", f" {embed}")).collectives:
            if each.kind is CollectiveKind.REDUCE_SCATTER and each.mesh_axes == ("fsdp",):
                found[embed, each.carries.name] = each.wire_bytes_per_run / each.payload_bytes
    assert found[1024, "layers/down"] == found[1024, "layers/up"] == 3 / 4
    assert (found[1536, "layers/down"], found[1536, "layers/up"]) == (3 / 2, 3 / 4)


def test_caches_of_the_spec_are_what_a_step_reads_and_count_once() -> None:
    """One of them is called as a weight is: `cache/q` is no `"**/q"`."""
    caches = 'caches: {"cache/{q,v}": "bf16[layers batch cache_length kv_heads kv]"}\n'
    stated, bare = step_of(CACHE + caches), step_of(CACHE)
    found = [each.path for each in stated.arguments if each.role == "cache"]
    assert found == ["cache/q", "cache/v", "residual"]

    def held(step: Step, role: str) -> int:
        return sum(each.array.bytes for each in step.arguments if each.role == role)

    assert held(stated, "parameter") == held(bare, "parameter")
    assert held(stated, "cache") == held(bare, "cache")
    assert stated.flops == bare.flops
    assert stated.notes == bare.notes == ()


FUSED = """
axes:
  batch: 8
  length: 16
  embed: 32
  mlp: 64
  gate_up: {parts: {gate: mlp, up: mlp}, interleaved: true}
mesh: {tensor: 2}
rules: ["mlp, gate_up -> tensor", "batch, length, embed -> none"]
params: {gate_up: embed gate_up, down: mlp embed}
arrays: {gate_up: "f32[32, 128]", down: "f32[64, 32]"}
activations: {residual: batch length embed}
step:
  program:
    - residual, "gate_up" -> both
    - split(both) -> gate[batch length mlp], hidden[batch length mlp]
    - hidden, "down" -> residual
"""


def test_parts_of_an_interleaved_axis_lie_where_they_are() -> None:
    """Megatron's two sums of a layer are all that is sent, as of two arrays side by side."""
    found = sent(step_of(FUSED))
    reduce = CollectiveKind.ALL_REDUCE
    assert found == {(reduce, "activation residual", "tensor"): 1}


def test_parts_that_lie_one_behind_the_other_are_gathered_first() -> None:
    found = sent(step_of(FUSED.replace("interleaved: true", "interleaved: false")))
    assert (CollectiveKind.ALL_GATHER, "activation both", "tensor") in found
    carried = {what for kind, what, _ in found if kind is CollectiveKind.ALL_REDUCE}
    assert carried == {"activation residual"}


def test_gradients_are_summed_in_what_is_stated() -> None:
    replicated = TEXT.replace("embed -> fsdp", "embed -> none")
    as_products, stated = step_of(replicated), step_of(replicated, step__gradients="f32")

    def sums(step: Step) -> float:
        return sum(
            each.wire_bytes_per_run * each.count
            for each in step.collectives
            if each.carries.kind == "gradient" and each.kind is CollectiveKind.ALL_REDUCE
        )

    assert sums(stated) == 2 * sums(as_products) > 0


def test_gradients_of_microbatches_are_added_up_in_memory() -> None:
    once = [op for op in step_of(TEXT).ops if op.kind == "scatter" and len(op.operands) == 1]
    assert not once
    step = step_of(TEXT, step__microbatches="2")
    adds = [op for op in step.ops if op.kind == "scatter" and len(op.operands) == 1]
    assert {op.result.name for op in adds} == {"layers/up", "layers/down", "table"}
    assert {op.count for op in adds} == {2}
    assert all(op.flops == 0 for op in adds)


def test_parts_that_do_not_divide_are_filled_up() -> None:
    """Six sequences on four devices are two on each: work and bytes are those of eight."""
    keep = TEXT + "policy: {indivisible: keep}\n"
    eight, six = step_of(keep), step_of(keep, axes__batch="6")
    assert [op.flops for op in six.ops] == [op.flops for op in eight.ops]
    assert {e.wire_bytes_per_run for e in six.collectives if e.carries.kind == "activation"} == {
        e.wire_bytes_per_run for e in eight.collectives if e.carries.kind == "activation"
    }


def test_layers_give_up_what_they_kept_as_their_gradients_are_made() -> None:
    """So gradients of layers that stand one by one count where all of them are."""
    joined, apart = step_of(TEXT, step__remat="none"), step_of(UNROLLED, step__remat="none")

    def born(step: Step, name: str) -> int:
        return next(
            each.born
            for each in step.tensors
            if each.array.name.endswith(name) and each.dies == step.end
        )

    def last(step: Step) -> int:
        return max(e.dies for e in step.tensors if e.array.name == "hidden")

    assert born(joined, "down") < last(joined) < born(apart, "down")


def test_an_op_needs_what_it_reads() -> None:
    normed = TEXT.replace(
        '    - residual, "**/up" -> hidden\n',
        "    - op(residual) -> normed[batch length embed], flops 4 * batch * length * embed"
        ' per "**/up"\n    - normed, "**/up" -> hidden\n',
    )
    step = step_of(normed, step__remat="none")
    kept = [each.array.shape for each in step.tensors if each.array.name in ("normed", "residual")]
    assert kept.count((2, 8, 16, 32)) == 2


FROZEN = TEXT + 'training: {"**/down": trained, "**": frozen}\nstate: {moments: 2}\n'


def test_frozen_arrays_have_no_gradients_and_what_is_below_them_has_none() -> None:
    """Of the embedding nothing goes back; of `up` what comes in does, and is computed again."""
    step = step_of(FROZEN)
    layers = 2 * (2 + 3 + 1) * LAYER  # forward; by `down` both, by `up` what it reads; `up` again
    assert step.flops * 8 == layers + 2 * LOGITS
    gradients = {each.carries.name for each in step.collectives if each.carries.kind == "gradient"}
    assert gradients == {"layers/down"}
    held = step_memory(plan_of(FROZEN), step)
    assert held.optimizer is not None
    assert held.optimizer.bytes == 2 * 4 * (2 * 64 * 32) // 8


def test_layers_may_be_frozen_one_by_one() -> None:
    text = UNROLLED + 'training: {"layers_0/*": frozen}\n'
    some, all_of_them = step_of(text), step_of(UNROLLED)
    assert (all_of_them.flops - some.flops) * 8 == 2 * LAYER
    carried = {e.carries.name for e in some.collectives if e.carries.kind == "gradient"}
    assert {name for name in carried if "layers" in name} == {"layers_1/up", "layers_1/down"}


def test_a_stated_step_may_serve_what_is_frozen() -> None:
    text = TEXT + 'training: {"**": frozen}\n'
    assert step_of(text, step__mode="serve") == step_of(TEXT, step__mode="serve")


def test_parameters_on_the_host_are_counted_there() -> None:
    """On the device is what a round uses of them, and their gradients."""
    here = step_memory(plan_of(TEXT), step_of(TEXT))
    text = TEXT + 'memory: {"layers/**": pinned_host}\n'
    step = step_of(text)
    there = step_memory(plan_of(text), step)
    layers = 2 * 2 * 32 * 64 * 4 // 8
    assert there.host is not None
    assert there.host.bytes == layers
    assert here.parameters.bytes - there.parameters.bytes == layers
    assert {"layers/up", "layers/down"} <= {
        e.array.name for e in step.tensors if e.phase == "remat"
    } | {e.array.name for e in step.tensors if e.phase == "forward"}


def test_moments_on_the_host_are_counted_there() -> None:
    text = TEXT + "state: {moments: 2, dtype: f32}\n"
    here = step_memory(plan_of(text), step_of(text))
    text += 'memory: {"opt_state/**": pinned_host}\n'
    there = step_memory(plan_of(text), step_of(text))
    assert here.host is None
    assert here.optimizer is not None
    assert there.optimizer is not None
    assert there.optimizer.bytes == 0
    assert there.host is not None
    moments = 2 * 4 * (2 * 2 * 32 * 64 + 128 * 32)  # split over both mesh axes
    assert there.host.bytes == here.optimizer.bytes == moments // 8


@pytest.mark.parametrize(
    ("host", "back"), [("opt_state/**", True), ("layers/**", True), ("caches", False)]
)
def test_transfers_to_the_host_are_never_free(host: str, back: bool) -> None:
    """What is moved to and from the host takes a time that nobody knows, and is said."""
    text = TEXT + "state: {moments: 2, dtype: f32}\n"
    (none, some) = (step_of(text + more) for more in ("", f'memory: {{"{host}": pinned_host}}\n'))
    assert none.uncounted("time") == ()
    told = [each.reason for each in some.uncounted("time")]
    assert len(told) == back
    held = sum(each.array.bytes * each.count for each in some.arguments if each.is_on_host)
    assert all(told.count(each) and binary_bytes(held) in each for each in told)
    assert some.uncounted("memory") == some.uncounted("sends") == ()


def test_a_word_of_remat_that_no_line_makes_is_a_fault() -> None:
    spec, faults = pipeline.load_text(TEXT.replace("remat: full", "remat: sometimes"))
    assert spec is not None
    found = pipeline.check(spec, faults, spec.params).shown
    assert [each.code.id for each in found if "sometimes" in each.message] == ["SHD240"]


def test_layers_that_are_sharded_otherwise_are_noted() -> None:
    """One line is priced by its first array; a line for each group prices all of them."""
    text = """
axes: {batch: 64, length: 128, embed: 256, mlp: 1024, late: 1024}
hardware: tpu v5e 4x4
mesh: {fsdp: 4, tensor: 4}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, length -> none, late -> none]
params: {"layers_{0,1}/up": embed mlp, "layers_{2,3}/up": embed late}
arrays: {"layers_{0..3}/up": "bf16[256, 1024]"}
activations: {residual: batch length embed}
step:
  program:
    - residual, "layers_*/up" -> hidden
"""
    apart = text.replace(
        'residual, "layers_*/up" -> hidden', 'residual, "layers_{0,1}/up" -> hidden'
    )
    apart += '    - residual, "layers_{2,3}/up" -> broad\n'
    notes = [
        [note for note in step.notes if "one line reads" in note]
        for step in map(step_of, (text, apart))
    ]
    assert notes == [
        [
            "one line reads `layers_0/up` and `layers_2/up`, which is sharded in another way: all"
            " layers are counted as `layers_0/up`; write a line for each group of layers"
        ],
        [],
    ]
