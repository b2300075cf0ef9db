"""Each spelling of a list: one entry goes, and all others stand as they stood."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import Edit, SourceFile, Span
from shardspec.language.removal import (
    is_only_alternative,
    without_alternative,
    without_item,
    without_key,
)


def span_of(text: str, word: str, name: str = "s.yaml", *, last: bool = False) -> Span:
    start = text.rindex(word) if last else text.index(word)
    return Span(SourceFile(name, text), start, start + len(word))


def applied(edit: Edit | None) -> str | None:
    if edit is None:
        return None
    text = edit.span.source.text
    return text[: edit.span.start] + edit.text + text[edit.span.end :]


@pytest.mark.parametrize(
    ("text", "word", "left"),
    [
        ("a -> x | y", "y", "a -> x"),
        ("a -> x | y", "x", "a -> y"),
        ("a -> x|y | z @ 3", "y", "a -> x | z @ 3"),
        ("a -> x | (y, z) @ 3", "(y, z)", "a -> x @ 3"),
        ("a -> x", "x", None),
    ],
)
def test_alternatives(text: str, word: str, left: str | None) -> None:
    span = span_of(text, word)
    assert applied(without_alternative(span)) == left
    assert is_only_alternative(span) == (left is None)


def test_an_alternative_on_another_line_is_one() -> None:
    assert not is_only_alternative(span_of("a -> x |\n  GONE", "GONE"))
    assert not is_only_alternative(span_of("a -> GONE\n  | x", "GONE"))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("rules:\n  - a -> x\n  - b -> GONE # c\n  - c -> z\n",
         "rules:\n  - a -> x\n  - c -> z\n"),
        ("rules:\n- GONE\n# of b\n- b -> y\n", "rules:\n# of b\n- b -> y\n"),
        ("rules:\n- a -> x\n- GONE", "rules:\n- a -> x"),
        ("rules:\r\n- a -> x\r\n- GONE\r\n", "rules:\r\n- a -> x\r\n"),
        ("rules: [a -> x, GONE, b -> y]\n", "rules: [a -> x, b -> y]\n"),
        ("rules: [a -> x, GONE]\n", "rules: [a -> x]\n"),
        ("rules: [GONE, 'b -> (y, z)']\n", "rules: ['b -> (y, z)']\n"),
        ("rules: ['a, b -> x', \"GONE\", c -> y,]\n", "rules: ['a, b -> x', c -> y,]\n"),
        ("rules: [a,\n  GONE,\n  b]\n", "rules: [a,\n  b]\n"),
        ("overrides:\n  - path: a\n    axes: b\n  - path: GONE\n    axes: b\nx: 1\n",
         "overrides:\n  - path: a\n    axes: b\nx: 1\n"),
        ("overrides:\n  - axes: b\n    path: GONE\n  - path: a\n    axes: b\n",
         "overrides:\n  - path: a\n    axes: b\n"),
        ("overrides:\n  - {path: GONE, axes: b}\n  - {path: c, axes: b}\n",
         "overrides:\n  - {path: c, axes: b}\n"),
        ("rules:\n  - GONE\n", None),
        ("rules: [GONE]\n", None),
        ("x: GONE\n", None),
        ("rules:\n  - a\naxes:\n  x: GONE\n", None),
    ],
)  # fmt: skip
def test_items_of_yaml(text: str, left: str | None) -> None:
    assert applied(without_item(span_of(text, "GONE"))) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("axes:\n  a: 1\n  GONE: 2\nmesh: {x: 1}\n", "axes:\n  a: 1\nmesh: {x: 1}\n"),
        ("a: 1\nGONE:\n- b\n- c\nd: 1\n", "a: 1\nd: 1\n"),
        ("a: 1\nGONE:\n  b: 1\n\n  c: 1\n\nd: 1\n", "a: 1\n\nd: 1\n"),
        ("axes: {a: 1, GONE: 2}\n", "axes: {a: 1}\n"),
        ("axes: {GONE: {size: 1, unit: 2}, b: 2}\n", "axes: {b: 2}\n"),
        ("axes:\n  GONE: 2\n", None),
    ],
)
def test_keys_of_yaml(text: str, left: str | None) -> None:
    assert applied(without_key(span_of(text, "GONE"))) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("rules {\n  a -> x\n  b -> GONE # why\n}\n", "rules {\n  a -> x\n}\n"),
        ("rules { a -> x; b -> GONE }\n", "rules { a -> x }\n"),
        ("rules { GONE -> x; b -> y }\n", "rules { b -> y }\n"),
        ("axis a = 1\naxis GONE = 2\n", "axis a = 1\n"),
        ("axis a = 1\noverride GONE : b", "axis a = 1"),
        ("rules { GONE -> x }\n", None),
    ],
)
def test_entries_of_the_dsl(text: str, left: str | None) -> None:
    span = span_of(text, "GONE", "s.shard")
    assert applied(without_item(span)) == left
    assert applied(without_key(span)) == left
