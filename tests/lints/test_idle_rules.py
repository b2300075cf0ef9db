"""Rules that fire for nothing, and fallbacks that are never tried."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.plan import Outcome
from shardspec.ir.spec import Param, Spec
from shardspec.lints.checks import fallback_never_reached, rule_without_array
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import idle_rules
from shardspec.resolve.resolver import resolve
from tests import strategies
from tests.lints.findings_of import found_by, marked

HEAD = (
    "targets: {a: {mesh: {data: 2, model: 4}}, b: {mesh: {data: 4, model: 2, far: 2}}}\n"
    "arrays: {q: 'f32[heads=8 kv=64 _=3]', w: 'f32[mlp=12]', e: 'f32[vocab=30 embed=64]'}\n"
    "axes: {batch: 64, length: 8}\n"
)
SEEN = "activations: {x: batch heads kv}\n"


@pytest.mark.parametrize(
    ("rules", "more", "marks"),
    [
        ("[heads -> model, kv -> model]", SEEN, ["model", "model"]),
        ("[heads -> model, kv -> model]", "", []),  # code may have activations
        ("[heads -> model, kv -> model | data]", SEEN, ["model", "model"]),
        ("[heads -> model, 'kv, vocab -> data']", SEEN, []),  # a list is one rule
        ("[kv -> model, heads -> data, length -> data]", SEEN, []),
        ("[batch -> data]", SEEN, []),
        ("[heads -> none, vocab -> model | data | none]", SEEN, []),  # `none` is meant
        ("['vocab -> (data, model) | data | none']", SEEN, []),
        ("[vocab -> model | data, embed -> none]", SEEN, []),  # 30 / 2 on b
        ("['mlp -> (data, model) | model']", SEEN, ["(data, model)"]),
        ("['mlp -> (data, model)']", SEEN, []),  # SHD301
        ("[vocab -> far]", SEEN, []),
    ],
)
def test_rules_that_fire_for_nothing(rules: str, more: str, marks: list[str]) -> None:
    found = found_by(rule_without_array, f"{HEAD}{more}rules: {rules}")
    assert [mark for each in found for mark in marked(each)] == marks


@pytest.mark.parametrize(("size", "lost"), [(1, None), (2, "transpose")])
def test_a_rule_that_loses_a_mesh_axis_of_size_1(size: int, lost: str | None) -> None:
    text = f"""
        mesh: {{fsdp: 8, transpose: {size}}}
        rules: [mlp -> transpose, 'embed -> (fsdp, transpose)', embed -> fsdp]
        arrays: {{experts: 'bf16[embed=4096 mlp=14336]'}}
        activations: {{x: _ _}}
        """
    findings = found_by(rule_without_array, textwrap.dedent(text))
    assert [f"always has `{lost}` before it" in each.message for each in findings] == (
        [True] if lost else []
    )


@pytest.mark.parametrize(
    ("rules", "marks"),
    [
        ("[mlp -> model | data]", ["data", "model"]),
        ("[mlp -> model, mlp -> data | none]", ["data", "model", "none", "model"]),
        ("[vocab -> model | data | none]", ["none", "data", "model"]),  # data where 4 is too much
        ("[mlp -> far | model]", []),
        ("[mlp -> model | far]", ["far", "model"]),
        ("[length -> model | data]", []),  # nothing has it
        ("[mlp -> none | data]", []),  # SHD214
        ("[mlp -> model | nowhere]", []),  # SHD201
    ],
)
def test_fallbacks_that_are_never_tried(rules: str, marks: list[str]) -> None:
    found = found_by(fallback_never_reached, f"{HEAD}rules: {rules}")
    assert [mark for each in found for mark in marked(each)] == marks


def test_what_one_target_shows_is_no_proof() -> None:
    spec, _ = pipeline.load_text(f"{HEAD}rules: [mlp -> model | data]")
    assert spec is not None
    plans = pipeline.compile_plans(spec, targets=spec.targets[:1])
    assert list(fallback_never_reached.check(Context(spec, plans))) == []


def test_the_fix_takes_the_fallback_out() -> None:
    (found,) = found_by(fallback_never_reached, f"{HEAD}rules: [mlp -> model | data]")
    assert found.fix is not None
    assert found.fix.title == "take out `| data`"
    (edit,) = found.fix.edits
    text = edit.span.source.text
    fixed = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert fixed.endswith("rules: [mlp -> model]")


def test_presets_are_left_in_peace() -> None:
    text = "extends: [t5x/1d]\nmesh: {data: 2, model: 4}\narrays: {q: 'f32[heads=8 kv=64]'}"
    assert found_by(fallback_never_reached, text) == []
    assert found_by(rule_without_array, f"{text}\nactivations: {{x: batch heads}}") == []


TEXT = "".join(f"{at:3}" for at in range(40))
SOURCE = SourceFile("spec.yaml", TEXT)


@given(strategies.specs(), st.lists(strategies.params(), min_size=1, max_size=4))
def test_what_is_idle_could_be_taken_out(spec: Spec, params: list[Param]) -> None:
    rules = tuple(
        replace(rule, span=Span(SOURCE, 3 * at, 3 * at + 2))
        for at, rule in enumerate(spec.axis_rules)
    )
    spec = replace(spec, source=SOURCE, axis_rules=rules)
    params = [replace(param, path=f"a{at}") for at, param in enumerate(params)]
    plans = tuple(resolve(spec, target, params) for target in spec.targets)
    for fate in idle_rules(Context(spec, plans)):
        assert not fate.outcomes[Outcome.TAKEN]
        kept = tuple(rule for rule in rules if rule.span != fate.rule.span)
        for plan in plans:
            without = resolve(replace(spec, axis_rules=kept), plan.target, params)
            assert [each.partition_spec for each in without.arrays] == [
                each.partition_spec for each in plan.arrays
            ]
