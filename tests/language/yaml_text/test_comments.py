"""Which entry a comment belongs to."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language.reading import Comments, Route
from shardspec.language.yaml_text.comments import comment_line, comment_text
from shardspec.language.yaml_text.reader import read_yaml


def comments_of(text: str) -> dict[Route, Comments]:
    reading, _ = read_yaml(SourceFile("spec.yaml", text))
    assert reading is not None
    return dict(reading.comments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# c\na: 1\n", {("a",): Comments(("c",))}),
        ("a: 1  # c\n", {("a",): Comments((), "c")}),
        ("a: 1#c\n", {}),
        ("a: 'x # y'\nb: x#y\nc: \"#\"\n", {}),
        ("a: |\n  # text\n # after\nb: 1\n", {("b",): Comments(("after",))}),
        ("a: |  # c\n  text\n", {("a",): Comments((), "c")}),
        ("# a\n\n# b\n#\n#c\n\na: 1\n", {("a",): Comments(("a", "", "b", " ", "c", ""))}),
        ("a:  # c\n  # d\n  b: 1\n", {("a",): Comments((), "c"), ("a", "b"): Comments(("d",))}),
        ("a:\n  # c\n  value\n", {("a",): Comments(("c",))}),
        ("a:\n# c\nb: 1\n", {("b",): Comments(("c",))}),
        ("a: 1\n# end\n\n# more\n", {(): Comments(("end", "", "more"))}),
        (
            "a:\n\n  # c\n  b: 1\n\n  # d\n\n  e: 2\n",
            {("a", "b"): Comments(("c",)), ("a", "e"): Comments(("", "d", ""))},
        ),
        ("{}  # c\n", {(): Comments(("c",))}),
        ("a:\n  # c\n  - x  # d\n", {("a", 0): Comments(("c",), "d")}),
        (
            "a:\n  # c\n  - k: 1  # d\n",
            {("a", 0): Comments(("c",)), ("a", 0, "k"): Comments((), "d")},
        ),
        ("a:\n  -  # c\n    k: 1\n", {("a", 0): Comments(("c",))}),
        ("a: {b: 1, # c\n  # d\n  e: 2} # f\ng: 1\n", {("a",): Comments(("d", "f"), "c")}),
        ("a: [x, # c\n  y]\n", {("a",): Comments((), "c")}),
        ("a: &x {b: 1}\nc: *x  # c\n", {("c",): Comments((), "c")}),
        ("--- # c\na: 1\n", {("a",): Comments(("c",))}),
        ("a: b\n  c\n  # d\n", {(): Comments(("d",))}),
        ("a:\n  b: 1\n  # c\nd: 2\n", {("a",): Comments(after=("c",))}),
        (
            "a:\n  b: 1\n\n  # c\n  # e\n\n# f\nd: 2\n",
            {("a",): Comments(after=("", "c", "e")), ("d",): Comments(("f",))},
        ),
        (
            "a:\n  - b: 1\n    # c\n  # d\n# e\n",
            {
                ("a", 0): Comments(after=("c",)),
                ("a",): Comments(after=("d",)),
                (): Comments(("e",)),
            },
        ),
        ("a:\n- b\n# c\nd: 1\n", {("d",): Comments(("c",))}),
        ("a:\n- b\n # c\nd: 1\n", {("a",): Comments(after=("c",))}),
        ("a:\n  - b\n  # c\n  - d\n", {("a", 1): Comments(("c",))}),
        ("a: {b: 1}\n  # c\nd: 1\n", {("d",): Comments(("c",))}),
        ("a:\n  b:\n    c: 1\n   # d\n  e: 2\n", {("a", "e"): Comments(("d",))}),
        ("# c\r\na: 1 # d\r\n", {("a",): Comments(("c",), "d")}),
    ],
)
def test_attachment(text: str, expected: dict[Route, Comments]) -> None:
    assert comments_of(text) == expected


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=20))
def test_a_comment_line_reads_as_its_text(raw: str) -> None:
    text = comment_text(f"#{raw}")
    assert comment_text(comment_line(text)) == text
    assert text


entries = st.sampled_from(
    (
        ("a: 1",),
        ("b:", "  c: 2", "", "  - x"),
        ("b:", "  c: 2"),
        ("h:", "  - x", "", "  - k: v", "    l: w"),
        ("d: {e: 1,", "  f: 2}"),
        ("g: |", "    text"),
        ("",),
    )
)
lines = st.lists(entries, max_size=5, unique=True).map(lambda each: [*chain(*each)])


@st.composite
def marked_lines(draw: st.DrawFn) -> list[tuple[str, bool]]:
    return [(line, draw(st.booleans())) for line in draw(lines)]


@given(marked_lines())
def test_no_comment_is_lost(rows: list[tuple[str, bool]]) -> None:
    """Every comment that YAML sees is attached once."""
    text = "".join(
        f"{row}{f'  # c{i:02}' if marked else ''}\n" for i, (row, marked) in enumerate(rows)
    )
    reading, faults = read_yaml(SourceFile("x", text))
    assume(reading is not None and not faults)
    assert reading is not None
    held = str(reading.data)
    found = [
        text
        for one in reading.comments.values()
        for text in (*one.before, *([one.trailing] if one.trailing else []), *one.after)
        if text
    ]
    expected = [
        f"c{i:02}" for i, (_, marked) in enumerate(rows) if marked and f"# c{i:02}" not in held
    ]
    assert sorted(found) == sorted(expected)
