"""Elements as a browser reads them: each cell of a table says what it is; a scale keeps order."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.report.html import Scale, table, tag

WORDS = st.text("ab<&\"' ", max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]], set[int]]:
    width = draw(st.integers(1, 4))
    row = st.lists(WORDS, min_size=width, max_size=width)
    return draw(row), draw(st.lists(row, max_size=3)), draw(st.sets(st.integers(0, width - 1)))


@given(tables(), st.booleans())
@settings(max_examples=40)
def test_a_cell_is_a_heading_or_under_one(
    made: tuple[list[str], list[list[str]], set[int]], is_stacked: bool
) -> None:
    headings, rows, numbers = made
    text = table(headings, rows, numbers, class_="stack" if is_stacked else "wide")
    head, *body = ET.fromstring(text).iter("tr")
    assert [[cell.text or "" for cell in row] for row in (head, *body)] == [headings, *rows]
    for cell in head:
        assert (cell.tag, cell.get("scope"), cell.get("data-label")) == ("th", "col", None)
    for row in body:
        assert [each.tag for each in row] == ["th", *["td"] * (len(headings) - 1)]
        assert [each.get("scope") for each in row] == ["row", *[None] * (len(headings) - 1)]
        labels = headings[1:] if is_stacked else [None] * (len(headings) - 1)
        assert [each.get("data-label") for each in row] == [None, *labels]
    for row in (head, *body):
        assert {at for at, each in enumerate(row) if each.get("class") == "number"} == numbers


@given(st.dictionaries(st.text("ab", min_size=1), st.sampled_from((None, False, True, 0, 1, ""))))
@settings(max_examples=40)
def test_an_attribute_is_left_out_bare_or_has_its_value(attributes: dict[str, object]) -> None:
    text = tag("b", **attributes)
    shown = [f' {key}="{value}"' for key, value in attributes.items() if type(value) in (int, str)]
    bare = [f" {key}" for key, value in attributes.items() if value is True]
    assert sorted(text.removesuffix("></b>").removeprefix("<b").split()) == sorted(
        each.strip() for each in (*shown, *bare)
    )


VALUES = st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=6)


@given(VALUES, st.sampled_from((Scale.around, Scale.decades)))
@settings(max_examples=40)
def test_a_scale_keeps_order_and_has_room_for_its_values(values: list[float], made: object) -> None:
    scale = made(values)  # type: ignore[operator]
    assert scale.share(scale.low) == pytest.approx(0, abs=1e-9)
    assert scale.share(scale.high) == pytest.approx(1)
    places = [scale.share(each) for each in sorted(values)]
    assert all(-1e-9 <= each <= 1 + 1e-9 for each in places)
    assert places == sorted(places)
    across = [float(scale.at(each)[:-1]) for each in sorted(values)]
    down = [float(scale.down(each)[:-1]) for each in sorted(values)]
    assert across == sorted(across)
    assert down == sorted(down, reverse=True)
    assert all(0 < each < 100 for each in (*across, *down))


@given(VALUES, st.sampled_from((Scale.around, Scale.decades)))
@settings(max_examples=40)
def test_ticks_are_evenly_apart_from_one_end_to_the_other(
    values: list[float], made: object
) -> None:
    scale = made(values)  # type: ignore[operator]
    places = [scale.share(each) for each in scale.ticks]
    gaps = [b - a for a, b in pairwise(places)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))
    assert min(gaps) > 0
    assert places[0] == pytest.approx(0, abs=1e-9)
    assert 1 - gaps[0] < places[-1] + 1e-9 <= 1 + 2e-9
    assert 2 <= len(places) <= 10
