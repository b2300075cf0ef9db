"""Inputs that are nearly right break no law: a few hundred here, many thousands in the nightly run.

They run in a process of their own: streams, signals and the collector are the fuzzer's there.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.fuzz.laws import Run, broken_law, half_written, written_over
from tests.fuzz.trials import trial

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", ["ci-0", "ci-1", "ci-2", "ci-3"])
def test_no_input_breaks_a_law(seed):
    _fuzz("--seed", seed, "--inputs", "100")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30))
def test_no_input_of_very_many_breaks_a_law(seed):
    """Others each night, for a minute each; what breaks a law is told with its seed."""
    _fuzz("--seed", f"{date.today()}-{seed}", "--inputs", "10000", "--seconds", "60")


def test_what_was_found_stays_mended():
    _fuzz("--found")


def _fuzz(*options):
    command = [sys.executable, "-m", "tests.fuzz", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert " 0 faults" in run.stdout


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


def test_a_file_that_was_there_is_seen():
    assert written_over(["cost", "spec.yaml", "-o", "spec.yaml"], {"spec.yaml"})
    assert written_over(["fmt", "spec.yaml", "--to", "dsl"], {"spec.yaml"})
    assert written_over(["fmt", "spec.yaml"], {"spec.yaml"}) is None
    assert written_over(["lock", "spec.yaml"], {"spec.lock"}) is None


def test_half_a_file_is_seen(tmp_path):
    (tmp_path / "out.json").write_text("{")
    assert half_written(["compile"], 0, {"out.json"}, tmp_path)
    assert half_written(["fmt"], 2, {"out.json"}, tmp_path)
