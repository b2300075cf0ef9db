"""A traced step as the noun of `ir/step.py`: ops, counts, phases, arguments, tensors, notes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.ir.step import Step
from shardspec.jax_backend.step import passes
from shardspec.jax_backend.step.reading import step_of
from shardspec.programs.reading import ReadProgram, read_program
from tests.models import layers, moe_linen, small_steps, t5_linen, t5_nnx
from tests.models.steps import CASES


@cache
def step(name: str, target: str = "pod") -> Step:
    resolver = small_steps.resolver(target)
    function, args = small_steps.PROGRAMS[name](resolver)
    return step_of(resolver, function, *args)


def spelt(found: Step) -> list[str]:
    return [f"{each.kind} {'+'.join(each.mesh_axes)} {each.carries}" for each in found.collectives]


@pytest.mark.parametrize("name", small_steps.PROGRAMS)
def test_the_laws_of_a_step_hold(name: str) -> None:
    found = step(name)
    for each in (*found.ops, *found.collectives):
        assert 0 <= each.at <= found.end
        assert set(each.mesh_axes) <= set(found.mesh.names)
    for tensor in found.tensors:
        assert 0 <= tensor.born <= tensor.dies <= found.end
    for sent in found.collectives:
        assert 0 <= sent.wire_bytes_per_run <= 2 * sent.payload_bytes
        assert [cause.mesh_axis for cause in sent.because] == list(sent.mesh_axes)
        assert sent.place.is_known
        reshard = sent.reshard
        if reshard is not None:
            assert 0 <= reshard.at <= sent.at
            assert len(reshard.before.dims) == len(reshard.after.dims) == len(sent.array.shape)
            ticks = (*reshard.readers, *reshard.works)
            assert all(reshard.at < tick <= found.end for tick in ticks)
    for array in (argument.array for argument in found.arguments):
        assert len(array.shape) == len(array.split.dims) == len(array.shard_shape)


def test_the_ops_of_a_layer() -> None:
    found = step("plain")
    assert [(op.kind, op.flops, op.count, op.phase) for op in found.ops] == [
        ("einsum", 2 * 8 * 128 * 1024 * 2048, 1, "forward"),
        ("einsum", 2 * 8 * 128 * 2048 * 1024, 1, "forward"),
    ]
    assert found.ops[0].einsum == "abc,cd->abd"
    assert found.ops[0].operands[1].name == "mlp/wi"
    assert found.ops[0].operands[1].shard_shape == (1024, 2048)
    assert found.ops[0].mesh_axes == ("fsdp", "tensor")
    assert found.place.file == "tests/models/small_steps.py"


def test_phases_of_a_train_step() -> None:
    found = step("clipped_adam")
    assert [op.phase for op in found.ops] == ["forward"] * 2 + ["backward"] * 3
    phases = {each.phase for each in found.collectives if "gradient" in str(each.carries)}
    assert "backward" in phases
    assert phases <= {"backward", "update"}  # Shardy of jaxlib 0.10.0 reduces one where it is used


def test_rematerialised_work_is_told_apart() -> None:
    case = CASES["llama-8b-v5p"]
    resolver = shardspec.Resolver(shardspec.loads(case.spec), "pod", devices="abstract")
    function, args = case.step(resolver)
    found = step_of(resolver, function, *args)
    remat = [op for op in found.ops if op.phase == "remat"]
    forward = [op for op in found.ops if op.phase == "forward" and op.kind == "einsum"]
    assert {op.einsum for op in remat} == {op.einsum for op in forward} - {
        "bte,ev->btv",
        "btf,fe->bte",
    }
    assert {op.count for op in remat} == {32}
    whole = 6 * 16 * 4096 * (sum(size_of(a) for a in args[0]["params"]["layers"].values()))
    assert sum(op.flops * op.count for op in found.ops) * 8 > whole


def size_of(array: Any) -> int:
    return int(jnp.prod(jnp.array(array.shape)))


def test_a_reshard_knows_how_it_lay_and_who_reads_it() -> None:
    found = step("plain")
    gather = next(each for each in found.collectives if each.carries.name == "mlp/wi")
    reshard = gather.reshard
    assert reshard is not None
    assert (str(reshard.before), str(reshard.after)) == ("P('fsdp', 'tensor')", "P(None, 'tensor')")
    assert reshard.works == (found.ops[0].at,)
    assert set(reshard.shared_over or ()) == {"fsdp", "tensor"}
    assert not reshard.is_result
    given_back = [each for each in step("forced_result").collectives if each.forced_by]
    assert [each.reshard is not None and each.reshard.is_result for each in given_back] == [True]
    assert {each.reshard for each in step("shard_mapped").collectives if each.is_written} == {None}


def test_loops_multiply() -> None:
    once, eight = step("plain"), step("eight_rounds")
    assert eight.flops == 8 * once.flops
    assert eight.wire_bytes == {axes: 8 * sent for axes, sent in once.wire_bytes.items()}
    assert {each.rounds for each in eight.collectives} == {8}
    gathers = [each for each in eight.collectives if each.kind == "all-gather"]
    assert [each.is_invariant for each in gathers] == [True, True]
    assert not any(each.is_invariant for each in eight.collectives if each.kind == "all-reduce")


def test_a_loop_without_end_counts_once_and_says_so() -> None:
    found = step("endless")
    assert found.wire_bytes == step("plain").wire_bytes
    (note,) = found.notes
    assert "has no fixed number of iterations: counted once" in note
    assert "tests/models/small_steps.py:" in note


def test_a_condition_counts_with_its_dearer_branch_and_says_so() -> None:
    found = step("branch")
    assert found.wire_bytes == step("plain").wire_bytes
    assert "counts with its dearer branch" in found.notes[0]


def test_what_the_user_wrote_is_theirs() -> None:
    found = step("shard_mapped")
    assert [(each.kind.value, each.is_written) for each in found.collectives] == [
        ("all-gather", False),
        ("all-gather", True),
        ("all-reduce", True),
        ("collective-permute", True),
    ]
    lines = [each.place.line for each in found.collectives]
    assert lines[1] + 1 == lines[2] == lines[3] - 1  # the lines of the code inside


def test_zeros_between_what_a_strided_convolution_gives_back_are_no_work() -> None:
    own = small_steps.resolver()
    numbers = ("NHC", "HIO", "NHC")

    def loss(kernel: Any, x: Any) -> Any:
        made = jax.lax.conv_general_dilated(x, kernel, (2,), "SAME", dimension_numbers=numbers)
        return jnp.sum(made**2)

    kernel, x = small_steps.struct(4, 32, 64), small_steps.struct(64, 128, 32)
    step = step_of(own, jax.grad(loss, argnums=(0, 1)), kernel, x)
    flops = [op.flops * 8 for op in step.ops if op.kind == "convolution"]
    assert flops == pytest.approx([2 * 64 * 64 * 64 * 4 * 32] * 3, rel=0.05)


def test_a_broadcast_that_is_written_is_counted() -> None:
    text = "shardspec: 1\nhardware: 8 h100\nmesh: {fsdp: 8}\nrules: [embed -> fsdp]"
    own = shardspec.Resolver(shardspec.loads(text), devices="abstract")

    def passed_on(x: Any) -> Any:
        return jax.lax.pbroadcast(x, ("fsdp",), 1)

    split = jax.sharding.PartitionSpec("fsdp")
    manual = jax.shard_map(
        passed_on, mesh=own.mesh, in_specs=split, out_specs=split, check_vma=False
    )
    (sent,) = step_of(own, manual, jax.ShapeDtypeStruct((64, 128), jnp.float32)).collectives
    assert (sent.mesh_axes, sent.wire_bytes) == (("fsdp",), 8 * 128 * 4)


def test_a_kernel_says_its_own_flops() -> None:
    (found,) = (op for op in step("kernel").ops if op.kind == "kernel")
    assert (found.flops, found.result.shape) == (123456, (8, 128, 1024))


def test_arguments_have_their_roles() -> None:
    found = step("clipped_adam")
    told = {each.path: (each.role, each.is_donated, each.is_placed) for each in found.arguments}
    assert told["mlp/wi"] == ("parameter", True, False)
    assert told["1/0/mu/mlp/wi"] == ("optimizer", True, False)
    assert told["x"] == ("batch", False, False)
    wi = next(each for each in found.arguments if each.path == "mlp/wi")
    assert wi.array.shard_shape == (128, 2048)


def test_arguments_that_nothing_reads_are_not_there() -> None:
    resolver = small_steps.resolver()
    params = small_steps.weights()

    def only_the_second(params: Any, x: Any) -> Any:
        return x @ params["mlp"]["wo"].astype(x.dtype)

    x = small_steps.struct(64, 128, 4096, dtype=jnp.bfloat16)
    found = step_of(resolver, only_the_second, params, x)
    assert [each.path for each in found.arguments] == ["mlp/wo", "x"]
    assert "all-gather fsdp weight mlp/wo" in spelt(found)


def test_tensors_that_are_alive() -> None:
    resolver = small_steps.resolver(spec=small_steps.SPEC.replace("tpu v5e 4x4", "2 * h100"))
    function, args = small_steps.PROGRAMS["gradient"](resolver)
    found = step_of(resolver, function, *args)
    hidden = [each for each in found.tensors if each.array.shape == (8, 128, 2048)]
    assert hidden
    assert all(each.why for each in hidden)
    assert max(each.dies - each.born for each in hidden) > 1


def test_explicit_axes() -> None:
    resolver = small_steps.resolver("typed")

    def loss(params: Any, x: Any) -> Any:
        w = jax.sharding.reshard(
            params["mlp"]["wi"], jax.sharding.NamedSharding(resolver.mesh, jax.P(None, "tensor"))
        )
        return jnp.sum((x @ w.astype(x.dtype)).astype(jnp.float32) ** 2)

    with jax.sharding.use_abstract_mesh(resolver.mesh):
        found = step_of(
            resolver, jax.value_and_grad(loss), small_steps.weights(), small_steps.activations()
        )
    assert "all-gather fsdp weight mlp/wi" in spelt(found)


T5 = """\
shardspec: 1
extends: fsdp-tensor
targets:
  pod: {hardware: tpu v5e 16x16, mesh: {fsdp: rest, tensor: 4}}
lints: {SHD2: allow, SHD3: allow, SHD4: allow, SHD1: allow, SHD5: allow}
policy: {indivisible: next}
"""


@pytest.mark.parametrize("model", [t5_linen, moe_linen, t5_nnx], ids=["t5", "moe", "nnx"])
def test_models_of_frameworks(model: Any) -> None:
    resolver = shardspec.Resolver(shardspec.loads(T5), devices="abstract")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((layers.BATCH, layers.LENGTH), jnp.int32)
    batch = {"inputs": tokens, "targets": tokens}
    found = step_of(resolver, jax.value_and_grad(model.loss), shapes, batch)
    assert any(op.phase == "backward" for op in found.ops)
    assert found.collectives
    assert {each.place.file.rpartition("/")[2] for each in found.collectives} <= {
        f"{name}.py" for name in ("t5_linen", "moe_linen", "t5_nnx", "layers")
    }


def test_a_module_of_equinox_with_its_functions() -> None:
    import equinox as eqx

    text = small_steps.SPEC.replace('"**/whole": _ _', '"layers/*/weight": mlp embed')
    resolver = small_steps.resolver(spec=text)
    model = eqx.filter_eval_shape(eqx.nn.MLP, 1024, 1024, 4096, 2, key=jax.random.key(0))

    def loss(model: Any, x: Any) -> Any:
        return jnp.sum(jax.vmap(model)(x) ** 2)

    x = small_steps.struct(65536, 1024)
    found = step_of(resolver, eqx.filter_jit(eqx.filter_grad(loss)), model, x)
    assert "all-gather fsdp weight layers/0/weight" in spelt(found)
    assert {each.phase for each in found.ops} == {"forward", "backward"}
    assert found.collectives[0].place.file == "tests/jax_backend/step/test_step_reading.py"


def test_optimizer_state_of_nnx() -> None:
    import optax
    from flax import nnx

    resolver = small_steps.resolver()

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.wi = nnx.Param(jax.random.normal(rngs(), (1024, 4096)))
            self.wo = nnx.Param(jax.random.normal(rngs(), (4096, 1024)))

        def __call__(self, x: Any) -> Any:
            hidden = resolver.constrain(jax.nn.relu(x @ self.wi[...]), activation="hidden")
            return resolver.constrain(hidden @ self.wo[...], activation="residual")

    def made() -> Any:
        model = Layer(nnx.Rngs(0))
        return nnx.ModelAndOptimizer(model, optax.adam(1e-3))

    graph, state = nnx.split(nnx.eval_shape(made))

    def step(state: Any, x: Any) -> Any:
        optimizer = nnx.merge(graph, state)
        grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(optimizer.model)
        optimizer.update(grads)
        return nnx.state(optimizer)

    found = step_of(resolver, step, state, small_steps.struct(64, 128, 1024))
    told = {each.path: each.role for each in found.arguments if each.array.shape}
    assert sorted(told.values()) == ["batch"] + ["optimizer"] * 4 + ["parameter"] * 2
    gradients = {str(each.carries) for each in found.collectives if each.phase == "backward"}
    assert {"gradient of wi", "gradient of wo"} <= gradients


def test_a_jaxlib_without_the_passes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PASSES", ("sdy-no-such-pass", *passes.PASSES))
    with pytest.raises(ShardspecError, match="has no pass `sdy-no-such-pass`") as caught:
        step.__wrapped__("plain")
    assert caught.value.diagnostics[0].code.id == "SHD502"


def test_every_pass_is_there() -> None:
    """The names are no public API; this is the test that holds them on each JAX."""
    assert step("plain").collectives


def test_what_a_rematerialised_layer_starts_from_is_held_although_nothing_contracts_it() -> None:
    """Layers one after the other, no scan: each keeps the sum that the next one starts from."""
    r: Any = small_steps.resolver(spec=small_steps.SPEC.replace("tpu v5e 4x4", "2 * h100"))
    x = jax.ShapeDtypeStruct(
        (64, 128, 1024), jnp.float32, sharding=r.sharding("batch _ _", (64, 128, 1024))
    )
    weights = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=r.sharding(""))] * 6

    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh((x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True))) @ w)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = layer(x, w)
        return jnp.sum(x**2)

    step = step_of(r, jax.grad(loss), weights, x)
    one = 64 * 128 * 1024 * 4 // 8
    peak = max(
        sum(other.bytes for other in step.tensors if other.born <= each.born <= other.dies)
        for each in step.tensors
    )
    assert peak >= 5 * one


#: What JAX makes operations of CHLO of, for which Shardy has no rule.
BY_ELEMENT = {
    "square": jnp.square,
    "erf": jax.scipy.special.erf,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "sinh": jnp.sinh,
    "is infinite": lambda x: jnp.isinf(x) | jnp.isposinf(x),
    "next after": lambda x: jnp.nextafter(x, x + 1),
    "zeta": lambda x: jax.scipy.special.zeta(x + 2, x),
    "square of integers": lambda x: jnp.square(x.astype(jnp.int32)),
}


@pytest.mark.parametrize("name", BY_ELEMENT)
def test_an_operation_on_elements_keeps_the_sharding(name: str) -> None:
    own = small_steps.resolver()
    rows, none = (jax.NamedSharding(own.mesh, jax.P(axis)) for axis in ("fsdp", None))
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=rows)
    w = jax.ShapeDtypeStruct((128, 256), jnp.float32, sharding=none)

    def step(x: Any, w: Any) -> Any:
        return BY_ELEMENT[name](x).astype(jnp.float32) @ w

    (product,) = step_of(own, step, x, w).ops
    assert product.operands[0].shard_shape == (8, 128)


_SMALL = st.integers(1, 3)


@settings(max_examples=12)
@given(
    st.tuples(st.integers(3, 8), st.integers(1, 3), *[_SMALL] * 3, st.integers(0, 3)),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
)
def test_a_convolution_has_the_flops_that_xla_counts(
    dim: tuple[int, ...], groups: tuple[int, int]
) -> None:
    """Ours of the traced step, ours of XLA's text and XLA's own analysis are one figure."""
    size, window, stride, spread, apart, pad = dim
    features, batches = groups

    def made(x: Any, kernel: Any) -> Any:
        pads, numbers = [(pad, pad)], ("NHC", "HIO", "NHC")
        spreads = {"lhs_dilation": (spread,), "rhs_dilation": (apart,)}
        counts = {"feature_group_count": features, "batch_group_count": batches}
        return jax.lax.conv_general_dilated(
            x, kernel, (stride,), pads, dimension_numbers=numbers, **spreads, **counts
        )

    args = small_steps.struct(4, size, 4), small_steps.struct(window, 4 // features, 6)
    try:
        lowered = jax.jit(made).lower(*args)
    except ValueError:  # the window is wider than what it goes over
        return
    text = re.sub(
        r"ENTRY \S+ ", "ENTRY main () -> f32[] ", lowered.compiler_ir("hlo").as_hlo_text()
    )
    read = read_program(text, Mesh((MeshAxis("data", 1),)))
    assert isinstance(read, ReadProgram)
    traced = step_of(small_steps.resolver(), made, *args)
    flops = [sum(op.flops for op in each.ops) for each in (read.step, traced)]
    assert flops == [lowered.cost_analysis().get("flops", 0)] * 2
