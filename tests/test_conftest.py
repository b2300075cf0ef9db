"""Nightly, a property is tried for a time, and not by a number of examples."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import pytest_runtest_call


@given(st.integers())
def prop(number: int) -> None:
    assert number == number + 0


def plain() -> None:
    assert prop


@pytest.mark.parametrize(
    ("test", "seconds", "runs"), [(prop, 0.5, 3), (prop, 0.0, 0), (plain, 0.5, 0)]
)
def test_only_a_property_runs_again_until_its_seconds_are_over(
    test: Any, seconds: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ran = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def runtest() -> None:
        now[0] += 0.125
        ran.append(test)

    config = SimpleNamespace(getoption={"--seconds": seconds}.__getitem__)
    item: Any = SimpleNamespace(obj=test, config=config, runtest=runtest)
    inside = pytest_runtest_call(item)
    next(inside)
    now[0] += 0.125  # the first run
    assert next(inside, "ends") == "ends"
    assert len(ran) == runs
