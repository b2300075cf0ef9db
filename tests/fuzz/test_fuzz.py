"""Inputs that are nearly right break no law: a few hundred here, many thousands in the nightly run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.laws import Run, broken_law, half_written
from tests.fuzz.trials import Trial, law_broken_by, trial


@pytest.mark.parametrize("seed", ["ci-0", "ci-1", "ci-2", "ci-3"])
def test_no_input_breaks_a_law(seed, tmp_path, monkeypatch):
    _fuzz(seed, 100, tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30))
def test_no_input_of_very_many_breaks_a_law(seed, tmp_path, monkeypatch):
    _fuzz(f"nightly-{seed}", 10_000, tmp_path, monkeypatch)


#: Inputs that once broke one, whole: what a number stands for changes with the house's files.
FOUND = json.loads(Path(__file__).with_name("found.json").read_text("utf-8"))


@pytest.mark.parametrize("given", FOUND, ids=lambda given: " ".join(given["arguments"][:3]))
def test_what_was_found_stays_mended(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert law_broken_by(Trial(**given), tmp_path)[0] is None


def _fuzz(seed, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(count):
        each = trial(seed, number)
        broken, _ = law_broken_by(each, tmp_path)
        assert broken is None, f"python -m tests.fuzz --seed {seed} --only {number}: {broken}"


def test_an_input_is_that_of_its_number():
    assert trial("a", 7) == trial("a", 7) != trial("a", 8)


@pytest.mark.parametrize(
    "run",
    [
        Run(None, "", "", "Traceback"),
        Run(3, "x", "x", ""),
        Run(2, "", "", ""),
        Run(1, "", " ", ""),
        Run(0, "a\x1b[31m", "", ""),
        Run(0, "", "error[SHD201]: x", ""),
        Run(0, "x" * 5_000_000, "", ""),
    ],
)
def test_a_broken_law_is_seen(run):
    assert broken_law(["check"], run) is not None


def test_half_a_file_is_seen(tmp_path):
    (tmp_path / "out.json").write_text("{")
    assert half_written(["compile"], 0, {"out.json"}, tmp_path)
    assert half_written(["fmt"], 2, {"out.json"}, tmp_path)
