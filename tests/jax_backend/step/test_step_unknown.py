"""What a traced step sends for plain operations along a sharded dimension is right, or unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import shardspec
from shardspec.ir.step import Step
from shardspec.jax_backend.step.reading import step_of
from shardspec.jax_backend.xla.compiling import TPU_ENVIRONMENT
from shardspec.programs.reading import ReadProgram, read_program
from tests.models.plain_ops import OPS, SPEC
from tests.versions_of_jax import CUT_BY_JAXLIB, WITHOUT_A_LINE

SENT: dict[str, int] = json.loads(
    (Path(__file__).parents[2] / "data" / "plain_ops.json").read_text(encoding="utf-8")
)["sent"]
#: How far off a figure may be that is not said to be unknown.
MOST = 0.05


def resolver() -> Any:
    return shardspec.Resolver(shardspec.loads(SPEC), "pod", devices="abstract")


def step_of_op(name: str) -> Step:
    own = resolver()
    return step_of(own, OPS[name].function, *OPS[name].structs(own.mesh))


def is_right(step: Step, sent: int) -> bool:
    return abs(sum(step.wire_bytes.values()) - sent) <= MOST * sent


#: What libtpu partitions otherwise, as no rule says: the most that it sends is counted.
OTHERWISE = {"tile along"} | CUT_BY_JAXLIB
#: What it sends where the partitioner sends less: 28 KiB at most, but for a sum of logarithms.
LITTLE = {"set a row along", "product with a vector", "cumlogsumexp across"}


@pytest.mark.parametrize("name", OPS)
def test_an_operation_is_counted_right_or_unknown(name: str) -> None:
    step = step_of_op(name)
    is_known = is_right(step, SENT[name]) or bool(step.unknown)
    assert is_known == (name not in OTHERWISE | LITTLE)
    assert all("sends" in each.figures for each in step.unknown)
    assert all(each.place.is_known for each in step.unknown) == (name not in WITHOUT_A_LINE)


def test_every_operation_has_its_figure() -> None:
    assert set(SENT) == set(OPS)


def told(function: Any, *arrays: tuple[tuple[int, ...], Any], under: bool = True) -> list[str]:
    """Return what is unknown of a function of arrays whose rows are sharded, under `shard_map`."""
    own = resolver()
    rows = PartitionSpec("x")
    if under:
        function = jax.shard_map(
            function, mesh=own.mesh, in_specs=(rows,) * len(arrays), out_specs=rows, check_vma=False
        )
    place = NamedSharding(own.mesh, rows)
    structs = (jax.ShapeDtypeStruct(*each, sharding=place) for each in arrays)
    return [str(each).partition(" at ")[0] for each in step_of(own, function, *structs).unknown]


F32: Any = ((1024, 128), jnp.float32)
S32: Any = ((64,), jnp.int32)


def foreign(x: Any) -> Any:
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def kernel(x: Any, *, sends: bool) -> Any:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def local(into: Any, out: Any, *_: Any) -> None:
        out[...] = into[...] * 2

    def remote(into: Any, out: Any, sent: Any, got: Any) -> None:
        to = jax.lax.rem(jax.lax.axis_index("x") + 1, 8)
        copy = pltpu.make_async_remote_copy(into, out, sent, got, device_id=(to,))
        copy.start()
        copy.wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY if sends else pltpu.VMEM)
    return pl.pallas_call(
        remote if sends else local,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(x)


def test_code_under_shard_map_that_may_send_is_unknown() -> None:
    def exchanged(x: Any, out: Any, *places: Any) -> Any:
        return jax.lax.ragged_all_to_all(x, out, *places, axis_name="x")

    assert told(exchanged, F32, F32, *[S32] * 4) == ["ragged-all-to-all"]
    assert told(foreign, F32) == ["custom-call my_kernel"]
    assert told(lambda x: kernel(x, sends=True), F32) == ["custom-call tpu_custom_call"]
    assert told(lambda x: kernel(x, sends=False), F32) == []
    assert told(lambda x: jnp.cumsum(jnp.sort(x, axis=1), axis=1), F32) == []


def test_a_foreign_kernel_on_a_sharded_array_is_unknown() -> None:
    assert told(foreign, F32, under=False) == ["custom-call my_kernel"]


def test_a_composite_is_what_it_is_made_of() -> None:
    own = resolver()
    columns = NamedSharding(own.mesh, PartitionSpec(None, "x"))
    summed = jax.lax.composite(lambda x: jnp.sum(x, axis=1), "my.sum")
    step = step_of(own, summed, jax.ShapeDtypeStruct(*F32, sharding=columns))
    assert (step.wire_bytes, step.unknown) == ({("x",): 2 * 7 * 1024 * 4 // 8}, ())


def test_what_a_constraint_asks_for_is_known() -> None:
    own = resolver()
    rows, columns = (NamedSharding(own.mesh, PartitionSpec(*each)) for each in ("x", (None, "x")))

    def ordered(x: Any) -> Any:
        return jnp.sort(jax.lax.with_sharding_constraint(x, rows), axis=1)

    step = step_of(own, ordered, jax.ShapeDtypeStruct(*F32, sharding=columns))
    assert (step.wire_bytes, step.unknown) == ({("x",): 7 * 1024 * 128 * 4 // 64}, ())


def test_the_gradient_of_a_ragged_product_has_a_rule() -> None:
    """Both of its products have other dimensions than that of the forward pass."""
    own = resolver()

    def loss(x: Any, w: Any, sizes: Any) -> Any:
        return (jax.lax.ragged_dot(x, w, sizes) ** 2).sum()

    def given(shape: tuple[int, ...], dtype: Any, *split: Any) -> Any:
        place = NamedSharding(own.mesh, PartitionSpec(*split))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    x, sizes = given((4096, 512), jnp.float32), given((8,), jnp.int32)
    whole, inner = (given((8, 512, 256), jnp.float32, None, each) for each in (None, "x"))
    gradient = jax.grad(loss, (0, 1))
    assert step_of(own, gradient, x, whole, sizes).collectives == ()
    step = step_of(own, gradient, x, inner, sizes)
    assert step.unknown == ()
    assert step.collectives


def test_what_cannot_matter_is_left_out() -> None:
    own = resolver()
    rows, columns = (NamedSharding(own.mesh, PartitionSpec(*each)) for each in ("x", (None, "x")))

    def step(x: Any, w: Any, few: Any) -> Any:
        return x @ w, jnp.cumsum(few)

    arrays = ((4096, 4096), columns), ((4096, 4096), rows)
    wide, weight = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=s) for shape, s in arrays)
    few, many = (
        jax.ShapeDtypeStruct((count,), jnp.float32, sharding=rows) for count in (4096, 2**22)
    )
    assert step_of(own, step, wide, weight, few).unknown == ()
    (found,) = step_of(own, step, wide, weight, many).unknown
    assert found.what == "reduce-window"


def on_two_axes(function: Any, *arrays: tuple[tuple[int, ...], Any]) -> Step:
    """Return the step of a function of f32 arrays, each of a shape and sharded by names."""
    spec = shardspec.loads(SPEC.replace("x: 8", "x: 4, y: 2"))
    own = shardspec.Resolver(spec, "pod", devices="abstract")
    structs = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(own.mesh, split))
        for shape, split in arrays
    )
    return step_of(own, lambda *args: function(own.mesh, *args), *structs)


def laid(mesh: Any, array: Any, *split: str | None) -> Any:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*split)))


COLUMNS, BOTH = PartitionSpec(None, "x"), PartitionSpec("y", "x")
WIDE, WEIGHT = (1024, 2048), (2048, 400)


def test_what_is_replicated_over_an_axis_is_gathered_for_a_product() -> None:
    """XLA computes whole groups of devices then, and sums what all axes split. Source: libtpu."""
    for split, sent in ((COLUMNS, 2 * 3 * 1024 * 512), (BOTH, 2 * 3 * 512 * 400)):
        step = on_two_axes(lambda _, x, w: x @ w, (WIDE, split), (WEIGHT, PartitionSpec()))
        assert (step.wire_bytes, step.unknown) == ({("x",): sent}, ())
    (product,) = step.ops
    assert product.flops == 2 * 512 * 512 * 400


def test_a_gathered_product_is_computed_by_every_device() -> None:
    step = on_two_axes(lambda _, x, w: x @ w, (WIDE, COLUMNS), (WEIGHT, PartitionSpec()))
    assert [op.flops for op in step.ops] == [2 * 1024 * 2048 * 400]


def test_the_top_of_what_is_replicated_over_an_axis_is_unknown() -> None:
    def top(_: Any, x: Any) -> Any:
        return jax.lax.top_k(x, 16)

    for split in (COLUMNS, BOTH):
        assert {each.what for each in on_two_axes(top, (WIDE, split)).unknown} == {"sort"}


@pytest.mark.parametrize("split", [(None, "x"), (None, "y", "x")[::2], ("y", None)])
def test_what_a_product_alone_reads_moves_as_the_product_reads_it(split: Any) -> None:
    def moved(mesh: Any, x: Any, w: Any) -> Any:
        return laid(mesh, x, *split) @ w

    def taken(mesh: Any, x: Any, _: Any) -> Any:
        return jnp.tanh(laid(mesh, x, *split))

    arrays = (WIDE, PartitionSpec("x")), (WEIGHT, PartitionSpec(split[1]))
    narrow, wide = (on_two_axes(each, *arrays).collectives[0] for each in (moved, taken))
    assert 2 * narrow.wire_bytes_per_run == wide.wire_bytes_per_run


def test_a_sum_of_one_dimension_is_whole_before_it_is_sliced() -> None:
    """So it is with the gradient of a bias whose state is split."""

    def summed(mesh: Any, x: Any) -> Any:
        return laid(mesh, jnp.sum(x, axis=0), "x")

    step = on_two_axes(summed, ((64, 8192), PartitionSpec("x")))
    assert step.wire_bytes == {("x",): 2 * 3 * 8192 * 4 // 4}


@pytest.mark.nightly
def test_the_figures_are_those_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    for key, value in TPU_ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    from jax.experimental import topologies

    devices = topologies.get_topology_desc("v5e:2x4", platform="tpu").devices
    mesh = jax.sharding.Mesh(np.array(devices).reshape(8), ("x",))
    found = {}
    for name, op in OPS.items():
        text = jax.jit(op.function).lower(*op.structs(mesh)).compile().as_text()
        program = read_program(text, resolver().target.mesh, ())
        assert isinstance(program, ReadProgram)
        found[name] = sum(program.step.wire_bytes.values())
    assert found == pytest.approx(SENT, rel=0.01)
