"""Comments that silence findings: where they may stand, what they say, and what is none."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, point
from shardspec.language.silencing import marked, suppressed


def at(text: str, line: int, name: str = "s.yaml") -> Diagnostic:
    """Return a finding on a line of a text."""
    start = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    return point(codes.DEAD_RULE, "fact", Span(SourceFile(name, text), start, start + 1))


def lines(text: str, name: str = "s.yaml") -> list[int]:
    """Return the lines with something on them on which a finding is silenced."""
    filled = [n for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [line for line in filled if not suppressed([at(text, line, name)])[0]]


YAML = """\
shardspec: 1
rules:
  - a -> x  # shardspec: ignore[SHD214] why
  - b -> x
  # shardspec: ignore[dead-rule]
  - c -> x
  # shardspec: ignore[SHD214]
  # more of it
  - d -> x
  # shardspec: ignore[SHD214]

  - e -> x
  - '# shardspec: ignore[SHD214]'
  - f -> x # g # shardspec:ignore[ SHD302 , SHD214 ]
"""


def test_lines_of_yaml() -> None:
    assert lines(YAML) == [3, 6, 9, 14]
    assert lines(YAML.replace("\n", "\r\n")) == [3, 6, 9, 14]


def test_lines_of_the_dsl() -> None:
    text = """\
shardspec 1
rules {
  a -> x  # shardspec: ignore[SHD214] why
  # shardspec: ignore[SHD214]
  b -> x
}
params { "a # shardspec: ignore[SHD214]" : b }
params { c#shardspec: ignore[SHD214] : b }
"""
    assert lines(text, "s.shard") == [3, 5]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "# a\n# shardspec: ignore-file[SHD214] why\nshardspec: 1\nrules: []\n"),
        ("s.shard", "\n# shardspec: ignore-file[SHD214]\nshardspec 1\nrules { }\n"),
    ],
)
def test_whole_files(name: str, text: str) -> None:
    assert lines(text, name) == [n for n, line in enumerate(text.split("\n"), 1) if line]
    moved = "\n".join((*text.split("\n")[2:], text.split("\n")[1]))
    assert lines(moved, name) == []
    assert [whole for _, whole in marked(SourceFile(name, moved)).nearly] == [True]


def test_only_what_it_names_and_where_the_label_is() -> None:
    text = "rules:\n  - a -> x  # shardspec: ignore[SHD302]\n"
    assert lines(text) == []
    assert suppressed([point(codes.DEAD_RULE, "fact", None)])[0]
    elsewhere = Span(SourceFile("other.yaml", "a: 1\nb: 1\n"), 5, 6)
    assert suppressed([point(codes.DEAD_RULE, "fact", elsewhere)])[0]


@pytest.mark.parametrize("code", [codes.UNREADABLE, codes.SYNTAX])
def test_faults_of_reading_stay(code: object) -> None:
    text = f"# shardspec: ignore-file[{code.id}]\na: 1\n"  # type: ignore[attr-defined]
    found = point(code, "fact", Span(SourceFile("s.yaml", text), 0, 1))  # type: ignore[arg-type]
    assert suppressed([found])[0] == (found,)


def test_used_names_are_told_from_idle_ones() -> None:
    text = "a: 1  # shardspec: ignore[SHD302, SHD214]\n"
    _, used = suppressed([at(text, 1)])
    assert [span.text for span in used] == ["SHD214"]


@pytest.mark.parametrize(
    ("comment", "is_nearly"),
    [
        ("# shardspec: ignore SHD302", True),
        ("# shardspec: ignore[]", True),
        ("# shardspec: ignore[SHD302", True),
        ("# shardspec: ingore[SHD302]", True),
        ("# shardspec: noqa", True),
        ("# shardspec: IGNORE[SHD302]", True),
        ("# shardspec: 1 is the version", False),
        ("# shardspec: see the docs", False),
        ("# a spec of shardspec: ignore it", False),
        ("# shardspec:", False),
    ],
)
def test_nearly(comment: str, is_nearly: bool) -> None:
    assert bool(marked(SourceFile("s.yaml", f"a: 1\n{comment}\n")).nearly) == is_nearly


def test_text_that_cannot_be_read_has_none() -> None:
    assert marked(SourceFile("s.yaml", "a: [1\n# shardspec: ignore[SHD214]\n")).suppressions == ()
