from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.ir.plan import Kind, ParamSharding, divides
from shardspec.ir.spec import (
    AxisRule,
    Mesh,
    MeshAxis,
    Override,
    Param,
    PathRule,
    Pattern,
    Spec,
    StatePolicy,
    Target,
)
from shardspec.report.plan import Plan
from shardspec.report.state_text import reason
from shardspec.resolve.resolver import array_resolver, resolve
from shardspec.resolve.state import (
    Relation,
    StateResolver,
    derive,
    distinct,
    readings_of,
    state_resolver,
    unowned,
)
from tests import strategies as our

MESH = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))
RULES = (
    AxisRule("batch", ("data",)),
    AxisRule("embed", ("data",)),
    AxisRule("mlp", ("model",)),
    AxisRule("layers", ()),
)


def spec_of(policy: StatePolicy | None = None, **more: object) -> Spec:
    target = Target("here", MESH)
    return Spec(
        SourceFile("spec.yaml", ""), axis_rules=RULES, targets=(target,), state=policy, **more
    )


def owner_of(names: str, *sizes: int, spec: Spec | None = None) -> ParamSharding:
    spec = spec or spec_of()
    axes = tuple(None if name == "_" else name for name in names.split())
    return resolve(spec, spec.targets[0], [Param("w", sizes, "bf16", axes)]).arrays[0]


def state(*sizes: int, path: str = "mu/w") -> Param:
    return Param(path, sizes, "f32")


def axes_of(found: object) -> list[tuple[str, ...]]:
    return [dim.mesh_axes for dim in found.dims]


@pytest.mark.parametrize(
    ("names", "sizes", "shape", "relation", "axes"),
    [
        ("embed mlp", (8, 16), (8, 16), Relation.SAME, [("data",), ("model",)]),
        ("embed mlp", (8, 16), (16,), Relation.REDUCED, [("model",)]),
        ("embed mlp", (8, 16), (8,), Relation.REDUCED, [("data",)]),
        ("embed mlp", (8, 16), (1, 16), Relation.REDUCED, [(), ("model",)]),
        ("layers embed mlp", (4, 8, 16), (4, 16), Relation.REDUCED, [(), ("model",)]),
        ("embed mlp", (8, 16), (), Relation.SCALAR, []),
        ("embed mlp", (8, 16), (1,), Relation.PLACEHOLDER, [()]),
        ("embed mlp", (8, 16), (1, 1), Relation.PLACEHOLDER, [(), ()]),
        ("embed mlp", (8, 16), (3,), Relation.UNRELATED, [()]),
        ("embed mlp", (8, 16), (8, 8), Relation.UNRELATED, [(), ()]),
        ("embed mlp", (8, 16), (16, 8), Relation.UNRELATED, [(), ()]),
        ("embed mlp", (8, 16), (10, 8, 16), Relation.STACKED, [(), ("data",), ("model",)]),
        ("embed", (8,), (8, 8), Relation.UNRELATED, [(), ()]),
        ("embed mlp", (8, 8), (8,), Relation.AMBIGUOUS, [()]),
        ("layers _", (8, 8), (8,), Relation.REDUCED, [()]),
        ("embed", (1,), (1,), Relation.SAME, [()]),
    ],
)
def test_shapes(
    names: str, sizes: tuple[int, ...], shape: tuple[int, ...], relation: Relation, axes: list
) -> None:
    found = derive(owner_of(names, *sizes), state(*shape))
    assert found.relation is relation
    assert axes_of(found) == axes


def test_the_field_settles_what_the_shape_does_not() -> None:
    owner = owner_of("embed mlp", 8, 8)
    assert axes_of(derive(owner, state(8), "v_row")) == [("data",)]
    assert axes_of(derive(owner, state(8), "v_col")) == [("model",)]
    assert axes_of(derive(owner, state(8), "param_states", ("v_col",))) == [("model",)]
    assert axes_of(derive(owner, state(8), "mu", ("1",))) == [("model",)]
    assert derive(owner, state(8), "mu").relation is Relation.AMBIGUOUS
    assert derive(owner, state(8), "mu", ("2",)).relation is Relation.AMBIGUOUS


def test_a_field_whose_rule_does_not_fit_the_shape_settles_nothing() -> None:
    owner = owner_of("layers embed mlp", 8, 8, 16)
    assert derive(owner, state(8, 16), "v_row").relation is Relation.AMBIGUOUS


@st.composite
def owners(draw: st.DrawFn) -> tuple[ParamSharding, Mesh]:
    spec, array = draw(our.specs()), draw(our.params(repeats=False))
    target = spec.targets[0]
    return resolve(spec, target, [array]).arrays[0], target.mesh


@st.composite
def cases(draw: st.DrawFn) -> tuple[ParamSharding, Mesh, tuple[int, ...]]:
    """A parameter, and the shape of a state of it: the same, reduced, stacked or any."""
    owner, mesh = draw(owners())
    shape: list[int] = []
    for size in owner.param.shape:
        shape += draw(st.sampled_from(([size], [size], [], [1])))
    if draw(st.booleans()):
        shape.insert(draw(st.integers(0, len(shape))), draw(our.dim_sizes))
    return owner, mesh, tuple(shape)


FIELDS = st.tuples(st.sampled_from(("mu", "v_row", "v_col")), st.sampled_from(((), ("0",), ("1",))))


@given(cases(), FIELDS)
def test_once_divides_and_subset(
    case: tuple[ParamSharding, Mesh, tuple[int, ...]], field: tuple[str, tuple[str, ...]]
) -> None:
    owner, mesh, shape = case
    found = derive(owner, state(*shape), *field)
    dims = found.dims
    assert tuple(dim.size for dim in dims) == shape
    used = [axis for dim in dims for axis in dim.mesh_axes]
    assert len(used) == len(set(used))
    assert set(used) <= set(mesh.names)
    given_axes = {dim.mesh_axes for dim in owner.dims} | {()}
    for dim in dims:
        assert dim.mesh_axes in given_axes
        assert divides(dim.ways, dim.size or 0) or not all(each.is_even for each in owner.dims)


@given(owners())
def test_same_shape(case: tuple[ParamSharding, Mesh]) -> None:
    owner, _ = case
    found = derive(owner, state(*owner.param.shape))
    assert found.relation is Relation.SAME
    assert found.dims == owner.dims


@given(cases())
def test_a_reading_is_one_of_shapes_and_one_of_order(
    case: tuple[ParamSharding, Mesh, tuple[int, ...]],
) -> None:
    owner, _, shape = case
    for reading in readings_of(shape, owner.param.shape):
        places = [place for place in reading if place is not None]
        assert places == sorted(set(places))
        for size, place in zip(shape, reading, strict=True):
            assert place is None or size in (1, owner.param.shape[place])


@given(cases())
def test_ambiguous_exactly_where_answers_differ(
    case: tuple[ParamSharding, Mesh, tuple[int, ...]],
) -> None:
    owner, _, shape = case
    found = derive(owner, state(*shape))
    answers = distinct(owner, shape, readings_of(shape, owner.param.shape))
    if found.relation is Relation.AMBIGUOUS:
        assert len(answers) > 1
        assert found.readings == answers
        assert found.is_replicated
    elif found.relation in (Relation.REDUCED, Relation.STACKED):
        assert len(answers) == 1


def resolver(
    owner: ParamSharding, policy: StatePolicy | None = None, **more: object
) -> StateResolver:
    spec = spec_of(policy, **more)
    return state_resolver(array_resolver(spec, spec.targets[0]), [owner])


def test_zero_splits_what_is_the_parameter_and_nothing_else() -> None:
    owner = owner_of("layers mlp", 8, 16)
    found = resolver(owner, StatePolicy("zero1"))
    assert axes_of(found.resolve(state(8, 16), owner, "mu")) == [("data",), ("model",)]
    assert axes_of(found.resolve(state(16), owner, "v_col")) == [("model", "data")]
    assert axes_of(found.resolve(state(1), owner, "v")) == [()]
    assert axes_of(found.resolve(state(8), None)) == [()]
    assert axes_of(found.resolve(state(6, 6), owner, "statistics")) == [(), ()]
    assert found.gradient(owner) == owner.dims
    assert resolver(owner, StatePolicy("zero2")).gradient(owner)[0].mesh_axes == ("data",)


def test_an_entry_speaks_of_state_if_it_does_not_match_the_parameter() -> None:
    owner = owner_of("embed mlp", 8, 8)
    entries = (
        PathRule(Pattern("**/w"), ("layers", "layers")),
        PathRule(Pattern("row/**"), ("mlp",)),
    )
    found = resolver(owner, path_rules=entries)
    assert found.resolve(state(8, path="row/w"), owner, "row").relation is Relation.OWN
    assert axes_of(found.resolve(state(8, path="row/w"), owner, "row")) == [("model",)]
    assert found.resolve(state(8, 8), owner, "mu").relation is Relation.SAME


def test_an_override_beats_all_and_is_not_split_further() -> None:
    owner = owner_of("embed mlp", 8, 16)
    override = Override(Pattern("nu/w"), partition=((), ("model",)), because="test")
    other = Override(Pattern("nothing"), partition=((), ("model",)), because="test")
    found = resolver(owner, StatePolicy("zero1"), overrides=(other, override))
    stated = found.resolve(state(8, 16, path="nu/w"), owner, "nu")
    assert axes_of(stated) == [(), ("model",)]
    attempts = [attempt for dim in stated.dims for attempt in dim.attempts]
    assert [(each.kind, each.position) for each in attempts] == [(Kind.STATED, 1)] * 2
    assert axes_of(found.resolve(state(8, 16), owner, "mu")) == [("data",), ("model",)]


def test_entries_that_name_parameters_do_not_name_arrays_of_no_parameter() -> None:
    rule = PathRule(Pattern("**"), ("embed", "mlp"))
    spec = spec_of(path_rules=(rule,))
    owner = resolve(spec, spec.targets[0], [Param("w", (8, 16))]).arrays[0]
    found = state_resolver(array_resolver(spec, spec.targets[0]), [owner])
    assert found.resolve(Param("0/coeffs", (3,)), None).relation is Relation.UNOWNED


def test_names_of_its_own_count_where_they_are_new_and_fit() -> None:
    owner = owner_of("embed mlp", 8, 16)
    found = resolver(owner)
    named = dataclasses.replace(state(8, 16), logical_axes=("mlp", "embed"))
    assert axes_of(found.resolve(named, owner, "mu")) == [("model",), ("data",)]
    boxed = dataclasses.replace(state(16), logical_axes=("embed", "mlp"))
    assert axes_of(found.resolve(boxed, owner, "v_col")) == [("model",)]
    too_many = dataclasses.replace(state(16), logical_axes=("mlp", "embed"))
    assert axes_of(found.resolve(too_many, owner, "v_col")) == [("model",)]


REASONS = [
    ((8, 16), "mu", "mu of w: same shape, its sharding"),
    ((16,), "v_col", "v_col of w without dim 0: its sharding in the others"),
    ((1, 16), "m", "m of w without dim 0: its sharding in the others"),
    ((5, 8, 16), "memory", "memory of w and 1 more dim: its sharding, the rest whole"),
    ((), "nu", "nu of w: scalar, replicated"),
    ((1,), "v", "v of w: placeholder of 1 element, replicated"),
    ((6, 6), "statistics", "statistics of w: none of its dimensions, replicated"),
]


@pytest.mark.parametrize(("shape", "field", "text"), REASONS)
def test_reasons(shape: tuple[int, ...], field: str, text: str) -> None:
    owner, spec = owner_of("embed mlp", 8, 16), spec_of()
    plan = Plan(spec, spec.targets[0], (derive(owner, state(*shape), field),))
    assert reason(plan["mu/w"], plan) == text
    assert text in plan.explain("mu/w")
    assert text in str(plan)


def test_what_a_plan_says_of_itself() -> None:
    owner, spec = owner_of("layers _", 6, 16), spec_of(StatePolicy("zero1", ("model",)))
    arrays = state_resolver(array_resolver(spec, spec.targets[0]), [owner])
    found = arrays.resolve(state(6, 10), owner_of("layers _", 6, 10), "mu")
    plan = Plan(spec, spec.targets[0], (found, unowned(Param("count", (), "s32"))))
    assert list(plan) == ["mu/w", "count"]
    assert plan.per_device_bytes == plan.memory().bytes == 6 * 10 * 4 + 4
    assert "zero1: no dimension is divided by model=4" in plan.explain("mu/w")
    assert str(plan).endswith("244 B of state per device")
    with pytest.raises(KeyError, match="did you mean `mu/w`"):
        plan["mu/v"]
