"""What libtpu compares and pads before it partitions: the same numbers, sharded otherwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client
from jaxlib.mlir import ir

from shardspec.diagnostics import codes
from shardspec.diagnostics.diagnostic import Diagnostic
from shardspec.jax_backend.step import passes
from shardspec.jax_backend.xla import padded
from shardspec.jax_backend.xla.partitioning import Partitioning
from shardspec.jax_backend.xla.simplified import simplified

AXES = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
ROW = PartitionSpec(None, "a")


def simple(function: Callable[..., Any], spec: PartitionSpec, *args: Any) -> bytes:
    """Return the simplified module of a function of arrays that are sharded alike."""
    sharding = NamedSharding(AXES, spec)
    lowered = jax.jit(function, in_shardings=sharding, out_shardings=sharding).lower(*args)
    return simplified(passes.bytecode_of(lowered.compiler_ir("stablehlo")), for_tpu=True)


def text_of(module: bytes) -> str:
    with mlir.make_ir_context():
        return str(ir.Module.parse(module))


def computed(module: bytes, *args: Any) -> np.ndarray:
    """Return what a module computes on one device."""
    with mlir.make_ir_context():
        found = ir.Module.parse(module)
        for each in list(passes.operations(found.operation)):
            if each.name == "sdy.mesh":
                each.erase()
                continue
            if each.name == "func.func":
                each.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({}) for _ in args])
                del each.attributes["res_attrs"]
            if "sdy.sharding" in each.attributes:
                del each.attributes["sdy.sharding"]
        bare = passes.bytecode_of(found)
    device = jax.devices()[0]
    devices = xla_client.DeviceList((device,))
    loaded = device.client.compile_and_load(bare, devices, xla_client.CompileOptions())
    (result,) = loaded.execute([jax.device_put(each, device) for each in args])
    return np.asarray(result)


def joined(*lengths: int) -> Callable[[Any], Any]:
    """Return a function that changes parts of an array, and puts them together again."""
    ends = np.cumsum(lengths)

    def function(x: Any) -> Any:
        parts = [x[:, end - size : end] for size, end in zip(lengths, ends, strict=True)]
        changed = [-part if at % 2 else part for at, part in enumerate(parts)]
        return jnp.concatenate(changed, 1)

    return function


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 7 - 3).reshape(shape).astype(dtype)


#: Lengths that are put together, the rows, and whether libtpu 0.0.52 pads on v5e 2x4.
CASES = (
    ((1, 511), 64, True),
    ((511, 1), 64, True),
    ((4, 508), 64, True),
    ((5, 507), 64, False),
    ((256, 256), 64, False),
    ((1, 510, 1), 64, True),
    ((4, 4, 504), 64, True),
    ((8, 8, 496), 64, False),
    ((4, 12), 64, True),
    ((8, 8), 64, False),
    ((256, 256), 2, True),
    ((256, 256), 5, True),
    ((256, 256), 8, False),
)


@pytest.mark.parametrize(("lengths", "rows", "is_padded"), CASES)
def test_what_is_short_or_cannot_move_is_padded(
    lengths: Sequence[int], rows: int, is_padded: bool
) -> None:
    given = array(rows, sum(lengths))
    module = simple(joined(*lengths), ROW, given)
    assert ("stablehlo.concatenate" in text_of(module)) is not is_padded
    np.testing.assert_array_equal(computed(module, given), joined(*lengths)(given))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, jnp.bfloat16, np.float16])
def test_padding_changes_no_number(dtype: Any) -> None:
    given = array(8, 16, dtype=dtype)
    module = simple(joined(1, 15), ROW, given)
    assert "stablehlo.maximum" in text_of(module)
    np.testing.assert_array_equal(computed(module, given), np.asarray(joined(1, 15)(given)))


@pytest.mark.parametrize("shift", [1, -1, 3])
def test_what_is_rolled_is_not_padded(shift: int) -> None:
    given = array(8, 16)
    found = text_of(simple(lambda x: jnp.roll(x, shift, 1), ROW, given))
    assert "stablehlo.pad" not in found


def test_a_jaxlib_without_a_pass_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    sharding = NamedSharding(AXES, ROW)
    lowered = jax.jit(joined(2, 14), in_shardings=sharding).lower(array(6, 16))
    module = passes.bytecode_of(lowered.compiler_ir("stablehlo"))
    monkeypatch.setattr(passes, "PASSES", ("sdy-is-not-there",))
    with Partitioning(8, for_tpu=True) as partitioning:
        partitioning.give(module)
        found = partitioning.result()
    assert isinstance(found, Diagnostic)
    assert found.code is codes.NO_PROPAGATION


def test_bools_are_padded() -> None:
    given = array(8, 16) > 0
    module = simple(lambda x: jnp.concatenate([x[:, 1:], ~x[:, :1]], 1), ROW, given)
    assert "stablehlo.maximum" in text_of(module)
    wanted = np.concatenate([given[:, 1:], ~given[:, :1]], 1)
    np.testing.assert_array_equal(computed(module, given), wanted)


def test_along_a_whole_dimension_nothing_is_padded() -> None:
    given = array(8, 16)
    found = text_of(simple(joined(1, 15), PartitionSpec("a"), given))
    assert "stablehlo.pad" not in found


def loss(x: Any, at: Any) -> Any:
    return jnp.sum(jnp.take_along_axis(x, at[..., None], -1) ** 3)


def test_the_gradient_of_a_chosen_element_is_compared() -> None:
    x, at = array(4, 8, 16), array(4, 8, dtype=np.int32) + 3
    module = simple(jax.grad(loss), PartitionSpec("a"), x, at)
    found = text_of(module)
    assert "stablehlo.scatter" not in found
    assert "stablehlo.compare" in found
    np.testing.assert_array_equal(computed(module, x, at), jax.grad(loss)(x, at))


def test_an_index_out_of_bounds_sets_nothing() -> None:
    x, at = array(4, 8, 16), np.full((4, 8), 16, np.int32)
    module = simple(jax.grad(loss), PartitionSpec("a"), x, at)
    assert not computed(module, x, at).any()


def test_two_elements_of_a_row_stay_a_scatter() -> None:
    def chosen(x: Any, at: Any) -> Any:
        return jnp.sum(jnp.take_along_axis(x, at, -1) ** 3)

    x, at = array(4, 16), array(4, 2, dtype=np.int32) + 3
    module = simple(jax.grad(chosen), PartitionSpec("a"), x, at)
    assert "stablehlo.scatter" in text_of(module)


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=3),
    st.tuples(st.sampled_from((1, 2, 6, 8, 16)), st.sampled_from((1, 4, 8, 24))),
)
@settings(max_examples=40, deadline=None)
def test_what_no_sharding_pads_is_not_propagated_through(
    lengths: list[int], others: tuple[int, int]
) -> None:
    def put_together(*parts: Any) -> Any:
        return jnp.concatenate(parts, 1)

    shapes = [(others[0], size, others[1]) for size in lengths]
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    module = jax.jit(put_together).lower(*args).compiler_ir("stablehlo")
    with module.context:
        ops = passes.operations(module.operation)
        (found,) = (each for each in ops if each.name == "stablehlo.concatenate")
        shape = found.results[0].type.shape
        for ways in itertools.product((1, 2, 4, 8), repeat=3):
            fits = all(size % count == 0 for size, count in zip(shape, ways, strict=True))
            if math.prod(ways) <= 8 and fits and padded._is_padded(found, ways):
                assert padded._could_be_padded(found, 8)
