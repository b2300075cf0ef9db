"""A step drawn: the drawings are read back to the figures that they stand for."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardspec import pipeline
from shardspec.analysis.comparison import Comparison, Spent, predicted_of
from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import stated_cost
from shardspec.analysis.step_memory import made_of
from shardspec.ir.step import Place
from shardspec.report.cost_json import measured_run
from shardspec.report.html import tag
from shardspec.report.page_pieces import axis_number, measured_piece
from shardspec.report.step_pictures import (
    WIDE,
    DrawnStep,
    drawn_step,
    operations,
    roofs,
    step_data,
    step_pictures,
)
from shardspec.report.trace import trace_text
from tests.analysis.test_step_stages import TRAIN
from tests.report.test_page import NASTY
from tests.report.test_trace import cost_of_example

NAMES = ("gemma-2-9b", "llama-3-8b-decode", "llama-3-8b-lora", "mixtral-8x7b", "vit-b-16")


@pytest.fixture(scope="module", params=NAMES)
def step(request: pytest.FixtureRequest) -> DrawnStep:
    return drawn(cost_of_example(request.param))


@pytest.fixture(scope="module")
def picture(step: DrawnStep) -> ET.Element:
    return parsed(step)


def drawn(cost: Cost) -> DrawnStep:
    found = drawn_step(cost)
    assert found is not None
    return found


def cost_of_text(text: str) -> Cost:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    return stated_cost(pipeline.compile_plans(spec, None)[0])


def parsed(step: DrawnStep) -> ET.Element:
    return ET.fromstring(tag("div", step_pictures(step)))


def marks(path: ET.Element) -> Iterator[tuple[int, int]]:
    """Yield where the slices of a path start, and how wide they are."""
    at = 0
    for gap, width in re.findall(r"(?:m(\d+) 0)?h(\d+)", path.attrib["d"]):
        at += int(gap or 0)
        yield at, int(width)
        at += int(width)


def lanes(picture: ET.Element) -> dict[str, ET.Element]:
    found = (each for each in picture.iter("svg") if "lane" in each.attrib["class"].split())
    return {each.attrib.get("data-row", "memory"): each for each in found}


def test_slices_are_those_of_the_trace(step: DrawnStep, picture: ET.Element) -> None:
    """Each starts when it does and is as wide as it takes long, to a millionth of the step."""
    events = json.loads(trace_text(step.cost))["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    data = step_data(step)
    for tid, name in rows.items():
        timed = [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        slices = []
        for path in lanes(picture)[name.removeprefix("mesh axis ")].iter("path"):
            if "data-labels" in path.attrib:
                labels = map(int, path.attrib["data-labels"].split())
                said = ([data["words"][word] for word in data["labels"][at]] for at in labels)
                slices += list(zip(marks(path), said, strict=True))
        slices.sort(key=lambda each: each[0])
        assert len(slices) == len(timed)
        for ((x, wide), said_), event in zip(slices, timed, strict=True):
            assert x / WIDE * step.end == pytest.approx(event["ts"] / 1e6, abs=2e-6 * step.end)
            assert wide / WIDE * step.end == pytest.approx(event["dur"] / 1e6, abs=3e-6 * step.end)
            if wide > 2:
                assert said_[0] == event["name"]
                assert said_[2] == event["args"]["rule"]


def test_a_mesh_axis_has_one_colour(step: DrawnStep, picture: ET.Element) -> None:
    for name, lane in lanes(picture).items():
        if name not in ("compute", "memory"):
            numbers = {axis_number(axis, step.axes) for axis in name.split("+")}
            classes = {each.attrib["class"] for each in lane.iter("path")}
            assert classes == {f"stroke-{number}" for number in numbers}


def test_memory_has_the_peak_that_is_printed(step: DrawnStep, picture: ET.Element) -> None:
    memory = step.cost.memory
    assert max(sum(held) for _, *held in step_data(step)["points"]) == memory.total.bytes
    lane = lanes(picture)["memory"]
    top = next(lane.iter("path"))  # all parts; those below it are drawn over it
    heights = [90 - float(y) for y in re.findall(r"V([\d.]+)", top.attrib["d"])]
    limit = memory.hbm_bytes
    assert limit is not None
    whole = max(memory.total.bytes, limit if limit <= 4 * memory.total.bytes else 0)
    assert max(heights) / 90 * whole == pytest.approx(memory.total.bytes, rel=1e-3)
    for line in lane.iter("line"):
        assert (90 - float(line.attrib["y1"])) / 90 * whole == pytest.approx(limit, rel=1e-3)


def test_what_is_alive_sums_to_what_is_made(step: DrawnStep) -> None:
    data = step_data(step)
    made = {name: data["parts"].index(name) for name in ("activations",) if name in data["parts"]}
    for x, *held in data["points"][1:]:
        for name, at in made.items():
            alive = [size for a, b, size, part, _ in data["lives"] if a <= x < b and part == at]
            assert sum(alive) <= held[at], name
            if len(data["lives"]) < 150 and len(data["points"]) < 100:
                assert sum(alive) == held[at], name


def test_operations_sum_to_the_step(step: DrawnStep, picture: ET.Element) -> None:
    found = operations(step)
    assert sum(each.shown for each in found) == pytest.approx(step.end)
    (body,) = picture.iter("tbody")
    shares = [float(row[6].text.split()[-2]) for row in body if row[6].text]  # type: ignore[union-attr]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_points_are_below_the_roof(step: DrawnStep, picture: ET.Element) -> None:
    over, found = roofs(step), [each.point for each in operations(step)]
    points = [each for each in found if each is not None]
    assert points
    for intensity, speed in points:
        assert speed <= max(over.flops_per_s.values()) * (1 + 1e-9)
        assert speed <= intensity * over.bytes_per_s * (1 + 1e-9)
    chart = next(each for each in picture.iter("svg") if "roofline" in each.attrib["class"])
    circles = list(chart.iter("circle"))
    assert len(circles) == len(points)
    tops = [
        float(each.attrib["y1"][:-1]) for each in chart.iter("line") if each.get("class") == "roof"
    ]
    assert all(float(each.attrib["cy"][:-1]) >= min(tops) - 0.01 for each in circles)


def test_a_pipeline_is_drawn_as_its_fullest_stage_holds_it() -> None:
    cost = cost_of_text(TRAIN)
    assert cost.step is not None
    assert cost.step.stages is not None
    made, own = made_of(cost.step, cost.target), ("gradients", "activations", "temporaries")
    known = sum(cost.memory.parts[name].bytes for name in own)
    assert max(sum(held.values()) for _, held in made.over()) == known


def test_names_are_text() -> None:
    cost = cost_of_example("vit-b-16")
    assert cost.step is not None
    ops = (replace(op, einsum=NASTY, place=Place(NASTY, 1)) for op in cost.step.ops)
    tensors = (replace(e, array=replace(e.array, name=NASTY)) for e in cost.step.tensors)
    hostile = replace(cost, step=replace(cost.step, ops=tuple(ops), tensors=tuple(tensors)))
    text = step_pictures(drawn(hostile))
    root = ET.fromstring(tag("div", text))
    assert not {"script", "img", "iframe"} & {each.tag for each in root.iter()}
    assert "\u202e" not in text
    assert any(NASTY[:5] in each for each in root.itertext())


def test_a_drawing_is_bounded() -> None:
    cost = cost_of_example("gemma-2-9b")
    assert cost.step is not None
    tensors = [replace(each, born=each.born + 3 * at, dies=each.dies + 3 * at)
               for at in range(20) for each in cost.step.tensors]  # fmt: skip
    many = replace(cost.step, ops=cost.step.ops * 20, tensors=tuple(tensors))
    step = drawn(replace(cost, step=many))
    (lane,) = (each for name, each in lanes(parsed(step)).items() if name == "compute")
    assert (
        sum(len(list(marks(path))) for path in lane.iter("path") if "data-labels" in path.attrib)
        == 4000
    )
    data = step_data(step)
    assert len(data["lives"]) == 150
    assert len(data["points"]) <= 1501
    assert "shorter operations not drawn" in step_pictures(step)


def test_without_a_time_nothing_is_drawn() -> None:
    cost = cost_of_text("{mesh: {model: 4}, rules: [mlp -> model], arrays: {a: 'f32[mlp=8]'}}")
    assert drawn_step(cost) is None


def test_measured_pairs_sum_to_both_steps() -> None:
    cost = cost_of_example("mixtral-8x7b")
    assert cost.time is not None
    predicted, step = predicted_of(cost), cost.time.step_seconds
    idle = Spent("idle", "nothing runs", Place(), "forward", (), "", (), 0.0, step, 1.0)
    measured = (*predicted, idle)
    run = Comparison("r", "m", 1, 1, 2 * step, step, step, None, step, measured, predicted)
    root = ET.fromstring(tag("div", measured_piece(measured_run(run), cost.plan.mesh.names)))
    sums, names = [0.0, 0.0], []
    for row in root.iter("li"):
        names.append(row.findtext("p/b"))
        for side, bar in enumerate(row.iter("svg")):
            if bar.attrib["class"] == "bar":
                widths = [float(each.attrib["width"]) for each in bar]
                sums[side - len(list(row.iterfind("p/svg")))] += sum(widths)
    axes = {"+".join(each.mesh_axes) for each in predicted if each.kind == "collective"}
    assert set(names) == {"compute", "nothing runs", *axes}
    assert sums[1] / sums[0] == pytest.approx(2, rel=1e-3)
    unknown = measured_run(replace(run, predicted_seconds=None, predicted=()))
    text = measured_piece(unknown, ())
    assert "predicted unknown" in text
    assert text.count('class="bar"') == len(names), "what is unknown has no bar of nothing"


def test_the_table_names_the_row_of_each_operation(step: DrawnStep, picture: ET.Element) -> None:
    """`compute` or the mesh axes that it is sent over, and what it takes of the step."""
    (body,) = picture.iter("tbody")
    for row, each in zip(body, operations(step), strict=False):
        if row[0].text == "rest":
            break
        assert row[2].text == ("+".join(each.first.mesh_axes) or "compute")
        assert each.first.phase in (row[3].text or "")
        assert (row[7].text is None) == (each.point is None)
