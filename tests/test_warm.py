"""What is forked from a warm process is what starts anew, but for its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jaxlib import xla_client

from tests import warm

ROOT = Path(__file__).parent.parent


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what starts a process, and returns what it says."""
    monkeypatch.setitem(warm.MODULES, "tests.told", ("json",))
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(ROOT))

    def run(**how: Any) -> tuple[dict[str, Any], str]:
        command = [sys.executable, "-P", "-m", "tests.told", "one", "two words"]
        done = subprocess.run(command, input="read", capture_output=True, text=True, **how)
        assert done.returncode == 7
        return json.loads(done.stdout), done.stderr

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="orphans go to the first process")
@pytest.mark.parametrize("session", [True, False])
def test_a_fork_is_as_a_process_that_starts_anew(
    told: Any, session: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "OWN": "1"}
    how = {"cwd": inside, "env": environment, "start_new_session": session}
    forked, remark = told(**how)
    assert forked.pop("warm")
    assert (remark, forked["parent"]) == ("a remark\n", os.getpid())
    monkeypatch.setattr(warm.Popen, "is_warm", False)
    fresh, other = told(**how)
    assert not fresh.pop("warm")
    assert (forked, remark) == (fresh, other)


def test_other_commands_start_anew() -> None:
    done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-program"], check=False)


@pytest.mark.fresh
def test_a_test_may_ask_for_fresh_processes(told: Any) -> None:
    assert not told()[0]["warm"]


def test_this_process_compiles_for_the_cpu_without_long_thought() -> None:
    options = xla_client.CompileOptions().executable_build_options.debug_options
    assert options.xla_backend_optimization_level == 0
    assert "optimization" not in os.environ["XLA_FLAGS"], (
        "processes that tests start get none of it"
    )
