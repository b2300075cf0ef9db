"""What a saved cost says of axes, lines and arrays, and when it is stale."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardspec
from shardspec.diagnostics import Diagnostic
from shardspec.records import data_of
from shardspec.report.cost_json import cost_record
from shardspec.report.saved_cost import (
    SavedCost,
    array_lines,
    axis_lines,
    line_lines,
    saved_cost,
    stale_because,
    stale_finding,
    with_cost,
)
from tests.report.test_cost_text import SPEC, cost, plan

COST = cost_record(cost(), date="2026-11-22")
SAVED = SavedCost("cost.json", COST)
HEAD = "cost.json (2026-11-22): "


def with_data(**more: Any) -> SavedCost:
    return SavedCost("cost.json", replace(COST, **more))


def test_an_axis() -> None:
    assert list(axis_lines(SAVED, "fsdp", plan())) == [
        f"{HEAD}fsdp sends ~ 640 MiB of ~ 10.6 GiB a device and step",
        "  all-gather  fsdp   640 MiB  x20  weight layers_{0..9}/mlp/wi  model/decoder.py:80",
        "  all-reduce  fsdp  1.00 KiB   x1  unknown                      model/decoder.py:80",
        "  fsdp takes ~ 410 ms, 60.0 ms exposed, of a step of ~ 1.92 s",
    ]


def test_a_line() -> None:
    (head, *rows) = line_lines(SAVED, "spec.yaml", 4, plan())
    assert head == f"{HEAD}this line sends ~ 640 MiB of ~ 10.6 GiB a device and step"
    assert len(rows) == 1
    assert list(line_lines(SAVED, "./spec.yaml", 4, plan())) == [head, *rows]
    assert list(line_lines(SAVED, "spec.yaml", 1, plan())) == []
    assert list(line_lines(SAVED, "other.yaml", 4, plan())) == []


def test_what_lines_send_together_is_said() -> None:
    sent = [
        replace(each, because=(*each.because, COST.collectives[0].because[0]))
        for each in COST.collectives
    ]
    lines = list(line_lines(with_data(collectives=tuple(sent)), "spec.yaml", 4, plan()))
    assert lines[-1] == "  ~ 640 MiB of it together with other lines"


def test_arrays() -> None:
    lines = list(array_lines(SAVED, ["layers_3/mlp/wi"], plan()))
    assert lines[0].startswith(f"{HEAD}layers_3/mlp/wi and its sharding send ~ 64.0 MiB of")
    lines = list(array_lines(SAVED, ["layers_3/mlp/wi", "layers_4/mlp/wi"], plan()))
    assert lines[0].startswith(f"{HEAD}2 arrays send ~ 128 MiB of")
    assert "weight layers_{3,4}/mlp/wi" in lines[1]
    (line,) = array_lines(SAVED, ["layers_9/scale"], plan())
    assert "send nothing of ~ 10.6 GiB" in line


def test_without_a_step() -> None:
    bare = with_data(source=None, time=None, collectives=())
    assert list(axis_lines(bare, "fsdp", plan())) == [
        "cost.json (2026-11-22) holds no step, and nothing that is sent"
    ]


def test_of_another_target() -> None:
    (line,) = axis_lines(with_data(target="big"), "fsdp", plan())
    assert line == "cost.json (2026-11-22) is of target big: --target big shows what it says"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"inputs": {"spec.yaml": "sha256:0"}}, "`spec.yaml` changed"),
        ({"inputs": {}}, "`spec.yaml` changed"),
        ({"mesh": {"fsdp": 64}}, "its mesh is fsdp=64"),
        ({"hardware": "tpu v4 4x4x4"}, "its hardware is tpu v4 4x4x4"),
        ({"target": "big", "inputs": {}}, "`spec.yaml` changed; it is of target big"),
    ],
)
def test_stale(more: dict[str, Any], said: str | None) -> None:
    saved = with_data(**more)
    assert stale_because(saved, plan().spec, plan().target) == said
    found = stale_finding(saved, plan().spec)
    assert (found is None) == (said is None)
    if said and "target" not in more:
        lines = list(axis_lines(saved, "fsdp", plan()))
        assert lines[1].startswith(f"  STALE: {said}; ")


def test_of_a_target_that_is_gone() -> None:
    found = stale_finding(with_data(target="gone"), plan().spec)
    assert found is not None
    assert found.message == "`cost.json` is stale: the spec has no target gone"


def test_a_spec_is_the_same_from_anywhere() -> None:
    """The file was saved beside the spec, and is asked from the folder above, or the reverse."""
    spec = shardspec.loads(SPEC, "conf/spec.yaml").ir
    assert SAVED.is_of(spec)
    assert len(SAVED.by_line("conf/spec.yaml", 4, spec)) == 10
    above = with_data(spec="far/conf/spec.yaml")
    for each in above.cost.collectives:
        assert above.lines_of(each) <= {("../../spec.yaml", 4), ("../../spec.yaml", 5)}
    assert not SAVED.is_of(shardspec.loads(SPEC, "other.yaml").ir)


def test_a_finding_tells_what_its_line_costs() -> None:
    spec = plan().spec
    rule = spec.axis_rules[0]
    code = stale_finding(with_data(inputs={}), spec)
    assert code is not None
    from shardspec.diagnostics import Label

    assert rule.span is not None
    found = replace(code, labels=(Label(rule.span),))
    (note,) = with_cost(found, SAVED, spec).notes
    assert note == "this line: ~ 640 MiB sent per device and step, by cost.json (2026-11-22)"
    by_array = replace(code, arrays=("layers_3/mlp/wi",))
    assert with_cost(by_array, SAVED, spec).notes[0].startswith("these arrays: ~ 64.0 MiB")
    assert with_cost(code, SAVED, spec) == code


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    assert isinstance(saved_cost(str(path)), Diagnostic)
    path.write_text(json.dumps(data_of(COST)))
    for is_named in (True, False):
        found = saved_cost(str(path), is_named=is_named)
        assert isinstance(found, SavedCost)
        assert found.title == f"{path} (2026-11-22)"
    path.write_text("{")
    assert isinstance(saved_cost(str(path)), Diagnostic)
