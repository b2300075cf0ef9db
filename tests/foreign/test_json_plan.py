"""The plan as JSON: axis types are in it where there are any."""

from __future__ import annotations

import json

import pytest

from shardspec import pipeline
from shardspec.foreign.json_plan import plan_text
from shardspec.report.table import heading


@pytest.mark.parametrize(
    ("mesh", "types", "remark"),
    [
        ("{data: 2, model: 4}", None, "mesh data=2 model=4"),
        (
            "{data: 2, model: 4 explicit}",
            {"model": "explicit"},
            "mesh data=2 model=4   (model explicit)",
        ),
    ],
)
def test_axis_types(mesh: str, types: dict[str, str] | None, remark: str) -> None:
    spec, _ = pipeline.load_text(f"mesh: {mesh}\nrules: [a -> data]")
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec, ())
    assert json.loads(plan_text(plan)).get("axis_types") == types
    assert list(heading(plan))[1] == remark


def test_memories_and_sums_are_in_it() -> None:
    spec, _ = pipeline.load_text(
        "mesh: {data: 2 explicit}\nrules: [a -> data]\n"
        'memory: {w: pinned_host}\narrays: {w: "f32[a=4]", x: "f32[a=4]"}\n'
        'overrides: [{path: x, spec: "(none) unreduced data"}]\n'
        "activations: {h: a, s: {axes: a, memory: pinned_host}}\n"
    )
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    found = json.loads(plan_text(plan))
    assert (found["per_device_bytes"], found["host_bytes"]) == (16, 8)
    assert found["arrays"]["w"]["memory"] == "pinned_host"
    assert found["arrays"]["x"]["unreduced"] == ["data"]
    assert found["activations"] == {"h": ["data"], "s": {"spec": ["data"], "memory": "pinned_host"}}
