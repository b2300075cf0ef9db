"""A step with lines in it, priced: many trials at once, in processes of their own."""

from __future__ import annotations

import pickle
import queue
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from shardspec.cure.figures import Figures
from shardspec.cure.searching import Trial
from shardspec.jax_backend.cure.worker import Base
from shardspec.jax_backend.xla.compiling import most_at_once, started
from shardspec.orphans import end_group

#: Memory that one process may need, and the most that run at once.
_BYTES_EACH, _MOST = 2 * 2**30, 8
#: How much longer a trial may go on that began within the time: a share of it, and seconds.
_GRACE, _MOST_GRACE_S = 0.25, 30.0


class Trials:
    """Processes that price trials of one step.

    with Trials(base) as trials:
        for figures in trials.figures([(line,), (line, other)]):
            ...
    """

    def __init__(self, base: Base, within_s: float) -> None:
        """Note the step, and for how long trials go on."""
        self._until = time.monotonic() + within_s
        self._ends = self._until + min(_MOST_GRACE_S, _GRACE * within_s)
        self._base = pickle.dumps(base)
        self._known: dict[Trial, Figures | None] = {}
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(
            prefix="shardspec-cure-", ignore_cleanup_errors=True
        )
        self.count = self.late = 0

    def __enter__(self) -> Self:
        """Start the processes."""
        for _ in range(_at_once()):
            self._idle.put(self._started())
        self._pool = ThreadPoolExecutor(len(self._all))
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes, whatever they do."""
        for each in self._all:
            end_group(each.pid)
        self._pool.shutdown(cancel_futures=True)
        for each in self._all:
            each.communicate()
        self._folder.cleanup()

    def figures(self, trials: Sequence[Trial]) -> Iterator[Figures | None]:
        """Yield what each trial takes; None where that is not known. None is priced twice."""
        new = list(dict.fromkeys(each for each in trials if each not in self._known))
        self.count += len(new)
        found = dict(zip(new, self._pool.map(self._priced, new), strict=True))
        self._known.update(found)
        return (self._known[each] for each in trials)

    def _priced(self, trial: Trial) -> Figures | None:
        if time.monotonic() > self._until:
            self.late, self.count = self.late + 1, self.count - 1
            return None
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(trial, process.stdin)
            process.stdin.flush()
            left = max(0.0, self._ends - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                self.late, self.count = self.late + 1, self.count - 1
                raise TimeoutError
            found = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            end_group(process.pid)
            process = self._started()
            found = None
        self._idle.put(process)
        return found if isinstance(found, Figures) else None

    def _started(self) -> subprocess.Popen[bytes]:
        process = started("shardspec.jax_backend.cure.worker", self._folder.name)
        assert process.stdin is not None
        process.stdin.write(self._base)
        process.stdin.flush()
        self._all.append(process)
        return process


def _at_once() -> int:
    """Return how many trials this machine has processors and memory for."""
    return min(_MOST, most_at_once(_BYTES_EACH))
