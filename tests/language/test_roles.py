from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.spec import AxisRule, LogicalAxes, PathRule, Pattern, Spec, axis_of
from shardspec.language.layer import Layer, PlacedRule
from shardspec.language.phases import with_roles
from tests.strategies import axis_rules

SOURCE = SourceFile("spec.yaml", "")
NAMES = ("embed", "embed'", "in:embed", "out:embed", "mlp", "mlp'")
plain = axis_rules(logical=("embed", "mlp"))
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)


def layer_of(rules: list[AxisRule], given_names: LogicalAxes) -> Layer:
    entry = PathRule(Pattern("**"), given_names)
    placed = tuple(PlacedRule(rule) for rule in rules)
    return Layer(SOURCE, rules=placed, matched={"params": (entry,)})


def load(text: str) -> tuple[Spec, tuple[Diagnostic, ...]]:
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    return spec, diagnostics


@given(st.lists(axis_rules(logical=NAMES), max_size=8), names)
def test_every_role_goes_by_its_own_rules_or_by_those_of_its_axis(
    rules: list[AxisRule], given_names: tuple[str, ...]
) -> None:
    made = [placed.rule for placed in with_roles(layer_of(rules, given_names)).rules]
    for name in given_names:
        mine = [rule for rule in rules if rule.logical_axis == name]
        of_axis = [rule for rule in rules if rule.logical_axis == axis_of(name)]
        expected = [replace(rule, logical_axis=name) for rule in mine or of_axis]
        assert [rule for rule in made if rule.logical_axis == name] == expected


@given(st.lists(plain, max_size=8), st.lists(st.sampled_from(("embed", "mlp")), max_size=3))
def test_without_roles_nothing_changes(rules: list[AxisRule], given_names: list[str]) -> None:
    layer = layer_of(rules, tuple(given_names))
    assert with_roles(layer) is layer


@given(st.lists(plain, max_size=8), names)
def test_the_plain_name_is_served_first(
    rules: list[AxisRule], given_names: tuple[str, ...]
) -> None:
    made = [placed.rule for placed in with_roles(layer_of(rules, given_names)).rules]
    for at, rule in enumerate(made):
        if axis_of(rule.logical_axis) != rule.logical_axis:
            before = [each for each in made[:at] if each.logical_axis == axis_of(rule.logical_axis)]
            assert before
            assert before[-1].mesh_axes == rule.mesh_axes


def test_a_role_is_as_long_as_its_axis() -> None:
    spec, diagnostics = load(
        "axes: {embed: {size: 2 * mlp, unit: 4, min_shard: 8}, mlp: 16}\n"
        "rules: [embed -> x]\nmesh: {x: 2}\n"
        "arrays: {a: \"f32[embed embed']\", b: 'f32[in:embed _=4]'}"
    )
    assert diagnostics == ()
    assert [param.shape for param in spec.params] == [(32, 32), (32, 4)]
    found = {axis.name: (axis.size, axis.unit, axis.min_shard) for axis in spec.logical_axes}
    assert found["embed'"] == found["in:embed"] == found["embed"] == (32, 4, 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("axes: {embed: 2 * q}\nparams: {a: embed embed'}", "`embed` needs that of `q`"),
        ("axes: {embed: {size: 8, unit: 3}}\nparams: {a: embed embed'}", "units of 3"),
        ('mesh: {"a\'": 2}', "`a'` is no name"),
        ("mesh: {'a:b': 2}", "`a:b` is no name"),
        ('rules: [embed -> "x\'"]', "expected"),
    ],
)
def test_what_is_wrong_is_said_once(text: str, said: str) -> None:
    spec, diagnostics = load(text)
    found = (*diagnostics, *pipeline.findings(spec, []).shown)
    assert len([each for each in found if said in each.message]) == 1
