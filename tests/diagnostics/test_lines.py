"""Lines within the width of a terminal: nothing is lost but the middle of paths."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics.lines import NARROW, Tone, columns, fitted, shortened, size_of

PATHS = st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=8).map("/".join)
CELLS = st.text("0123456789", max_size=14)
WIDTHS = st.integers(NARROW, 120)


def _is_cut(short: str, whole: str) -> bool:
    head, cut, tail = short.partition("...")
    return bool(cut) and whole.startswith(head) and whole.endswith(tail)


@given(st.lists(st.tuples(PATHS, CELLS, CELLS, CELLS, CELLS), max_size=5), WIDTHS)
def test_tables_keep_every_number(rows: list[tuple[str, ...]], width: int) -> None:
    lines = list(fitted(columns(rows, right=(2,), paths=0), width))
    assert all(len(line) <= width for line in lines)
    words = [word for line in lines for word in line.split()]
    cells = [cell for row in rows for cell in row if cell]
    for word, cell in zip(words, cells, strict=True):
        assert word == cell or ("/" in cell and _is_cut(word, cell))


@given(
    st.lists(st.tuples(PATHS, CELLS, CELLS), min_size=1, max_size=5),
    st.none() | WIDTHS,
    st.dictionaries(st.integers(0, 2), st.sampled_from(("whole", "split", "no")), min_size=1),
)
def test_colours_move_nothing(
    rows: list[tuple[str, ...]], width: int | None, tones: Mapping[int, Tone]
) -> None:
    table = list(columns(rows, right=(2,), paths=0, tones=[tones] * len(rows)))
    plain, painted = (list(fitted(table, width, color=color)) for color in (False, True))
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in painted] == plain
    is_seen = any(row[at] for row in rows for at in tones)
    assert any("\x1b" in line for line in painted) == is_seen


@given(st.lists(PATHS, min_size=2, max_size=5, unique=True), WIDTHS)
def test_paths_that_differ_do_so_beside_their_numbers(paths: list[str], width: int) -> None:
    rows = [(path, "1" * 20) for path in paths]
    shown = list(fitted(columns(rows, paths=0), width))
    if len(shown) == len(paths):
        assert len({line.split()[0] for line in shown}) == len(paths)


@given(st.lists(st.text("ab `", max_size=20), max_size=8).map("   ".join), WIDTHS)
def test_sentences_keep_every_word(line: str, width: int) -> None:
    shown = list(fitted([line], width))
    assert " ".join(shown).split() == line.split()
    assert all(len(part) <= width or "`" in part for part in shown)


@given(PATHS, st.integers(1, 60))
def test_a_short_path_is_no_longer_than_its_room(path: str, room: int) -> None:
    short = shortened(path, room)
    assert short == path if len(path) <= room else len(short) <= max(room, 6)


def test_a_pipe_gets_every_line_whole() -> None:
    rows = [("a/" * 80, "1"), ("b", "2")]
    assert list(fitted(columns(rows, paths=0), None)) == list(columns(rows, paths=0))
    assert list(columns([])) == []


def test_a_table_is_cut_as_one() -> None:
    rows = [
        ("decoder/layers_{0..23}/self_attention/key/kernel x24", "1.50 GiB", "model"),
        ("b", "2", "-"),
    ]
    assert list(fitted(columns(rows, right=(1,), paths=0), 61)) == [
        "  decoder/.../self_attention/key/kernel x24  1.50 GiB  model",
        "  b                                                 2  -",
    ]
    assert list(fitted(columns(rows, right=(1,), paths=0), 40)) == [
        "  decoder/.../key/kernel x24  1.50 GiB",
        "      model",
        "  b                                  2",
        "      -",
    ]


def test_the_last_cell_goes_on_below_itself() -> None:
    rows = [("SHD001", "a file that nobody can read as text of any kind")]
    assert list(fitted(columns(rows, indent=0, is_prose=True), 40)) == [
        "SHD001  a file that nobody can read as",
        "        text of any kind",
    ]


def test_a_comment_of_a_file_goes_on_as_a_comment() -> None:
    text = "  # Every device has its own examples, and keeps them."
    assert list(fitted([text], 40)) == [
        "  # Every device has its own examples,",
        "  # and keeps them.",
    ]


def test_wide_and_escaped_characters_stand_in_their_columns() -> None:
    rows = [("層層/核", "1"), ("a\u202eb", "2"), ("e\u0301", "3"), ("kernel", "4")]
    found = list(columns(rows, indent=0))
    assert found[1] == "a\\u202eb  2"
    assert {size_of(line) for line in found} == {11}
