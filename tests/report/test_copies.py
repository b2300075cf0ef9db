"""Copies and pickles of what users hold answer as the original does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardspec
from shardspec.report.plan import Plan
from tests.search.specs import TEXT

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


def test_arrays_that_came_one_by_one() -> None:
    plan = shardspec.load(_EXAMPLES / "llama-3-8b-lora.yaml").compile()
    arrays = tuple(pickle.loads(pickle.dumps(each)) for each in plan.arrays)
    again = replace(plan, arrays=arrays)
    entries = [each.matched for each in arrays if each.matched is not None]
    assert list(map(again.served, entries)) == list(map(plan.served, entries))


@copied
def test_a_search(copied: Callable[[Any], Any]) -> None:
    found = shardspec.loads(TEXT).search()
    again = copied(found)
    assert str(again) == str(found)
    assert again.best == found.best
