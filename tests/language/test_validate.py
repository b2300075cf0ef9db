from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.language.validate import fields_at, validate
from shardspec.language.yaml_text.reader import read_yaml


def faults(text: str) -> list[tuple[str, str]]:
    """Return code and marked text of what is wrong with the shape of a document."""
    reading, _ = read_yaml(SourceFile("s.yaml", text))
    assert reading is not None
    _, diagnostics, _ = validate(reading)
    return [(d.code.name, d.primary.span.text if d.primary else "") for d in diagnostics]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rulse: []", [("unknown-key", "rulse")]),
        ("axes: {a: {sise: 3}}", [("unknown-key", "sise")]),
        ("axes: {a: {unit: 0}}", [("wrong-type", "0")]),
        ("axes: [a]", [("wrong-type", "[a]")]),
        ("axes: {a: [1]}", [("wrong-type", "[1]")]),
        ("axes: {a: true}", [("wrong-type", "true")]),
        ("mesh: {a: 1.5, b: 2}", [("wrong-type", "1.5")]),
        ("targets: {t: {}}", [("wrong-type", "t")]),
        ("targets: {t: {mesh: x}}", [("wrong-type", "x")]),
        ("targets: {t: 5}", [("wrong-type", "5")]),
        ("rules: [a -> b, 5, {at: end}]", [("wrong-type", "5"), ("wrong-type", "{at: end}")]),
        ("rules: a -> b", [("wrong-type", "a -> b")]),
        ("params: {x: [a, b]}", [("wrong-type", "[a, b]")]),
        ("overrides: [{path: 5}]", [("wrong-type", "5")]),
        ("drop: [a, 5]", [("wrong-type", "5")]),
        ("policy: {indivisible: maybe}", [("wrong-type", "maybe")]),
        ("lints: {x: fatal}", [("wrong-type", "fatal")]),
        ("shardspec: 2", [("version", "2")]),
        ("shardspec: '1'", [("wrong-type", "'1'")]),
        ("shardspec: 1\nextends: t5x/1d\nmanifest: gpt2", []),
    ],
)
def test_each_fault_stands_where_it_is(text: str, expected: list[tuple[str, str]]) -> None:
    assert faults(text) == expected


def test_all_faults_at_once_and_the_rest_is_kept() -> None:
    text = "rulse: []\naxes: {a: {unit: 0}, b: 4}\nrules: [5, a -> b]\nmesh: {b: 2}"
    reading, _ = read_yaml(SourceFile("s.yaml", text))
    assert reading is not None
    document, diagnostics, faulty = validate(reading)
    assert len(diagnostics) == 3
    assert document.axes["b"].size == "4"
    assert [rule.rule for rule in document.rules] == ["", "a -> b"]
    assert faulty == {("rules", 0)}
    assert document.mesh == {"b": "2"}


def whole(text: str) -> list[Diagnostic]:
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    return [*diagnostics, *pipeline.findings(spec, pipeline.compile_plans(spec)).shown]


@pytest.mark.parametrize(
    "text",
    [
        "mesh: {a: 1.5}\nrules: [x -> a]\narrays: {k: 'f32[x=8]'}",
        "hardware: 8 cpu\nmesh: {a: [], b: rest}\nrules: [x -> a]\narrays: {k: 'f32[x=8]'}",
        "mesh: {a: 2}\nrules: [[x], x -> a]\narrays: {k: 'f32[x=8]'}",
        "mesh: {a: 2}\nrules: [x -> a]\noverrides: [{path: [k], axes: x}]\narrays: {k: 'f32[x=8]'}",
    ],
    ids=["size", "size of a machine", "rule", "override"],
)
def test_a_fault_has_no_consequences(text: str) -> None:
    assert [d.code.name for d in whole(text)] == ["wrong-type"]


@pytest.mark.parametrize(
    "text", ['rules: ["\\0"]', 'mesh: {a: "\\0"}', 'overrides: [{path: "\\0", axes: a}]']
)
def test_the_stand_in_cannot_be_written(text: str) -> None:
    """A document that holds the placeholder itself does not get away with it."""
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    assert diagnostics or spec.overrides


def test_an_unquoted_comma_is_explained() -> None:
    text = "overrides: [{path: k, spec: (none, model)}]"
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    (first, *_) = diagnostics
    assert first.primary is not None
    assert first.primary.span.text == "(none, model)"
    assert "quote what holds a comma" in (first.help or "")


def test_fields_at() -> None:
    assert "rules" in fields_at(())
    assert fields_at(("axes", "embed")) == (
        "size",
        "unit",
        "parts",
        "interleaved",
        "min_shard",
        "doc",
    )
    assert "rules" in fields_at(("params",))


def test_axes_in_a_list_are_told_how_a_mapping_leaves_sizes_open() -> None:
    text = "shardspec: 1\naxes: {}\nmesh: {{data: 2}}\nrules: [batch -> data]\n"
    _, (first, *_) = pipeline.load_text(text.format("[batch, embed]"), "s.yaml")
    assert "`axes: {batch: null, embed: null}`" in (first.help or "")
    spec, diagnostics = pipeline.load_text(text.format("{batch: null, embed: null}"), "s.yaml")
    assert spec is not None
    assert not diagnostics
