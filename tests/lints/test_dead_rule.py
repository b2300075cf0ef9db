from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.spec import AxisRule, LogicalAxis, Param, Spec, Target
from shardspec.lints.checks.dead_rule import check
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import dead_rules
from shardspec.resolve.resolver import array_resolver
from tests import strategies
from tests.lints.findings_of import findings_of, marked

LOGICAL = ("embed", "mlp")
MESH = ("data", "fsdp", "tensor")


@st.composite
def crowded_specs(draw: st.DrawFn) -> Spec:
    """Few axes and many rules, so that some are dead."""
    meshes = draw(st.lists(strategies.meshes(MESH), min_size=1, max_size=3))
    rules = strategies.rule_lists(logical=LOGICAL, mesh=(*MESH, strategies.ABSENT))
    units = draw(st.dictionaries(st.sampled_from(LOGICAL), st.sampled_from((2, 4)), max_size=2))
    return Spec(
        SourceFile("spec.yaml", ""),
        logical_axes=tuple(LogicalAxis(name, None, unit) for name, unit in units.items()),
        axis_rules=draw(rules),
        policy=replace(draw(strategies.policies), whole_below=None),
        targets=tuple(Target(f"t{i}", mesh) for i, mesh in enumerate(meshes)),
    )


arrays = st.lists(
    st.tuples(st.sampled_from((*LOGICAL, None)), strategies.dim_sizes), max_size=4
).map(
    lambda dims: Param("k", tuple(size for _, size in dims), "f32", tuple(axis for axis, _ in dims))
)


def taken_rules(spec: Spec, array: Param, on: Target) -> list[int]:
    """Return the positions of the rules that place the dimensions of an array."""
    dims = array_resolver(spec, on).resolve(array).dims
    taken = [dim.taken.rule for dim in dims if dim.taken is not None]
    return [at for at, rule in enumerate(spec.axis_rules) if any(rule is each for each in taken)]


@given(crowded_specs(), st.lists(arrays, min_size=1, max_size=8))
def test_dead(spec: Spec, many: list[Param]) -> None:
    dead = set(dead_rules(spec))
    target(float(len(dead)), label="dead rules")
    for each in spec.targets:
        for array in many:
            assert not dead & set(taken_rules(spec, array, each))


@given(crowded_specs(), st.lists(arrays, min_size=1, max_size=8))
def test_dead_without_targets_is_dead_on_every_mesh(spec: Spec, many: list[Param]) -> None:
    dead = set(dead_rules(replace(spec, targets=())))
    for each in spec.targets:
        for array in many:
            assert not dead & set(taken_rules(spec, array, each))


@given(crowded_specs())
def test_alive(spec: Spec) -> None:
    dead = set(dead_rules(spec))
    for position, rule in enumerate(spec.axis_rules):
        if position not in dead and set(rule.mesh_axes) <= spec.mesh_axis_names:
            assert any(is_taken_by_some_array(spec, position, each) for each in spec.targets)


def is_taken_by_some_array(spec: Spec, position: int, on: Target) -> bool:
    """Say whether a rule is taken where other dimensions hold all mesh axes but its own.

    Of one that takes what fits, any one of its own is enough.
    """
    rule = spec.axis_rules[position]
    ways = [(axis,) for axis in rule.mesh_axes] if rule.in_part else [rule.mesh_axes]
    return any(is_taken_with(axes, spec, position, on) for axes in ways)


def is_taken_with(free: tuple[str, ...], spec: Spec, position: int, on: Target) -> bool:
    rule = spec.axis_rules[position]
    others = [axis for axis in on.mesh.axes if axis.name not in free]
    holders = tuple(AxisRule(f"only-{axis.name}", (axis.name,), -9) for axis in others)
    crowded = replace(spec, axis_rules=(*holders, *spec.axis_rules))
    size = 4 * on.mesh.device_count  # 4 is the largest unit
    array = Param(
        "k",
        (size, *(axis.size for axis in others)),
        "f32",
        (rule.logical_axis, *(holder.logical_axis for holder in holders)),
    )
    return position + len(holders) in taken_rules(crowded, array, on)


@given(crowded_specs())
def test_the_shadow_is_an_earlier_rule_that_is_not_dead_itself(spec: Spec) -> None:
    found = dead_rules(spec)
    for position, shadows in found.items():
        assert shadows
        for shadow in shadows:
            assert shadow < position
            assert shadow not in found
            names = {spec.axis_rules[each].logical_axis for each in (position, shadow)}
            assert len(names) == 1


MESHES = "targets: {a: {mesh: {x: 2, y: 4}}, b: {mesh: {x: 8, z: 2}}}\n"


@pytest.mark.parametrize(
    ("rules", "marks"),
    [
        ("[q -> x | y]", []),
        ("[q -> x | x]", ["x", "x"]),
        ("[q -> none, q -> x]", ["x", "none"]),
        ("[q -> none, r -> x]", []),
        ("[q -> x | none]", []),
        ("[q -> none | none]", ["none", "none"]),
        ("['q -> (x, y) | x']", []),
        ("['q -> x | (x, y)']", ["(x, y)", "x"]),
        ("['q -> (x, y) | (y, x)']", ["(y, x)", "(x, y)"]),
        ("['q -> y | (x, y)']", []),  # on b it is x
        ("['q -> (x, y) | (x, z)']", []),
        ("['q -> (y, z) | (x, y, z)']", ["(x, y, z)", "(y, z)"]),
        ("['q -> (y, z) | y | z']", ["y", "(y, z)", "z", "(y, z)"]),
        ("[q -> y | z, 'q -> (y, z)']", ["(y, z)", "y", "z"]),
        ("['q, r -> x | x']", ["x", "x"]),
        ("['q -> x', 'q, r -> x']", ["x", "x"]),
        ("['q -> x @ 1', 'q -> x']", ["x", "x"]),
    ],
)
def test_marks(rules: str, marks: list[str]) -> None:
    text = f"{MESHES}rules: {rules}\naxes: {{q: 8, r: 8}}\n"
    found = findings_of(text, only="dead-rule")
    assert [mark for each in found for mark in marked(each)] == marks


def test_names_of_a_list_are_one_finding() -> None:
    text = "mesh: {x: 2, y: 2}\naxes: {q: 8, r: 8}\nrules: ['q, r -> x | (x, y)']"
    (found,) = findings_of(text, only="dead-rule")
    assert "`q, r -> (x, y)` can never fire on target `default`: `x` before it" in found.message
    found_apart = findings_of(text.replace("['q", "[r -> none, 'q"), only="dead-rule")
    assert [each.message.partition(" can ")[0] for each in found_apart] == [
        "`r -> x`",
        "`q -> (x, y)`",
        "`r -> (x, y)`",
    ]


def test_the_help_works() -> None:
    text = "mesh: {x: 2, y: 2}\naxes: {q: 8}\nrules: ['q -> x | (x, y)']"
    (found,) = findings_of(text, only="dead-rule")
    assert found.help == "put `(x, y)` before `x`, or remove it"
    assert findings_of(text.replace("x | (x, y)", "(x, y) | x"), only="dead-rule") == ()


def test_the_help_for_priorities_works() -> None:
    text = "mesh: {x: 2, y: 2}\naxes: {q: 8}\nrules: ['q -> (x, y) @ 3', 'q -> x @ 2']"
    (found,) = findings_of(text, only="dead-rule")
    assert found.notes == ("priority 2 comes before 3",)
    assert found.help == "give it a priority below `@ 2`, or remove it"
    assert findings_of(text.replace("@ 3", "@ 1"), only="dead-rule") == ()


def test_a_tuple_may_shrink_on_a_target() -> None:
    text = f"{MESHES}axes: {{q: 8}}\nrules: ['q -> (y, z)', 'q -> y']"
    (found,) = findings_of(text, only="dead-rule")
    assert found.notes == ("mesh axes that a target lacks drop out of its tuples",)


def test_without_targets() -> None:
    text = "axes: {q: 8}\nrules: [q -> x | none | y, 'r -> x | (x, y)', 's -> x | x']"
    found = findings_of(text, only="dead-rule")
    assert [marked(each)[0] for each in found] == ["y", "x"]
    assert found[0].message == "`q -> y` can never fire: `none` before it is final"


def test_a_faulty_rule_kills_no_other() -> None:
    text = "mesh: {x: 2}\naxes: {q: 8}\nrules: ['q => x', 'q -> x']"
    spec, faults = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    assert len(faults) == 1
    assert pipeline.findings(spec, pipeline.compile_plans(spec)).shown == ()


def test_rules_of_a_parent_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("rules: [q -> x | x]\n", encoding="utf-8")
    child = tmp_path / "spec.yaml"
    child.write_text("extends: ./base.yaml\nmesh: {x: 2}\naxes: {q: 8}\n", encoding="utf-8")
    spec, faults = pipeline.load_path(str(child))
    assert spec is not None
    assert faults == ()
    assert dead_rules(spec) == {1: (0,)}
    assert list(check(Context(spec, ()))) == []


def test_a_rule_behind_one_of_a_parent_is_reported() -> None:
    own, parent = SourceFile("spec.yaml", "x"), SourceFile("base.yaml", "none")
    before = AxisRule("q", (), span=Span(parent, 0, 4))
    rule = AxisRule("q", ("x",), span=Span(own, 0, 1))
    (found,) = check(Context(Spec(own, axis_rules=(before, rule)), ()))
    assert [label.span.source.name for label in found.labels] == ["spec.yaml", "base.yaml"]
