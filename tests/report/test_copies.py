"""Copies and pickles of what users hold answer as the original does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardspec
from shardspec.analysis.spec_step import stated_cost
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Spec
from shardspec.lints.context import Context
from shardspec.lints.registry import run
from shardspec.report.explain import explain
from shardspec.report.explain_line import explain_line
from shardspec.report.plan import Plan
from shardspec.report.search import search_text
from shardspec.resolve.resolver import resolve
from tests.search.specs import TEXT
from tests.strategies import params, specs

_EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
_COPIES = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
copied = pytest.mark.parametrize("copied", _COPIES, ids=["copy", "deepcopy", "pickle"])


def _of_plan(plan: Plan) -> list[str]:
    paths = list(plan)[::7]
    return [str(plan), str(plan.memory()), str(plan.diagnostics), *map(plan.explain, paths)]


@copied
@pytest.mark.parametrize("name", ["t5-1.1-xxl", "llama-3-8b-lora"])
def test_a_plan(name: str, copied: Callable[[Plan], Plan]) -> None:
    plan = shardspec.load(_EXAMPLES / f"{name}.yaml").compile()
    told = _of_plan(plan)  # worked out before, so that what the plan keeps is copied along
    assert "(0 arrays)" not in "".join(told)
    assert _of_plan(copied(plan)) == told


def _in_parts(plan: ShardingPlan) -> ShardingPlan:
    """Return a plan of which nothing is the same object: the spec and each array came alone."""
    alone: Any = _COPIES[-1]
    arrays, rows = tuple(map(alone, plan.arrays)), tuple(map(alone, plan.activations))
    return ShardingPlan(alone(plan.spec), alone(plan.target), arrays, rows)


def _reported(plan: ShardingPlan, *, has_cost: bool = False) -> list[str]:
    """Return all that is reported of a plan: findings, why, each line of the spec, the cost."""
    found = [str(each) for each in run(Context(plan.spec, (plan,)))]
    found += [line for each in plan.arrays for line in explain(each, plan)]
    source = plan.spec.source
    for number in range(1, len(source.text.splitlines()) + 1) if source else ():
        found += explain_line(source.name, number, plan)
    return [*found, str(stated_cost(plan))] if has_cost else found


@pytest.mark.parametrize("name", ["llama-3-8b-lora", "t5-1.1-xxl", "mixtral-8x7b", "phi-4"])
def test_a_plan_that_came_in_parts(name: str) -> None:
    plan = shardspec.load(_EXAMPLES / f"{name}.yaml").compile()
    told = _reported(plan, has_cost=True)
    assert any("names" in each for each in told)
    assert _reported(_in_parts(plan), has_cost=True) == told


@given(specs(), st.lists(params(), max_size=6))
@settings(max_examples=50)
def test_any_plan_that_came_in_parts(spec: Spec, arrays: list[Param]) -> None:
    plan = resolve(spec, spec.targets[0], arrays)
    assert _reported(_in_parts(plan)) == _reported(plan)


def test_arrays_that_came_one_by_one() -> None:
    plan = shardspec.load(_EXAMPLES / "llama-3-8b-lora.yaml").compile()
    again = _in_parts(plan)
    entries = [each.matched for each in again.arrays if each.matched is not None]
    assert list(map(again.served, entries)) == list(map(plan.served, entries))


@copied
def test_a_search(copied: Callable[[Any], Any]) -> None:
    found = shardspec.loads(TEXT).search()
    again = copied(found)
    assert str(again) == str(found)
    assert again.best == found.best
    assert search_text(again) == search_text(found)
