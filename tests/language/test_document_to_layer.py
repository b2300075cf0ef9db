from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Spec


def load(text: str) -> tuple[Spec, tuple[Diagnostic, ...]]:
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    return spec, diagnostics


def sound(text: str) -> Spec:
    spec, diagnostics = load(text)
    assert diagnostics == ()
    return spec


def codes(text: str) -> list[str]:
    return [diagnostic.code.name for diagnostic in load(text)[1]]


def test_rules_are_one_flat_list_with_a_span_each() -> None:
    spec = sound("rules:\n  - mlp, heads -> model | (replica, data)\n  - kv -> none")
    assert [str(rule) for rule in spec.axis_rules] == [
        "mlp -> model",
        "mlp -> (replica, data)",
        "heads -> model",
        "heads -> (replica, data)",
        "kv -> none",
    ]
    spans = [rule.span.text for rule in spec.axis_rules if rule.span]
    assert spans == ["model", "(replica, data)", "model", "(replica, data)", "none"]


def test_priorities_sort_and_ties_keep_order() -> None:
    spec = sound("rules: [a -> x @ 1, b -> x, c -> x @ -1, d -> x]")
    assert [rule.logical_axis for rule in spec.axis_rules] == ["c", "b", "d", "a"]


def test_names_and_patterns() -> None:
    spec = sound(
        "params: {'**/k': embed _, 're:.*/q': 'embed, heads'}\n"
        "overrides: [{match: 'x\\d', axes: a}, {path: y, spec: '(none, m)', because: z}]\n"
        "scan: {'l/**': layers@0}\nactivations: {r: 'batch, embed'}"
    )
    assert [str(rule.pattern) for rule in spec.path_rules] == ["**/k", "re:.*/q"]
    assert [rule.logical_axes for rule in spec.path_rules] == [("embed", None), ("embed", "heads")]
    assert spec.overrides[0].logical_axes == ("a",)
    assert spec.overrides[1].partition == ((), ("m",))
    assert spec.overrides[1].because == "z"
    assert spec.scans[0].axes == (("layers", 0),)
    assert spec.activations[0].logical_axes == ("batch", "embed")


def test_the_span_of_a_quoted_expression_is_exact() -> None:
    _, diagnostics = load("rules: [\"a => b\", 'a -> b c']")
    assert [d.primary.span.text for d in diagnostics if d.primary] == ["=>", "c"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rules: [a => b]", "syntax"),
        ("rules: [{rule: a -> b, at: beside c}]", "syntax"),
        ("axes: {a: 4 ** 2}", "syntax"),
        ("params: {x: a ->}", "syntax"),
        ("params: {'{': a}", "bad-pattern"),
        ("params: {'re:(': a}", "bad-pattern"),
        ("overrides: [{match: '(', axes: a}]", "bad-pattern"),
        ("overrides: [{path: a, spec: '[x]'}]", "syntax"),
        ("overrides: [{axes: a}]", "wrong-type"),
        ("overrides: [{}]", "wrong-type"),
        ("overrides: [{path: a}]", "wrong-type"),
        ("overrides: [{path: a, match: b, axes: c}]", "wrong-type"),
        ("overrides: [{path: a, axes: b, spec: (c)}]", "wrong-type"),
        ("scan: {a: layers}", "syntax"),
        ("hardware: 8 cpu", "wrong-type"),
        ("hardware: ''\nmesh: {a: 2}", "syntax"),
        ("axes: {none: 4}", "wrong-type"),
        ("axes: {a b: 4}", "wrong-type"),
        ("mesh: {2x: 4}", "wrong-type"),
        ("lints: {nope: warn}", "unknown-lint"),
        ("lints: {SH: warn}", "unknown-lint"),
        ("lints: {SHD8: warn}", "unknown-lint"),
        ("lints: {shd3: warn}", "unknown-lint"),
    ],
)
def test_each_fault_is_one_finding(text: str, code: str) -> None:
    assert codes(text) == [code]


def test_an_unread_rule_leaves_its_axes_replicated() -> None:
    spec, _ = load("rules: ['a, b => x', 'c -> x | ', '-> x', 'd e']")
    assert {rule.logical_axis for rule in spec.axis_rules if rule.is_none} == {"a", "b", "c", "d"}


def test_a_word_that_yaml_misreads_is_one_finding() -> None:
    assert codes("axes: {a: 1_0}\npolicy: {indivisible: no}") == ["yaml-trap", "yaml-trap"]


def test_lint_levels_by_name_and_code() -> None:
    spec = sound("lints: {indivisible: warn, SHD201: allow, SHD3: error, SHD: allow}")
    assert [(level.finding, str(level.severity)) for level in spec.lint_levels] == [
        ("indivisible", "warning"),
        ("SHD201", "allow"),
        ("SHD3", "error"),
        ("SHD", "allow"),
    ]


def test_the_start_of_codes_is_in_capitals() -> None:
    (fault,) = load("lints: {shd3: warn}")[1]
    assert fault.help == "did you mean `SHD3`?"


def test_axes_have_unit_and_least_shard() -> None:
    spec = sound("axes: {mlp: {size: 14336, unit: 64, min_shard: 128}, embed: 64}")
    assert [(axis.unit, axis.min_shard) for axis in spec.logical_axes] == [(64, 128), (1, 1)]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("rules: [batch -> (data, fsdp), embed -> fsdp]", "batch -> (data, fsdp)"),
        ("rules: [embed -> fsdp, batch -> (data, fsdp) | data]", "batch -> (data, fsdp) | data"),
        ("rules: [b -> (data,fsdp, x)  , c -> x]", "b -> (data,fsdp, x)"),
        ("rules: [c -> x, embed, mlp -> none]", "embed, mlp -> none"),
    ],
)
def test_a_tuple_in_a_flow_list_is_one_finding_with_quotes(text: str, whole: str) -> None:
    from shardspec.diagnostics.diagnostic import apply

    spec, diagnostics = pipeline.load_text(f"mesh: {{data: 2, fsdp: 4, x: 2}}\n{text}\n", "s.yaml")
    assert spec is not None
    found = [d for d in diagnostics if d.message.startswith("the comma ends the item")]
    assert [d.primary.span.text for d in found if d.primary] == [whole]
    assert found[0].help == f'between brackets, quote what holds a comma: `"{whole}"`'
    assert not any("fsdp)" in d.message for d in diagnostics)
    assert found[0].fix is not None
    assert found[0].fix.is_sure
    (edited,) = apply([found[0].fix]).texts.values()
    assert f'"{whole}"' in edited


@pytest.mark.parametrize(
    ("text", "whole", "help"),
    [
        (
            "mesh: {data: rest, model: submesh (4, 2, 2, 1)}",
            "submesh (4, 2, 2, 1)",
            "write `submesh 4x2x2x1`",
        ),
        ("mesh: {model: submesh (4,2, 2,1) , data: rest}", "submesh (4,2, 2,1)", "4x2x2x1"),
        (
            "mesh: {model: submesh (4, 2, 2, 1) @ ici, data: rest}",
            "submesh (4, 2, 2, 1) @ ici",
            "write `submesh 4x2x2x1 @ ici`",
        ),
        ("rules: [{rule: embed -> (data, model), at: first}]", "embed -> (data, model)", "braces"),
        ("overrides: [{path: k, spec: (none, model)}]", "(none, model)", "between braces, quote"),
    ],
)
def test_a_tuple_in_a_flow_is_one_value(text: str, whole: str, help: str) -> None:
    """Whatever the section: nothing is said of what the commas made of it for YAML."""
    spec, diagnostics = pipeline.load_text(f"hardware: tpu v5p 4x4x8\n{text}\n", "s.yaml")
    torn = [d for d in diagnostics if d.message.startswith("the comma ends the")]
    assert [d.primary.span.text for d in torn if d.primary] == [whole]
    assert help in (torn[0].help or "")
    inside = torn[0].primary
    assert inside is not None
    for each in diagnostics:
        place = each.primary.span if each.primary else None
        assert (
            each is torn[0]
            or place is None
            or place.start <= inside.span.start
            or (place.start >= inside.span.end)
        ), each.message
    if "submesh" in whole and "@" not in whole:
        assert spec is not None
        axis = next(axis for axis in spec.targets[0].mesh.axes if axis.name == "model")
        assert axis.submesh == (4, 2, 2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lints: {dead-rule: (a, b, c)}", "`lints.dead-rule`: this should be `allow`"),
        ("mesh: {model: submesh (2, 2, 1), data: rest}", "`submesh 2x2x1` has 3 numbers"),
        ("params: {k: (embed, mlp)}", "expected a logical axis or `_`"),
        ("axes: {embed: (8, 8)}", "after `8`"),
        ("step: {mode: (a, b), program: []}", "`step.mode`: this should be `train`"),
        ("phases: {d: {rules: [{rule: a -> b, at: (start, end)}]}}", "expected `start`"),
    ],
)
def test_of_a_tuple_that_quotes_do_not_help_the_fault_alone_is_reported(
    text: str, message: str
) -> None:
    mesh = "" if text.startswith("mesh") else "mesh: {data: rest}\n"
    _, diagnostics = pipeline.load_text(f"hardware: tpu v5p 4x4x8\n{mesh}{text}\n", "s.yaml")
    faults = [d for d in diagnostics if "SHD0" in d.code.id or d.code.id == "SHD105"]
    assert len(faults) == 1
    assert message in faults[0].message


def test_commas_of_other_tools_are_left_to_them() -> None:
    from shardspec.diagnostics import SourceFile
    from shardspec.language.yaml_text.reader import read_yaml_value

    value = read_yaml_value(SourceFile("base.yml", "a: [f (x, y), z]"))
    assert value.root == {"a": ["f (x", "y)", "z"]}
    assert not value.faults


@pytest.mark.parametrize(
    "text",
    [
        "rules: ['batch -> (data']",
        "rules:\n  - batch -> (data\n  - embed -> fsdp)",
        "rules: [batch -> (data]",
        "rules: [batch -> (data, embed -> fsdp]",
        "axes: {a: (1, b: 2}",
    ],
)
def test_another_open_parenthesis_is_what_it_was(text: str) -> None:
    _, diagnostics = pipeline.load_text(f"mesh: {{data: 2, fsdp: 4}}\n{text}\n", "s.yaml")
    assert diagnostics
    assert not any("the comma ends" in d.message for d in diagnostics)
