"""Texts that are no YAML: what is said, where the caret stands, what would work."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import SourceFile, codes
from shardspec.language.yaml_text.reader import read_yaml

# text, the characters under the caret, a piece of the message, a piece of the help
SLIPS = [
    ("a:\n\tb: 1\n", "\t", "a tab indents", "spaces"),
    ("a: foo\n\tbar: 1\n", "\t", "a tab indents", "spaces"),
    ("a:  |\n\tfoo\n", "\t", "a tab indents", "spaces"),
    ("a: b\nc: @\tx\n", "@\tx", "cannot start with `@`", "quote it"),
    ("params:\n  **/mlp: x\n", "**/mlp", "is an alias", 'quote it: "**/mlp"'),
    ("a: *foo/k\n", "*foo/k", "is an alias", 'quote it: "*foo/k"'),
    ("a: *x y  # c\n", "*x y", "is an alias", 'quote it: "*x y"'),
    ("a: & b\n", "& b", "is an anchor", "quote it"),
    ("a: @x\n", "@x", "cannot start with `@`", 'quote it: "@x"'),
    ("a: %x: y\n", "%x", "cannot start with `%`", 'quote it: "%x"'),
    ("a: `x\n", "`x", "cannot start with a backtick", "quote it"),
    ("x: !e!foo bar\n", "!e!foo bar", "is a tag", "quote it"),
    ("params:\n  {0..3}/k: x\n", "/k: x", "text goes on after `}`", 'quote it: "{0..3}/k"'),
    ("rules: [a]b\n", "b", "text goes on after `]`", 'quote it: "[a]b"'),
    ("a: 'it's'\n", "s'", "after the closing '", "write ''"),
    ('a: "x" y\n', "y", 'after the closing "', 'write \\"'),
    ("a: {b: 1\nc: 2\n", ":", "`,` or `}` is missing", "quote values"),
    ("{a: bf16[4, 2]}", "[", "`,` or `}` is missing", "quote values"),
    ("a: [b, c\n", "[", "`[` is never closed", "`]`"),
    ("a: [\n", "[", "`[` is never closed", "`]`"),
    ('a: "[" # [\nb: [1, {c: [2], d:\n', "{", "`{` is never closed", "`}`"),
    ("a: 1\n  b: 2\n", "b", "indented deeper", "line the two up"),
    ("doc: heads: 3 # c\n", ":", "cannot hold `: `", 'quote it: "heads: 3"'),
    ("mesh:\n  data:8\n  model: 4\n", ":", "space is missing", "`data: 8`"),
    ("mesh:\n  data: 8\n  model:4\n", ":", "space is missing", "`model: 4`"),
    ("rules:\n  - a -> b\n  kv -> none\n", "kv -> none", "not `key: value`", "`- kv -> none`"),
    ("rules:\n  - a -> b\n  -kv -> x\n", "-kv -> x", "not `key: value`", "`- kv -> x`"),
    ("a: 1\nfoo\n", "foo", "not `key: value`", "`foo: VALUE`"),
    ("mesh:\n  data: 8\n model: 4\n", "model", "lined up with nothing", "same column"),
    ("- a\nb: 1\n", "b", "among the items of a list", "`- `"),
    ('a: "foo\nb: 1\n', '"', "never closed", 'with "'),
    ('match: "\\d+"\n', "\\d", "not an escape", "single quotes"),
    ('a: "\\ud800"\n', "\\ud", "not an escape", "single quotes"),
    ("a: }\n", "}", "closes nothing", "quote it"),
    ("a: ,b\n", ",", "cannot start with `,`", 'quote it: ",b"'),
    ("a: - b\n", "-", "after a key on one line", "`[b]`"),
    ("a: |x\n  foo\n", "x", "the line must end", 'quote it: "|x"'),
    ("%YAML 3.0\n---\na: 1", "%YAML 3.0", "not a directive", "leave the line out"),
    ("a: 1\n...\nb: 2\n", "b: 2", "after the end of the document", "one spec"),
    ("x" * 1500 + ": 1\n", "x" * 1500, "too long", "`? KEY`"),
    ("a: \x07b", "\x07", "U+0007", "delete it"),
    ("a: \ud800", "\ud800", "U+D800", "delete it"),
]


@pytest.mark.parametrize(("text", "caret", "message", "way_out"), SLIPS)
def test_slip(text: str, caret: str, message: str, way_out: str) -> None:
    reading, faults = read_yaml(SourceFile("spec.yaml", text))
    assert reading is None or not reading.is_whole
    (fault,) = faults
    assert fault.code is codes.SYNTAX
    assert message in fault.message
    assert fault.primary is not None
    assert fault.primary.span.text == caret
    assert way_out in (fault.help or "")


def test_second_label_shows_the_cause() -> None:
    _, (fault,) = read_yaml(SourceFile("spec.yaml", "mesh:\n  data: 8\n model: 4\n"))
    assert [label.span.text for label in fault.labels] == ["model", "data: 8"]


def test_faults_before_the_syntax_error_are_kept() -> None:
    _, faults = read_yaml(SourceFile("spec.yaml", "a: no\na: 1\nb: [\n"))
    assert sorted(fault.code.id for fault in faults) == ["SHD002", "SHD005", "SHD006"]


def test_ten_foreign_characters_are_enough() -> None:
    _, faults = read_yaml(SourceFile("spec.yaml", "a: " + "\x01" * 1000))
    assert len(faults) == 10
