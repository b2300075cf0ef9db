"""What notebooks show: pieces of the page, well-formed, escaped, legible without their style."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

import shardspec
from shardspec import Resolver, pipeline
from shardspec.analysis.cost import cost_of
from shardspec.analysis.spec_step import stated_step
from shardspec.report.cost import Cost
from tests.report.test_page import HOSTILE, plans_of

SPEC = """\
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {data: 2, model: 4}}
  bare: {mesh: {data: 2, model: 4}}
rules: [mlp -> model, embed -> none]
state: {optimizer: same, moments: 2}
arrays: {wi: 'f32[embed=64 mlp=128]', norm: 'f32[embed=64]'}
"""


def parsed(shown: Any) -> ET.Element:
    return ET.fromstring(shown._repr_html_())


def text_of(shown: Any) -> str:
    return " ".join(" ".join(parsed(shown).itertext()).split())


def test_a_plan_shows_memory_and_its_table() -> None:
    plan = shardspec.loads(SPEC).compile(target="pod")
    found = text_of(plan)
    for said in ("parameters = 16.5 KiB", "gradients", "optimizer = 33.0 KiB", "per device, fits"):
        assert said in found
    assert "P(None, 'model')" in found
    fills = [each.attrib["fill"] for each in parsed(plan).iter("rect")]
    assert len(set(fills)) == 3, "a bar has its colours in itself"


def test_a_cost_shows_time_and_what_is_sent() -> None:
    plan = plans_of("t5-1.1-xxl")[2]
    stated = stated_step(plan)
    assert stated is not None
    found = text_of(Cost.of(cost_of(plan, stated.step, tokens=stated.tokens)))
    for said in ("bound by compute", "tokens/s", "By mesh axis", "heads -> model preset:t5x/1d:11"):
        assert said in found
    alone = text_of(Cost.of(cost_of(plan)))
    assert "parameters" in alone
    assert "By mesh axis" not in alone


def test_a_resolver_shows_its_mesh() -> None:
    found = text_of(Resolver(shardspec.loads(SPEC), "pod", devices="abstract"))
    assert "target pod: TPU v5e 2x4, 8 chips mesh data=2 model=4" in found
    assert "GB/s ICI" in found
    bare = text_of(Resolver(shardspec.loads(SPEC), "bare", devices="abstract"))
    assert bare.endswith("target bare: 8 devices mesh data=2 model=4")


@pytest.mark.parametrize("at", [0, 1])
def test_what_a_spec_says_is_text(at: int) -> None:
    spec, _ = pipeline.load_text(HOSTILE)
    assert spec is not None
    plan = pipeline.compile_plans(spec)[at]
    for html in (Cost.of(cost_of(plan))._repr_html_(), shardspec.Plan._repr_html_(plan)):
        root = ET.fromstring(html)
        assert not [each for each in root.iter() if each.tag in ("script", "img")]
        assert "\u202e" not in html
