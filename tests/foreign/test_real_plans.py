"""The gate: what `check` prints for 215 imported plans of public models is worth reading.

Each finding has a verdict in `tests/data/real_plans/verdicts.json`; without one it is noise. The
numbers below may only get better.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import real_plans

#: Findings that are noise, plans that are proved, and the least share of useful findings.
MOST_NOISE, LEAST_PROVED, LEAST_USEFUL = 23, 160, 0.89
LEAST_MODELS = {"hf-tp-plan": 180, "keras": 12, "maxtext": 23}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[real_plans.Result]:
    folder: Path = tmp_path_factory.mktemp("plans")
    return [real_plans.run(model, folder) for model in real_plans.models(real_plans.KEPT)]


@pytest.fixture(scope="module")
def judged(results: list[real_plans.Result]) -> Counter[str]:
    known = real_plans.verdicts()
    return Counter(
        known.get(result.model.name, {}).get(each.key, ["noise"])[0]
        for result in results
        for each in result.findings
    )


def test_findings_are_useful(results: list[real_plans.Result], judged: Counter[str]) -> None:
    real_plans.report(results)
    print(dict(judged))
    assert judged["false"] == 0
    assert judged["noise"] <= MOST_NOISE
    assert judged["useful"] >= LEAST_USEFUL * judged.total()


def test_none_is_false_by_the_rule_and_none_is_missed(results: list[real_plans.Result]) -> None:
    wrong = [each for result in results for each in result.findings if each.verdict == "false"]
    assert not wrong
    assert not [group for result in results for group in result.missed]


def test_plans_are_proved(results: list[real_plans.Result]) -> None:
    assert sum(result.is_proved for result in results) >= LEAST_PROVED
    assert Counter(result.model.tool for result in results) == LEAST_MODELS


def test_an_array_is_in_one_finding(results: list[real_plans.Result]) -> None:
    """SHD204 is about a pattern: its note says which arrays may be meant."""
    twice = {
        (result.model.name, path)
        for result in results
        for path, count in Counter(
            path for each in result.findings if each.code != "SHD204" for path in each.paths
        ).items()
        if count > 1
    }
    assert not twice


def test_every_verdict_is_of_a_finding(results: list[real_plans.Result]) -> None:
    printed = {result.model.name: {each.key for each in result.findings} for result in results}
    stale = {
        (model, key)
        for model, told in real_plans.verdicts().items()
        for key in told
        if key not in printed.get(model, ())
    }
    assert not stale, "`python benchmarks/real_plans.py judge` takes them out"
