"""Trials in processes of their own: in order, each once, within their time, whatever dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Line
from shardspec.jax_backend.cure import worker as module
from shardspec.jax_backend.cure.worker import Base, Trials
from tests.jax_backend.cure.small import line
from tests.jax_backend.cure.test_inserting import base_of

pytestmark = pytest.mark.fresh


@pytest.fixture(scope="module")
def step() -> tuple[Base, Line, Line]:
    base, sites = base_of("forward")
    rows = line(sites['hidden @ p["wo"]'], "batch _ _")
    return base, rows, line(sites['x @ p["wi"]'], "_ _ mlp")


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_at_once", lambda: 1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_figures_come_in_order_each_priced_once(step: tuple[Base, Line, Line]) -> None:
    base, rows, wide = step
    with Trials(base, 60) as trials:
        first = list(trials.figures([(), (wide,), (), (rows,)]))
        assert trials.count == 3
        told: list[tuple[int, int]] = []
        again = list(
            trials.figures([(wide,), (rows, wide), ()], lambda *counts: told.append(counts))
        )
        assert trials.count == 4
        assert told == [(3, 1), (4, 0)], "how many are done and left, after each"
        processes = [each.pid for each in trials._all]
        assert all(isinstance(each, Figures) for each in (*first, *again))
        assert first[0] == first[2] == again[2]
        assert first[1] == again[0] != first[0]
        assert trials.late == 0
        folder = trials._folder.name
        assert os.listdir(folder), "what they write is in one folder"
    assert len(processes) == 1
    assert not any(map(alive, processes)), "none stays"
    assert not os.path.exists(folder)


def test_a_process_that_dies_is_replaced_and_its_trial_has_no_figures(
    step: tuple[Base, Line, Line],
) -> None:
    base, rows, wide = step
    with Trials(base, 60) as trials:
        (known,) = trials.figures([()])
        os.kill(trials._all[0].pid, signal.SIGKILL)
        trials._all[0].wait()
        lost, found = trials.figures([(rows,), (wide,)])
        assert isinstance(known, Figures)
        assert lost is None
        assert isinstance(found, Figures)
        assert len(trials._all) == 2
        assert list(trials.figures([(rows,)])) == [None], "it is not tried again"
        assert trials.count == 3


def test_no_trial_begins_once_time_is_over(
    step: tuple[Base, Line, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, rows, wide = step
    now = time.monotonic()
    with Trials(base, 60) as trials:
        (known,) = trials.figures([()])
        monkeypatch.setattr(module.time, "monotonic", lambda: now + 1000)
        assert list(trials.figures([(), (rows,), (wide,)])) == [known, None, None]
        assert trials.late == 2


def test_a_trial_that_goes_on_for_too_long_is_ended(
    step: tuple[Base, Line, Line],
) -> None:
    base, rows, _ = step
    with Trials(base, 60) as trials:
        (known,) = trials.figures([()])
        trials._until = time.monotonic() + 0.5
        trials._ends = trials._until + 0.5
        first = trials._all[0].pid
        os.kill(first, signal.SIGSTOP)
        assert list(trials.figures([(), (rows,)])) == [known, None]
        assert (trials.count, trials.late) == (1, 1)
        trials._all[0].wait(10)


SEARCHING = """
import pickle, sys, time
from shardspec.jax_backend.cure.worker import Base, Trials
with Trials(pickle.load(sys.stdin.buffer), 60) as trials:
    print(trials._all[0].pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs what Linux tells")
def test_no_process_stays_when_the_command_was_killed(step: tuple[Base, Line, Line]) -> None:
    """Also where it does not see that its input has ended, as long as it prices a trial."""
    with subprocess.Popen(
        [sys.executable, "-c", SEARCHING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        command.stdin.write(pickle.dumps(step[0]))
        command.stdin.close()
        worker = Path("/proc", command.stdout.readline().decode().strip())
        with (worker / "fd" / "0").open("wb"):
            command.kill()
            until = time.monotonic() + 30
            while worker.exists() and (worker / "cmdline").read_bytes():
                assert time.monotonic() < until
                time.sleep(0.1)


def test_what_cannot_be_priced_has_no_figures(step: tuple[Base, Line, Line]) -> None:
    base, rows, _ = step
    flat = rows.layouts[0]._replace(split=(("fsdp",), ()))
    with Trials(base, 60) as trials:
        lost, known = trials.figures([(Line(rows.site, (flat,)),), (rows,)])
        assert lost is None
        assert isinstance(known, Figures)
        assert len(trials._all) == 1, "the process goes on"


def test_what_is_priced_again_in_a_process_that_stays_is_the_same(
    step: tuple[Base, Line, Line],
) -> None:
    base, _, wide = step
    with Trials(base, 60) as one, Trials(base, 60) as other:
        assert list(one.figures([(wide,), ()])) == list(other.figures([(wide,), ()]))


def test_as_many_at_once_as_there_are_processors_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 7 * 2**30 // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert module._at_once() == 3
    sizes["SC_PHYS_PAGES"] = 2**40 // 4096
    assert module._at_once() == 8
    sizes["SC_PHYS_PAGES"] = 1
    assert module._at_once() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert module._at_once() == 1
