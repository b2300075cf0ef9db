"""Gin files: the same statements as gin's own parser makes, without its imports and calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.gin import GinBinding, GinInclude, Statement, read_gin
from shardspec.foreign.values import Node


def read(text: str) -> tuple[Statement, ...]:
    found = read_gin(SourceFile("run.gin", text))
    assert not isinstance(found, Diagnostic), found
    return found


def plain(node: Node) -> Any:
    """Return a node as gin's parser gives it, tuples as lists."""
    if node.kind == "list":
        return [plain(item) for item in node.items]
    if node.kind == "mapping":
        return {plain(k): plain(v) for k, v in zip(node.keys, node.items, strict=True)}
    if node.kind in ("name", "call"):
        return ("ref", node.text, node.kind == "call")
    return {"text": node.text, "nothing": None}.get(node.kind, node.number)


names = st.sampled_from(("partitioning.PjitPartitioner", "a", "train/b.c", "x_1.y"))
values = st.recursive(
    st.sampled_from(("None", "True", "-2", "1.5", "'data'", '"a" "b"', "@f", "@s/m.f()", "%M"))
    | st.text("abc\\d'é", max_size=5).map(repr),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"({', '.join(each)})"),
        inner.map(lambda each: f"({each},)"),
        st.lists(st.tuples(st.sampled_from(("'k'", "2")), inner), max_size=2).map(
            lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
        ),
    ),
    max_leaves=8,
)
statements = st.one_of(
    st.tuples(names, values).map(lambda each: f"{each[0]}.argument = {each[1]}  # comment"),
    values.map(lambda value: f"MACRO = \\\n    {value}"),
    st.tuples(names, values).map(lambda each: f"{each[0]}:\n  first = {each[1]}\n\n  second = 2"),
    st.sampled_from(("import a.b", "from a import b", "include 'base.gin'", "", "# nothing")),
)


@given(st.lists(statements, max_size=5))
def test_same_as_gin(lines: list[str]) -> None:
    config_parser = pytest.importorskip("gin.config_parser")

    class Delegate(config_parser.ParserDelegate):  # type: ignore[misc, name-defined]
        def configurable_reference(self, name: str, evaluate: bool) -> Any:
            return ("ref", f"@{name}", evaluate)

        def macro(self, name: str) -> Any:
            return ("ref", f"%{name}", False)

    def lists(value: Any) -> Any:
        if isinstance(value, tuple) and value[:1] == ("ref",):
            return value
        if isinstance(value, list | tuple):
            return [lists(item) for item in value]
        if isinstance(value, dict):
            return {key: lists(item) for key, item in value.items()}
        return value

    text = "\n".join(lines) + "\n"
    expected: list[Any] = []
    for each in config_parser.ConfigParser(text, Delegate()):
        if isinstance(each, config_parser.BindingStatement):
            expected.append((each.scope, each.selector, each.arg_name, lists(each.value)))
        elif isinstance(each, config_parser.IncludeStatement):
            expected.append(each.filename)
    ours = [
        each.path
        if isinstance(each, GinInclude)
        else (each.scope, each.selector, each.argument, plain(each.value))
        for each in read(text)
    ]
    assert ours == expected


def test_places_are_exact() -> None:
    text = "A = 1\n\npartitioning.PjitPartitioner:\n  # é\n  num_partitions = 'é'  # é\n"
    second = read(text)[1]
    assert isinstance(second, GinBinding)
    assert second.span.text == "num_partitions"
    assert str(second.value.span) == "run.gin:5:20"
    assert second.function == "PjitPartitioner"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b =", "the end of the line"),
        ("a.b = [1,", "eof"),
        ("a.b = 1 2", "goes on after its value: `2`"),
        ("a.b = f(x)", "expected a value, and here is `f`"),
        ("a.b: 5", "expected the end of the line"),
        ("a.b = [" * 60 + "]" * 60, "expected a value"),
        ("a = " + "[" * 60 + "]" * 60, "nested more than"),
        ("'''", "eof"),
        ("a = $", "expected a value"),
        ("include 'a' 'b'.x", "goes on"),
    ],
)
def test_what_gin_would_not_read_is_one_finding(text: str, message: str) -> None:
    found = read_gin(SourceFile("run.gin", text))
    assert isinstance(found, Diagnostic)
    assert found.code.id == "SHD603"
    assert message in found.message


@given(st.text(st.sampled_from("a.=:@%/[](){},'\"#\n \t\\1-é\x00"), max_size=40))
def test_any_text_is_statements_or_a_finding(text: str) -> None:
    found = read_gin(SourceFile("run.gin", text))
    if isinstance(found, Diagnostic):
        assert all(0 <= label.span.start <= label.span.end <= len(text) for label in found.labels)
