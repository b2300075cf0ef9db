"""Processes whose starter is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FORKED = """
import os, signal, sys, time
from pathlib import Path
from shardspec.orphans import end_with
parent = os.getpid()
if os.fork():
    os.kill(parent, signal.SIGKILL)
end_with(parent, lambda: Path(sys.argv[1]).touch())
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_child_ends_when_its_parent_was_killed(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    assert subprocess.run([sys.executable, "-c", FORKED, ended], check=False).returncode < 0
    until = time.monotonic() + 30
    while not ended.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert ended.exists()


SPLIT = """
import os, signal, time
from shardspec.orphans import forked
if forked():
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_process_ends_with_the_one_that_forked() -> None:
    """Both have the output open, so it ends with the last of them."""
    command = [sys.executable, "-c", SPLIT]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode < 0
