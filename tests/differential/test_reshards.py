"""XLA on CPU devices that are not there: which transitions it gathers the array whole for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The two activations of openxla/xla#15207; the same with the stop that SHD508 offers.
SCRIPT = """
from benchmarks.reshards import is_gathered
before, stop, after = ((1,), (), (0,)), ((1,), (0,), ()), ((), (0, 1), ())
print(is_gathered((4, 2), before, after))
print(is_gathered((4, 2), before, stop), is_gathered((4, 2), stop, after))
"""


def run(*command: str) -> str:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_xla_15207_and_the_way_out() -> None:
    assert run("-c", SCRIPT) == "True\nFalse False\n"


@pytest.mark.nightly
def test_some_of_the_transitions_in_the_data() -> None:
    run("-m", "benchmarks.reshards", "--some", "40")
