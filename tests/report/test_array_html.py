"""HTML for notebooks: well-formed, escaped, without colours of its own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

import shardspec
from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Spec, Target
from shardspec.report.drawing import ROWS_DRAWN, drawing, plan_html
from tests.report.test_array_text import SPEC, plan

MORE = r"(\d+) more (tables|rows)"
NASTY = '<script>alert("x")</script>&'


def parsed(html: str) -> ET.Element:
    return ET.fromstring(f"<body>{html.replace('<br>', '<br/>')}</body>")


def cells(root: ET.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def test_a_drawing_is_a_table() -> None:
    found = plan("v4")
    root = parsed(drawing([found["h"]], found)._repr_html_())
    assert cells(root)[0] == ["", "model 00:32", "model 132:64"]
    assert cells(root)[1] == ["replica 0 data 00:8", "0", "1"]
    assert "thick line: another host; double line: another slice" in "".join(root.itertext())
    below = [row[1].attrib["style"].count("double") for row in list(root.iter("tr"))[1:]]
    assert below == [0, 0, 0, 1, 0, 0, 0, 0], "the border of the slices is below data 3"


def test_every_rank_is_well_formed() -> None:
    for name in ("v4", "bare", "wide"):
        found = plan(name)
        parsed(drawing((*found.arrays, *found.activations), found)._repr_html_())


@pytest.mark.parametrize("target", ["v4", "bare", "wide"])
def test_what_is_drawn_and_what_is_left_out_is_all(target: str) -> None:
    found = plan(target)
    for each in found.arrays:
        (grid,) = drawing([each], found).grids
        text = parsed(drawing([each], found)._repr_html_())
        more = {name: int(count) for count, name in re.findall(MORE, "".join(text.itertext()))}
        assert len(list(text.iter("table"))) + more.get("tables", 0) == len(grid.tables)
        rows = len(cells(next(text.iter("table")))) - 1
        assert min(rows, ROWS_DRAWN) + more.get("rows", 0) == len(grid.tables[0].cells)


def test_what_a_spec_says_is_escaped() -> None:
    spec: Spec = shardspec.loads(SPEC).ir
    target = Target(NASTY, spec.targets[1].mesh)
    nasty = ShardingPlan(spec, target, ())
    found = pipeline.compile_plans(spec, (Param(NASTY, (4, 4)),), [target])[0]
    for html in (plan_html(found), drawing(found.arrays, found)._repr_html_(), plan_html(nasty)):
        assert "<script>" not in html
        parsed(html)
    assert "&lt;script&gt;" in plan_html(found)


def test_no_colours_but_that_of_the_text() -> None:
    found = plan("v4")
    for html in (plan_html(found), drawing(found.arrays, found)._repr_html_()):
        assert "color:" not in html
        assert "background" not in html
        assert not re.search(r"#[0-9a-fA-F]{3}|rgb|hsl", html)


def test_a_plan_is_a_table_of_its_rows() -> None:
    html = shardspec.loads(SPEC).compile(target="bare")._repr_html_()
    rows = cells(parsed(html))
    assert rows[0] == ["array", "type", "spec", "shard", "per device"]
    assert ["bias", "f32[128]", "P('model')", "[64]", "256 B"] in rows
    assert len(rows) == 6
