from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.ir.plan import DimSharding
from shardspec.ir.spec import AxisRule, LogicalAxis, Mesh, MeshAxis, Spec, StatePolicy, Target
from shardspec.resolve.match import assign_axes, rule_table
from shardspec.resolve.state import extra_axes, split_further, state_axes
from tests import strategies as our

MESH = Mesh((MeshAxis("replica", 2), MeshAxis("data", 4), MeshAxis("model", 8)))

overs = st.lists(st.sampled_from((*our.MESH, our.ABSENT)), unique=True, max_size=3).map(tuple)


def _axes(units: dict[str, int]) -> list[LogicalAxis]:
    return [LogicalAxis(name, None, unit) for name, unit in units.items()]


@st.composite
def assigned(draw: st.DrawFn) -> tuple[tuple[DimSharding, ...], Mesh]:
    mesh, array = draw(our.meshes()), draw(our.params())
    table = rule_table(draw(our.rule_lists()), mesh, axes=_axes(draw(our.units)))
    return assign_axes(array.shape, array.logical_axes or (), table), mesh


def dims_of(*sizes: int, rules: tuple[tuple[str, str], ...] = (), unit: int = 1):
    names = tuple("abcd"[: len(sizes)])
    made = [AxisRule(name, (axis,)) for name, axis in rules]
    return assign_axes(sizes, names, rule_table(made, MESH, axes=_axes(dict.fromkeys(names, unit))))


def axes(dims: tuple[DimSharding, ...]) -> list[tuple[str, ...]]:
    return [dim.mesh_axes for dim in dims]


def test_the_first_dimension_that_divides_takes_them() -> None:
    assert axes(extra_axes(dims_of(6, 8), MESH, ("data",))) == [(), ("data",)]
    assert axes(extra_axes(dims_of(8, 8), MESH, ("data",))) == [("data",), ()]


def test_they_come_last_and_count_with_what_is_there() -> None:
    dims = dims_of(16, 8, rules=(("a", "model"),))
    assert axes(extra_axes(dims, MESH, ("data",))) == [("model",), ("data",)]
    assert axes(extra_axes(dims, MESH, ("replica",))) == [("model", "replica"), ()]


def test_axes_in_use_are_skipped_and_the_others_go_together() -> None:
    dims = dims_of(8, 8, rules=(("a", "data"),))
    assert axes(extra_axes(dims, MESH, ("replica", "data"))) == [("data", "replica"), ()]
    assert axes(extra_axes(dims_of(2, 6), MESH, ("replica", "data"))) == [(), ()]


def test_whole_units_stay_together() -> None:
    assert axes(extra_axes(dims_of(8, 16, unit=4), MESH, ("data",))) == [(), ("data",)]


def test_what_came_of_it() -> None:
    failed = split_further(dims_of(3), MESH, ("data",))
    assert failed.has_failed
    assert failed.mesh_axes == ("data",)
    none_left = split_further(dims_of(8, rules=(("a", "data"),)), MESH, ("data",))
    assert not none_left.has_failed
    assert none_left.mesh_axes == ()
    assert split_further(dims_of(6, 8), MESH, ("data",)).dim == 1


@given(assigned(), overs)
def test_once(found: tuple[tuple[DimSharding, ...], Mesh], over: tuple[str, ...]) -> None:
    dims, mesh = found
    used = [axis for dim in extra_axes(dims, mesh, over) for axis in dim.mesh_axes]
    assert len(used) == len(set(used))
    assert set(used) <= set(mesh.names)


@given(assigned(), overs)
def test_divides(found: tuple[tuple[DimSharding, ...], Mesh], over: tuple[str, ...]) -> None:
    dims, mesh = found
    for before, after in zip(dims, extra_axes(dims, mesh, over), strict=True):
        assert after.is_even or after == before


@given(assigned(), overs)
def test_idempotent(found: tuple[tuple[DimSharding, ...], Mesh], over: tuple[str, ...]) -> None:
    dims, mesh = found
    once = extra_axes(dims, mesh, over)
    assert extra_axes(once, mesh, over) == once


@st.composite
def divisible(draw: st.DrawFn) -> tuple[tuple[DimSharding, ...], Mesh]:
    """Return dimensions that most mesh axes divide."""
    mesh = Mesh(tuple(MeshAxis(name, draw(st.sampled_from((2, 3, 4)))) for name in our.MESH))
    sizes = draw(st.lists(st.sampled_from((72, 144, 288)), min_size=1, max_size=3))
    names = tuple(draw(st.sampled_from(our.LOGICAL)) for _ in sizes)
    return assign_axes(tuple(sizes), names, rule_table(draw(our.rule_lists()), mesh)), mesh


@given(divisible(), overs)
def test_inside(found: tuple[tuple[DimSharding, ...], Mesh], over: tuple[str, ...]) -> None:
    """Device by device, the elements of the new shard are among those of the old one."""
    dims, mesh = found
    pairs = zip(dims, extra_axes(dims, mesh, over), strict=True)
    changed = [(before, after) for before, after in pairs if before != after]
    assume(changed)
    for place in itertools.product(*(range(size) for size in mesh.sizes.values())):
        for before, after in changed:
            wide, narrow = _elements(before, mesh, place), _elements(after, mesh, place)
            assert set(narrow) <= set(wide)


def _elements(dim: DimSharding, mesh: Mesh, place: tuple[int, ...]) -> range:
    """Return the elements of a dimension on the device at `place` of the mesh."""
    at, number = dict(zip(mesh.names, place, strict=True)), 0
    for axis in dim.mesh_axes:
        number = number * mesh.sizes[axis] + at[axis]
    length = (dim.size or 0) // dim.ways
    return range(number * length, (number + 1) * length)


@given(assigned(), overs)
def test_more_axes_split_or_there_is_a_reason(
    found: tuple[tuple[DimSharding, ...], Mesh], over: tuple[str, ...]
) -> None:
    dims, mesh = found
    split = split_further(dims, mesh, over)
    assert (split.dims == dims) is (split.dim is None)
    if split.dim is not None:
        added = split.dims[split.dim].mesh_axes[len(dims[split.dim].mesh_axes) :]
        assert added == split.mesh_axes


def spec_of(policy: StatePolicy | None, *batch: tuple[str, ...]) -> Spec:
    rules = (AxisRule("embed", ("model",)), *(AxisRule("batch", axes) for axes in batch))
    return Spec(
        SourceFile("spec.yaml", ""), axis_rules=rules, targets=(Target("t", MESH),), state=policy
    )


@pytest.mark.parametrize(
    ("policy", "batch", "expected"),
    [
        (None, [("data",)], ()),
        (StatePolicy(), [("data",)], ()),
        (StatePolicy("zero1"), [("data",)], ("data",)),
        (StatePolicy("zero2"), [("pod", "replica", "data")], ("replica", "data")),
        (StatePolicy("zero1"), [("pod",), ("data",)], ("data",)),
        (StatePolicy("zero1"), [()], ()),
        (StatePolicy("zero1"), [], ()),
        (StatePolicy("zero1", ("model",)), [("data",)], ("model",)),
        (StatePolicy("zero1", ("pod", "data")), [], ("data",)),
        (StatePolicy("zero1", ("pod",)), [("data",)], ()),
    ],
)
def test_which_axes(policy: StatePolicy | None, batch: list, expected: tuple[str, ...]) -> None:
    assert state_axes(spec_of(policy, *batch), MESH) == expected
