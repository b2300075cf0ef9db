"""What a change of a spec does to the figures of a step."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings

from shardspec import pipeline
from shardspec.analysis.comparison import CostDiff
from shardspec.analysis.cost import Cost, cost_of
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import Step
from shardspec.report.cost import cost_diff_data, cost_diff_lines
from tests import strategies

TEXT = "mesh: {data: 4, fsdp: 2, tensor: 3, expert: 1}\narrays: {a0: 'bf16[8, 4096]'}"


@cache
def plan() -> ShardingPlan:
    spec, _ = pipeline.load_text(TEXT, "spec.yaml")
    assert spec is not None
    return pipeline.compile_plans(spec)[0]


def cost(step: Step) -> Cost:
    return cost_of(plan(), step)


@given(strategies.steps(), strategies.steps())
def test_whole(before: Step, after: Step) -> None:
    diff = CostDiff("default", cost(before), cost(after))
    for rows in (diff.axes, diff.rules):
        changed = sum(each.after - each.before for each in rows)
        assert changed == pytest.approx(diff.sent.after - diff.sent.before)
        sizes = [abs(each.after - each.before) for each in rows]
        assert sizes == sorted(sizes, reverse=True)
        assert all(sizes)
    assert sum(each.after - each.before for each in diff.parts) == pytest.approx(
        diff.memory.after - diff.memory.before
    )
    assert list(cost_diff_lines(diff))
    assert cost_diff_data(diff)["same"] is diff.is_same


@given(strategies.steps())
def test_nothing_differs_from_itself(step: Step) -> None:
    diff = CostDiff("default", cost(step), cost(step))
    assert diff.is_same
    assert list(cost_diff_lines(diff)) == ["step on target default: costs what it did"]


@given(strategies.steps(), strategies.steps())
@settings(max_examples=10)
def test_each_change_is_from_one_cost_to_the_other(before: Step, after: Step) -> None:
    diff = CostDiff("default", cost(before), cost(after))
    sides = {"before": diff.before, "after": diff.after}
    for side, whole in sides.items():
        assert getattr(diff.flops, side) == (whole.flops or 0)
        assert getattr(diff.memory, side) == whole.memory.total.bytes
        assert whole.step is not None
        assert getattr(diff.sent, side) == sum(whole.step.wire_bytes.values())
        if diff.seconds is not None:
            assert whole.time is not None
            assert getattr(diff.seconds, side) == whole.time.step_seconds
    assert (diff.seconds is None) == (None in (diff.before.time, diff.after.time))
