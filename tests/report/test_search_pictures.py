"""A search drawn: points are read back, the front is the Pareto set, a file is read or refused."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.report.cost_json import Uncounted
from shardspec.report.html import Scale, tag
from shardspec.report.search import Search, checked, search_text
from shardspec.report.search_pictures import (
    Option,
    SavedSearch,
    read_search,
    saved_search,
    search_picture,
)
from shardspec.search.ranking import pareto, search, unbeaten
from tests.report.test_page import NASTY
from tests.search.specs import question, spec_of

Points = list[tuple[float, int, int]]
points = st.tuples(st.integers(1, 6).map(float), st.integers(1, 6), st.integers(1, 3))


@pytest.fixture(scope="module")
def table() -> Search:
    return checked(search(question(spec_of())))


@pytest.fixture(scope="module")
def found(table: Search) -> SavedSearch:
    return saved_search(table.found, table.best)


def option(point: tuple[float, int, int], *, is_unknown: bool = False) -> Option:
    unknown = (Uncounted("x", "it is", ("time",), None, "forward", 1.0),) if is_unknown else ()
    seconds, size, chips = point
    return Option(
        *("tpu v5e 4x4", chips, {"fsdp": "4"}, {}, seconds, False, "compute"),
        *(size, "modelled", 7, size < 6, unknown),
    )


def parsed(found: SavedSearch) -> ET.Element:
    return ET.fromstring(tag("div", search_picture(found)))


@given(st.lists(st.tuples(points, st.booleans()), max_size=30))
def test_the_front_is_the_pareto_set(rows: list[tuple[tuple[float, int, int], bool]]) -> None:
    options = tuple(option(point, is_unknown=hidden) for point, hidden in rows)
    found = SavedSearch("spec.yaml", "pod", True, None, options)

    def is_beaten(one: Option) -> bool:
        return any(
            all(a <= b for a, b in zip(other.point, one.point, strict=True))
            and other.point != one.point
            for other in options
            if not other.unknown
        )

    assert found.front == tuple(each for each in options if not is_beaten(each))


def test_the_front_is_that_of_the_search(table: Search, found: SavedSearch) -> None:
    front = {(row.seconds, row.memory.bytes, row.chips) for row in pareto(table.rows)}
    assert {each.point for each in found.front} == front
    assert front == unbeaten(front, front)


def test_points_are_read_back(found: SavedSearch) -> None:
    root = parsed(found)
    circles = [each for each in root.iter("circle") if each.attrib["class"] != "today"]
    front = found.front
    assert len(circles) == len(found.rows)
    assert sum(each.attrib["class"] == "best" for each in circles) == len(front)
    drawn = [each for each in found.rows if each not in front] + list(front)
    order = sorted(range(len(drawn)), key=lambda at: drawn[at].memory_bytes)
    xs = [float(circles[at].attrib["cx"][:-1]) for at in order]
    assert xs == sorted(xs), "more memory is further to the right"
    order = sorted(range(len(drawn)), key=lambda at: -drawn[at].step_s)
    ys = [float(circles[at].attrib["cy"][:-1]) for at in order]
    assert ys == sorted(ys), "a slower step is further up"
    for circle, each in zip(circles, drawn, strict=True):
        assert each.name in (circle[0].text or "")


@given(st.lists(st.floats(1e-6, 1e15), min_size=1, max_size=8))
def test_a_scale_has_its_values(values: list[float]) -> None:
    for scale in (Scale.decades(values), Scale.around(values)):
        for each in values:
            share = scale.share(each)
            assert -1e-9 <= share <= 1 + 1e-9
            at = scale.low * (scale.high / scale.low) ** share
            if not scale.is_log:
                at = scale.low + share * (scale.high - scale.low)
            assert at == pytest.approx(each, rel=1e-6)
        assert 2 <= len(scale.ticks) <= 10
        assert all(scale.low * 0.999 <= each <= scale.high * 1.001 for each in scale.ticks)


def test_what_is_unknown_is_said() -> None:
    rows = (option((2.0, 5, 1), is_unknown=True)._replace(fits=None), option((3.0, 6, 1)))
    text = " ".join(parsed(SavedSearch("s", "t", False, None, rows)).itertext())
    assert "at least ~ 2.00 s" in text
    assert "unknown whether it fits" in text
    assert "DOES NOT FIT" in text
    assert "did not look at all candidates" in text


def test_a_file_is_read_or_refused(table: Search, found: SavedSearch) -> None:
    text = search_text(table)
    assert read_search(SourceFile("found.json", text)) == found
    broken = text.replace('"step_s": ', '"step_s": -'), text.replace('"rows"', '"row"')
    others = "{", "[]", '{"schema": "shardspec.cost/1"}', text.replace("/1", "/9", 1)
    large = (
        text.replace('"memory_bytes": ', f'"memory_bytes": {10**400}'),
        text.replace('"step_s": ', '"step_s": 1e300'),
    )
    for bad in (*others, *broken, *large):
        refused = read_search(SourceFile("found.json", bad))
        assert isinstance(refused, Diagnostic)
        assert "search" in f"{refused.message} {refused.help}"


@given(st.lists(st.tuples(st.floats(0, 1e24), st.integers(0, 10**24), st.integers(0, 9))))
def test_any_figures_are_drawn(rows: Points) -> None:
    text = search_picture(SavedSearch("s", "t", True, None, tuple(map(option, rows))))
    assert not {"nan", "inf"} & set(re.findall(r"[a-z]+(?=%)", text))
    ET.fromstring(tag("div", text))


def test_names_are_text_and_rows_are_bounded(found: SavedSearch) -> None:
    rows = [option((float(at + 1), 9000 - at, 1))._replace(hardware=NASTY) for at in range(3000)]
    hostile = replace(found, spec=NASTY, target=NASTY, rows=tuple(rows))
    text = search_picture(hostile)
    root = ET.fromstring(tag("div", text))
    assert not {"script", "img"} & {each.tag for each in root.iter()}
    assert "\u202e" not in text
    assert len(list(root.iter("circle"))) == 1001
    assert "2000 slower rows not drawn" in text


def test_a_notebook_shows_it(table: Search) -> None:
    root = ET.fromstring(table._repr_html_())
    assert [each for each in root.iter("circle") if each.attrib["class"] == "best"]
    assert "Pareto front" in " ".join(root.itertext())
    assert json.loads(search_text(table))["target"] in " ".join(root.itertext())


@given(st.lists(points, min_size=2, max_size=12, unique_by=lambda each: each[:2]))
@settings(max_examples=40)
def test_the_front_is_joined_by_steps_over_what_is_in_reach(rows: Points) -> None:
    """From each point to the right, at its time, and then down to the next."""
    options = tuple(option((seconds, size, 1)) for seconds, size, _ in rows)
    root = parsed(SavedSearch("s", "t", True, None, options))
    best = {
        (each.attrib["cx"], each.attrib["cy"])
        for each in root.iter("circle")
        if each.attrib["class"] == "best"
    }
    ordered = sorted(best, key=lambda each: float(each[0][:-1]))
    expected = []
    for (left, above), (right, below) in pairwise(ordered):
        expected += [(left, above, right, above), (right, above, right, below)]
    lines = [each.attrib for each in root.iter("line") if each.attrib["class"] == "front"]
    assert [tuple(each[name] for name in ("x1", "y1", "x2", "y2")) for each in lines] == expected
