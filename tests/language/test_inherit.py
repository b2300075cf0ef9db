from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Spec

BASE = """\
axes: {a: 4, b: 8}
rules: [a -> x, b -> x | y, c -> y]
params: {"**/k": a b}
lints: {unmatched-pattern: allow}
"""


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a parent, which is also the current one."""
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def child(text: str) -> tuple[Spec, tuple[Diagnostic, ...]]:
    spec, diagnostics = pipeline.load_text(f"extends: ./base.yaml\n{text}", "child.yaml")
    assert spec is not None
    return spec, diagnostics


def rules(text: str) -> list[str]:
    spec, diagnostics = child(text)
    assert diagnostics == ()
    return [str(rule) for rule in spec.axis_rules]


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["a -> x", "b -> x", "b -> y", "c -> y"]),
        ("rules: [b -> none]", ["a -> x", "b -> none", "c -> y"]),
        ("rules: [d -> y]", ["a -> x", "b -> x", "b -> y", "c -> y", "d -> y"]),
        ("rules: [c -> x, a -> y | x]", ["a -> y", "a -> x", "b -> x", "b -> y", "c -> x"]),
        ("drop: [b]", ["a -> x", "c -> y"]),
        ("drop: [b]\nrules: [b -> y]", ["a -> x", "c -> y", "b -> y"]),
        ("rules: [{rule: d -> y, at: start}]", ["d -> y", "a -> x", "b -> x", "b -> y", "c -> y"]),
        (
            "rules: [{rule: d -> y, at: before b}]",
            ["a -> x", "d -> y", "b -> x", "b -> y", "c -> y"],
        ),
        (
            "rules: [{rule: d -> y, at: after b}]",
            ["a -> x", "b -> x", "b -> y", "d -> y", "c -> y"],
        ),
        ("rules: [{rule: a -> y, at: end}]", ["b -> x", "b -> y", "c -> y", "a -> y"]),
        (
            "rules: [{rule: d -> y, at: start}, {rule: e -> x, at: start}]",
            ["d -> y", "e -> x", "a -> x", "b -> x", "b -> y", "c -> y"],
        ),
    ],
)
def test_where_rules_go(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    ("text", "marked", "hint"),
    [
        ("drop: [q]", "q", "axes with rules"),
        ("rules: [{rule: d -> y, at: before q}]", "q", "axes with rules"),
        ("rules: [{rule: d -> y, at: after cc}]", "cc", "`c`"),
    ],
)
def test_places_that_are_not_there(text: str, marked: str, hint: str) -> None:
    _, (diagnostic,) = child(text)
    assert diagnostic.code.name == "bad-place"
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.text == marked
    assert hint in (diagnostic.help or "")


@pytest.mark.usefixtures("family")
def test_other_sections() -> None:
    spec, diagnostics = child(
        'axes: {a: 16}\nparams: {"**/q": a}\nlints: {unmatched-pattern: warn}'
    )
    assert diagnostics == ()
    assert {axis.name: axis.size for axis in spec.logical_axes} == {"a": 16, "b": 8}
    assert [str(rule.pattern) for rule in spec.path_rules] == ["**/q", "**/k"]
    assert [str(level.severity) for level in spec.lint_levels] == ["warning"]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ('rules: ["* -> y"]', ["* -> y"]),
        ('rules: [b -> y, "* -> y | x", c -> y]', ["* -> y", "* -> x"]),
        ('drop: ["*"]', []),
        ("rules: [b -> y]", ["* -> x"]),
    ],
)
def test_rules_for_what_nothing_names(own: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text('mesh: {x: 2, y: 2}\nrules: [a -> x, "* -> x"]\n')
    (tmp_path / "child.yaml").write_text(f"extends: ./parent.yaml\n{own}\n")
    spec, _ = pipeline.load_path(str(tmp_path / "child.yaml"))
    assert spec is not None
    assert [str(rule) for rule in spec.any_rules] == expected
    assert "*" not in {rule.logical_axis for rule in spec.axis_rules}


def test_left_to_right_then_the_document(family: Path) -> None:
    (family / "two.yaml").write_text("rules: [a -> y]\naxes: {a: 5}\n", encoding="utf-8")
    text = "extends: [./base.yaml, ./two.yaml]\nrules: [c -> x]"
    spec, diagnostics = pipeline.load_text(text, "child.yaml")
    assert spec is not None
    assert diagnostics == ()
    assert [str(r) for r in spec.axis_rules] == ["a -> y", "b -> x", "b -> y", "c -> x"]
    assert next(axis.size for axis in spec.logical_axes if axis.name == "a") == 5


def test_a_finding_in_a_parent_says_who_pulled_it_in(family: Path) -> None:
    (family / "base.yaml").write_text("rules: [a => b]\n", encoding="utf-8")
    _, (diagnostic,) = child("")
    assert diagnostic.primary is not None
    source = diagnostic.primary.span.source
    assert source.name == "base.yaml"
    assert str(source.included_from) == "child.yaml:1:10"
