from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.lsp import types
from shardspec.lsp.snapshot import Lines

ENCODINGS = [*types.PositionEncodingKind]
TEXTS = st.text(st.sampled_from("ab \n\r\u2028\x0c\x85é層🧊"), max_size=40)


@given(text=TEXTS, encoding=st.sampled_from(ENCODINGS), data=st.data())
def test_an_offset_comes_back(
    text: str, encoding: types.PositionEncodingKind, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(text)))
    lines = Lines(text, encoding)
    within = text[offset - 1 : offset + 1] == "\r\n" and offset > 0
    assert lines.offset(lines.position(offset)) == offset - within


@given(text=TEXTS, line=st.integers(0, 50), character=st.integers(0, 50))
def test_any_position_is_in_the_text(text: str, line: int, character: int) -> None:
    assert 0 <= Lines(text).offset(types.Position(line, character)) <= len(text)


@given(old=TEXTS, new=TEXTS)
def test_edits_make_the_other_text(old: str, new: str) -> None:
    lines = Lines(old)
    for edit in lines.edits_to(new):
        start, end = lines.offsets(edit.range)
        old = old[:start] + edit.new_text + old[end:]
    assert old == new


@pytest.mark.parametrize(
    ("encoding", "column"),
    [
        (types.PositionEncodingKind.Utf8, 8),
        (types.PositionEncodingKind.Utf16, 4),
        (types.PositionEncodingKind.Utf32, 3),
    ],
)
def test_columns_are_counted_in_units(encoding: types.PositionEncodingKind, column: int) -> None:
    """An ice cube has two UTF-16 units and four bytes, a kanji one and three."""
    assert Lines("x\n🧊層 y", encoding).position(5) == types.Position(1, column)


def test_only_an_editors_line_ends_end_lines() -> None:
    assert Lines("a\u2028b\x0cc\r\nd\re\n").count == 4


@given(text=TEXTS, typed=TEXTS, data=st.data())
def test_an_edit_is_no_longer_than_it_has_to_be(text: str, typed: str, data: st.DataObject) -> None:
    """It begins and ends with what differs, and never between CR and LF of a line end."""
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    new = text[:low] + typed + text[high:]
    lines = Lines(text)
    for edit in lines.edits_to(new):
        start, end = lines.offsets(edit.range)
        assert text[:start] + edit.new_text + text[end:] == new
        assert all(text[at - 1 : at + 1] != "\r\n" for at in (start, end) if at)
        old = text[start:end]
        if old and edit.new_text:
            assert old[0] != edit.new_text[0] or old[:2] == "\r\n" or edit.new_text[0] == "\r"
            assert old[-1] != edit.new_text[-1] or old[-2:] == "\r\n" or old[-1] == "\n"
    assert bool(lines.edits_to(new)) == (new != text)
