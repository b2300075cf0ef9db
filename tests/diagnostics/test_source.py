from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Excerpt, SourceFile, Span
from shardspec.diagnostics.diagnostic import excerpt_of


@given(st.text(alphabet="ab\n\r層\u0301"), st.data())
def test_line_and_column_lead_back_to_the_character(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    source = SourceFile("s", text)
    span = Span(source, start, start)
    before = text[:start].split("\n")
    assert (span.line, span.column) == (len(before), len(before[-1]) + 1)
    assert source.line_text(span.line) == text.split("\n")[span.line - 1].rstrip("\r")
    assert str(span) == f"s:{span.line}:{span.column}"


def test_whole_is_the_first_line() -> None:
    assert SourceFile("s", "ab\ncd").whole.text == "ab"
    assert SourceFile("s", "").whole.text == ""


def test_excerpt_shifts_by_what_stands_before_it() -> None:
    source = SourceFile("s", 'key: "abc"')
    excerpt = Excerpt("abc", Span(source, 5, 10), 6)
    assert excerpt.at(1, 2).text == "b"
    assert excerpt.part(1, 3).at(0, 1).text == "b"


def test_excerpt_points_at_the_whole_where_characters_do_not_line_up() -> None:
    source = SourceFile("s", r'"a\x62c"')
    excerpt = Excerpt("abc", source.whole)
    assert excerpt.at(1, 2) == source.whole
    assert excerpt.part(1, 2) == Excerpt("b", source.whole)


def test_excerpt_of_text() -> None:
    assert excerpt_of("abc", "name").at(1, 2).text == "b"
