"""The page of `shardspec report`: its figures are those of other verbs; a spec stays text in it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardspec import pipeline
from shardspec.analysis.comparison import By, group
from shardspec.analysis.cost import cost_of
from shardspec.analysis.spec_step import stated_step
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.plan import ShardingPlan
from shardspec.report.cost import cost_lines
from shardspec.report.cost_json import cost_record
from shardspec.report.explain import explain, explain_activation
from shardspec.report.mesh import mesh_lines
from shardspec.report.page import Shown, embedded, page_data, page_text
from shardspec.report.page_pieces import axes_piece, memory_rows, sent_by, time_piece
from shardspec.report.table import table
from shardspec.topology.placement import place, placed
from tests.test_wheel import ROOT

EXAMPLES = ROOT / "specs" / "examples"
SHOWN = ("t5-1.1-xxl", "llama-3-8b-decode", "mixtral-8x7b-serving")
NASTY = "</script><img src=x onerror=alert(1)>'\"&\u202e"

#: Whatever a spec may name is named by what a page would run, if it were not text there.
HOSTILE = f"""\
shardspec: 1
doc: {json.dumps(NASTY + "{{ 7 * 7 }}{% raw %}")}
targets:
  {json.dumps("<script>t</script>")}: {{mesh: {{model: 4}}}}
  "javascript:alert(1)": {{hardware: tpu v5e 2x2, mesh: {{model: 4}}}}
rules: [mlp -> model]
arrays:
  {json.dumps(f"a/{NASTY}/kernel")}: f32[8, 8]
  {json.dumps("<!--/]]>/<style>/kernel")}: 'f32[_=8 mlp=8]'
params: {{ {json.dumps("**/nothing<svg/onload=alert(1)>")}: mlp }}
"""


class Read(HTMLParser):
    """The elements of a page: tags with attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and self.cdata_elem:
            self.raw.append((self.tags[-1][0], data))
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def plans_of(name: str) -> tuple[ShardingPlan, ...]:
    spec, _ = pipeline.load_path(os.path.relpath(EXAMPLES / f"{name}.yaml"))
    assert spec is not None
    return pipeline.plans_of_phases(spec)


def shown(plan: ShardingPlan) -> Shown:
    stated = stated_step(plan)
    step = None if stated is None else stated.step
    tokens = None if stated is None else stated.tokens
    cost = cost_of(plan, step, tokens=tokens)
    return Shown(plan, cost_record(cost), drawn=cost)


def data_of(plans: Iterable[ShardingPlan]) -> dict[str, Any]:
    return page_data([shown(plan) for plan in plans])


def page_of(text: str, *, is_watched: bool = False) -> str:
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    plans = pipeline.plans_of_phases(spec)
    found = pipeline.check(spec, faults, spec.params).shown
    return page_text(spec, [shown(plan) for plan in plans], found, is_watched=is_watched)


@pytest.fixture(scope="module", params=SHOWN)
def plans(request: pytest.FixtureRequest) -> tuple[ShardingPlan, ...]:
    found: tuple[ShardingPlan, ...] = plans_of(request.param)
    return found


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


# the figures


def test_rows_are_those_of_compile(plans: tuple[ShardingPlan, ...]) -> None:
    for plan, target in zip(plans, data_of(plans)["targets"], strict=True):
        lines = [cells(line) for line in table(plan)]
        begin = next(at for at, line in enumerate(lines) if line[0] == "array") + 1
        printed = lines[begin : begin + len(target["rows"])]
        rows = [
            [row["name"], row["type"], row["spec"], row["shard"], binary_bytes(row["bytes"])]
            + ([row["rules"]] if row["rules"] else [])
            for row in target["rows"]
        ]
        assert rows == printed
        total = next(line for line in lines if line[0] == "total")
        assert total[-1] == f"= {binary_bytes(target['bytes'])}"
        held = sum(row["bytes"] for row in target["rows"] if "host" not in row)
        assert held == target["bytes"]


def test_reasons_are_those_of_explain(plans: tuple[ShardingPlan, ...]) -> None:
    data = data_of(plans)
    for plan, target in zip(plans, data["targets"], strict=True):
        by_path = {each.param.path: each for each in plan.arrays}
        for row in target["rows"]:
            sharding = by_path[data["paths"][row["paths"][0]]]
            assert_told(data["reasons"][row["why"]], list(explain(sharding, plan)))
            assert str(sharding.partition_spec) == row["answer"]
        for row, activation in zip(target["activations"], plan.activations, strict=True):
            lines = list(explain_activation(activation, plan))
            assert_told(data["reasons"][row["why"]], lines)


def assert_told(reason: dict[str, Any], lines: list[str]) -> None:
    """Every fact and every rule tried stands in the printed lines, and nothing else does."""
    facts = [f"{label:<8}{text}".rstrip() for label, text in reason["facts"]]
    assert lines[2 : 2 + len(facts)] == facts
    rows = [line.split() for line in lines[2 + len(facts) :] if line != "dims"]
    assert rows == [" ".join(row).split() for row in reason["dims"]]


def test_every_array_is_in_one_row(plans: tuple[ShardingPlan, ...]) -> None:
    data = data_of(plans)
    for plan, target in zip(plans, data["targets"], strict=True):
        found = [data["paths"][at] for row in target["rows"] for at in row["paths"]]
        assert sorted(found) == sorted(each.param.path for each in plan.arrays)


def test_offsets_add_up_to_places(plans: tuple[ShardingPlan, ...]) -> None:
    for plan, target in zip(plans, data_of(plans)["targets"], strict=True):
        placement = placed(plan.target, plan.spec.policy.order)
        if placement is None:
            assert target["machine"] is None
            continue
        routes = target["machine"]["routes"]
        for number, place_ in enumerate(placement.coordinates()):
            rest, sums = number, [0] * len(place_)
            for name, size in reversed(target["mesh"]):
                offset = routes[name][rest % size]
                sums = [one + other for one, other in zip(sums, offset, strict=True)]
                rest //= size
            assert tuple(sums) == place_


def test_axes_are_those_of_mesh(plans: tuple[ShardingPlan, ...]) -> None:
    for plan, target in zip(plans, data_of(plans)["targets"], strict=True):
        placement = place(plan.target, plan.spec.policy.order) if plan.target.hardware else None
        if placement is None or isinstance(placement, pipeline.Diagnostic):
            continue
        printed = [re.sub(r"\s+", " ", line.strip()) for line in mesh_lines(plan.target, placement)]
        found = re.findall(r"<tr>(.*?)</tr>", axes_piece(placement))
        for row in found:
            assert " ".join(Read(row).texts) in printed
        for name, speed in target["machine"]["speeds"].items():
            assert any(line.startswith(f"{name} ") and line.endswith(speed) for line in printed)


def test_costs_are_those_of_cost() -> None:
    for plan in plans_of("t5-1.1-xxl"):
        stated = stated_step(plan)
        assert stated is not None
        cost = cost_of(plan, stated.step, tokens=stated.tokens)
        data = cost_record(cost)
        printed = re.sub(r"\s+", " ", " ".join(cost_lines(cost)))
        pieces = memory_rows([(plan.name, data)]) + time_piece(data)
        for said in re.findall(r"[=~] [\d.]+ \w+", Read(pieces).text):
            assert said in printed
        assert ("bound by" in pieces) is (cost.time is not None)
        for by in ("axis", "rule", "line"):
            assert_grouped(cost.step.collectives if cost.step else (), data.collectives, by)


def assert_grouped(collectives: Any, sent: list[Any], by: By) -> None:
    """What is sent by axis, rule and line of code is what the tables of `cost --by` are made of."""
    found = [
        (name, sum(s.wire_bytes for s in rows), round(sum(s.count for s in rows), 6))
        for name, rows in sent_by(sent, by)
    ]
    known = [(row.name, row.wire_bytes, round(row.count, 6)) for row in group(collectives, by)]
    assert sorted(found) == sorted(known)
    assert all(one[1] >= other[1] for one, other in pairwise(found))


# the page


@pytest.fixture(scope="module")
def page() -> str:
    found = [plan for plan in plans_of("llama-3-70b") if not plan.spec.phase]
    return page_text(found[0].spec, [shown(plan) for plan in found], ())


def test_five_targets_of_723_arrays_are_small(page: str) -> None:
    assert "723 arrays on 5 targets" in page
    assert len(page.encode()) < 1_000_000, "a drawn step is a tenth of a megabyte"


def test_nothing_is_fetched_and_nothing_else_runs(page: str) -> None:
    read = Read(page)
    policy = next(a["content"] for tag, a in read.tags if "http-equiv" in a) or ""
    scripts = [text for kind, text in read.raw if kind == "script"]
    (style,) = [text for kind, text in read.raw if kind == "style"]
    assert policy.startswith("default-src 'none';")
    assert f"script-src '{digest(scripts[1])}'" in policy
    assert f"style-src '{digest(style)}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"@import|url\((?!#)|https?:", style)
    for tag, attributes in read.tags:
        assert not {"src", "style", "srcset", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_what_a_spec_says_is_text() -> None:
    read = Read(page_of(HOSTILE))
    harmless = Read(page_of("{mesh: {model: 4}, rules: [mlp -> model], arrays: {a: 'f32[mlp=8]'}}"))
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert not [tag for tag, _ in read.tags if tag in ("img", "iframe", "object")]
    known = {tag for tag, _ in harmless.tags} | {"details", "summary", "pre", "h3"}
    assert {tag for tag, _ in read.tags} <= known
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "<img src=x onerror=alert(1)>" in read.text
    assert "{{ 7 * 7 }}{% raw %}" in read.text, "no template of ours"
    assert "\u202e" not in page_of(HOSTILE)


def test_data_survives_and_cannot_end_its_element() -> None:
    text = embedded({"<!--": [NASTY, 1, None, True, "\u2028", "\ud800"]})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text)["<!--"][0] == NASTY.replace("\u202e", "\\u202e")


def test_findings_stand_with_carets_and_their_pages() -> None:
    text = page_of("{mesh: {model: 4}, rules: [mlp -> modle], arrays: {a: 'f32[mlp=8]'}}")
    read = Read(text)
    assert "1 error" in read.text
    assert "error SHD201" in read.text
    assert "^^^^^" in read.text
    assert "did you mean `model`" in read.text
    assert "unknown-mesh-axis" in read.text
    first = next(attributes for tag, attributes in read.tags if tag == "details")
    assert first["class"] == "finding error"


def test_a_target_without_hardware_has_no_machine() -> None:
    text = page_of("{mesh: {model: 4}, rules: [mlp -> model], arrays: {a: 'f32[mlp=8]'}}")
    assert "No hardware is stated for this target." in text
    assert json.loads(Read(text).raw[1][1])["targets"][0]["machine"] is None


def test_a_spec_without_arrays_or_sound_targets_has_a_page() -> None:
    assert "0 arrays on 1 target" in page_of("{mesh: {model: 4}, rules: [mlp -> model]}")
    spec, _ = pipeline.load_text("{mesh: {model: 4}, rules: [mlp -> model]}")
    assert spec is not None
    text = page_text(spec, [], ())
    assert "No target has a mesh that works out" in text
    assert 'id="rows"' not in text


def test_web_files_are_read_as_they_are() -> None:
    """What scripts are made of stands in the package as files, each of them used."""
    folder = Path(pipeline.__file__).parent / "report" / "web"
    page = page_of("{mesh: {model: 4}, rules: [mlp -> model]}", is_watched=True)
    for file in folder.glob("*.js"):
        assert file.read_text(encoding="utf-8") in page


def test_a_watched_page_runs_its_two_scripts_and_loads_files_alone() -> None:
    text = "{mesh: {model: 4}, rules: [mlp -> model], arrays: {a: 'f32[mlp=8]'}}"
    stamps = []
    for doc in ("one", "one", "other"):
        read = Read(page_of(text.replace("{mesh", f"{{doc: {doc}, mesh", 1), is_watched=True))
        scripts = [script for kind, script in read.raw if kind == "script"]
        policy = next(a["content"] for tag, a in read.tags if "http-equiv" in a) or ""
        assert (
            f"script-src '{digest(scripts[2])}' '{digest(scripts[0])}'; frame-src file:" in policy
        )
        assert policy.startswith("default-src 'none';")
        stamps.append(next(a["content"] for _, a in read.tags if a.get("name") == "stamp"))
    assert stamps[0] == stamps[1] != stamps[2]
    assert "frame-src" not in page_of(text)
