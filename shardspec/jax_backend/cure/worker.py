"""Price a step with lines in it; run as processes of their own, many steps one after the other.

    python -P -m shardspec.jax_backend.cure.worker FOLDER PARENT

On stdin come pickled values of the process that started this one: first a `Base`, then trials,
each a tuple of lines. For each one a `Figures` goes to stdout, or the reason why there is none.
No code of the user's runs here. Each module is partitioned in a fork, which ends once it is.

`Trials` starts these processes, and prices many trials at once.
"""

from __future__ import annotations

import os
import pickle
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from shardspec.analysis.accuracy import Mode
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.step_memory import StepMemory, grown, mode_of
from shardspec.cure.figures import Figures
from shardspec.cure.lines import Line
from shardspec.cure.searching import Trial
from shardspec.diagnostics import Diagnostic
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Shape, Target
from shardspec.ir.step import Step, StepArgument
from shardspec.jax_backend.cure.inserting import arguments_with, inserted, prepared, remaining
from shardspec.jax_backend.cure.shortened import Shortened, pruned
from shardspec.jax_backend.xla.child import partition, partitioned_text
from shardspec.jax_backend.xla.compiling import most_at_once, started
from shardspec.orphans import end_group, end_with, forked
from shardspec.programs.hlo import program_of
from shardspec.programs.partitioned import read_partitioned, read_sends

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Base:
    """The step that lines are put into.

    Attributes:
      module: bytecode of StableHLO, as JAX lowered it.
      now: what the step takes as it is.
      free: the shapes of whole results whose sharding nobody states, by their numbers.
      tokens: that a step goes through.
      layers: that it repeats, if they are not scanned.
      shorter: the step with a few of these layers, the longest first.
      timeout_s: that the partitioner may take for one trial.
    """

    module: bytes
    plan: ShardingPlan
    arguments: tuple[StepArgument, ...]
    now: Figures
    free: Mapping[int, Shape]
    tokens: int | None = None
    layers: int = 0
    shorter: tuple[Shortened, ...] = ()
    timeout_s: float = 60.0


class Priced(NamedTuple):
    """What a program takes, and what it holds."""

    figures: Figures
    memory: StepMemory
    mode: Mode


class Pricing:
    """What trials cost; a program that was priced before is not priced again."""

    def __init__(self, base: Base, folder: Path) -> None:
        """Note the step, and a folder to work in."""
        self.base, self.folder = base, folder
        self._known: dict[bytes, Priced | str] = {}
        self._told: dict[tuple[int, Trial], Priced | str] = {}
        self._shorter: tuple[Shortened, ...] = ()
        #: What the whole step holds beyond what shorter ones tell.
        self._beyond = 0.0
        ready = [pruned(replace(each, module=prepared(each.module))) for each in base.shorter]
        self._shorter, self._beyond = self._like_whole(reversed([*pairwise(ready)]))

    def _like_whole(
        self, pairs: Iterable[tuple[Shortened, ...]]
    ) -> tuple[tuple[Shortened, ...], float]:
        """Return shorter steps that tell what the whole one takes, and what it holds beyond.

        What computes may be counted otherwise for the step as it is. Where two pairs say the same
        of its time, and what it sends, that is what it takes; else the whole step is read once.
        """
        now = self.base.now
        told: list[tuple[tuple[Shortened, ...], Figures]] = []
        for pair in pairs:
            self._shorter = pair
            found = self.figures(())
            if isinstance(found, Figures):
                told.append((pair, found))
                if found.is_like(now):
                    return pair, now.memory - found.memory
        if not told:
            return (), 0.0
        (_, first), (_, last) = told[0], told[-1]
        is_agreed = len(told) > 1 and first.is_like(last) and last.bytes == now.bytes
        whole = last if is_agreed else self._whole
        for pair, found in told:
            if whole is not None and found.is_like(whole):
                return pair, now.memory - found.memory
        return (), 0.0

    @cached_property
    def _module(self) -> bytes:
        """Return the whole step, ready for lines; where shorter ones do, it is not needed."""
        return prepared(self.base.module)

    @cached_property
    def _whole(self) -> Figures | None:
        """Return what the whole step takes, read as trials are, without what it holds."""
        text = self._partitioned(inserted(self._module, (), for_tpu=self._target.is_tpu))
        read = read_sends(program_of(text), self._target, self.base.arguments) if text else None
        if read is None or isinstance(read, Diagnostic):
            return None
        return Figures.of(self._cost(replace(read.step, source="code")))

    def figures(self, lines: Sequence[Line]) -> Figures | str:
        """Return what the step takes with some lines, or why that is not known."""
        if not self._shorter:
            found = self._given(self._module, lines, self.base.arguments, self.base.free)
            return found if isinstance(found, str) else found.figures
        longer, shorter = self._shorter
        more = self._shorter_given(longer, lines)
        if isinstance(more, str):
            return more
        # lines that do nothing in a step do nothing in one with a layer less
        is_idle = more is self._shorter_given(longer, ())
        less = self._shorter_given(shorter, () if is_idle else lines)
        if isinstance(less, str):
            return less
        layers = self.base.layers - self._shorter[1].layers
        whole = less.figures.onward(more.figures, layers)
        memory = whole.memory + self._beyond
        held = grown(more.memory, round(memory) - more.memory.total.bytes, more.mode, self._target)
        return whole._replace(memory=memory, fits=held.fits)

    @property
    def _target(self) -> Target:
        return self.base.plan.target

    def _shorter_given(self, step: Shortened, lines: Sequence[Line]) -> Priced | str:
        """Return what a step with fewer layers takes with the lines of which it has the values."""
        own = remaining(lines, step.numbers, step.arguments)
        key = step.layers, own
        if key not in self._told:
            arguments = tuple(self.base.arguments[at] for at in step.arguments)
            free = self.base.free
            left = {at: free[old] for at, old in enumerate(step.results) if old in free}
            self._told[key] = self._given(step.module, own, arguments, left)
        return self._told[key]

    def _given(
        self,
        module: bytes,
        lines: Sequence[Line],
        arguments: tuple[StepArgument, ...],
        free: Mapping[int, Shape],
    ) -> Priced | str:
        """Return what a module takes with lines in it."""
        try:
            given = inserted(module, lines, for_tpu=self._target.is_tpu)
        except Exception as error:  # of MLIR: the layout does not fit
            return f"{type(error).__name__}: {error}"
        laid = arguments_with(arguments, lines, self._target.mesh.sizes)
        text = self._partitioned(given)
        key = sha256(_bare(text).encode()).digest()
        if key not in self._known:
            self._known[key] = self._priced(text, laid, free)
        return self._known[key]

    def _partitioned(self, module: bytes) -> str:
        """Return the program of one device; nothing where the partitioner gives none."""
        count = self._target.mesh.device_count
        shutil.rmtree(self.folder / "dump", ignore_errors=True)
        (self.folder / "dump").mkdir()
        child = forked()
        if not child:
            try:
                log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                partition(self.folder, count, lambda: module)
            finally:
                os._exit(1)
        until = time.monotonic() + self.base.timeout_s
        try:
            while not os.waitpid(child, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return ""
                time.sleep(_POLL_S)
        except ChildProcessError:
            pass
        return partitioned_text(self.folder, count)

    def _priced(
        self, text: str, arguments: tuple[StepArgument, ...], free: Mapping[int, Shape]
    ) -> Priced | str:
        if not text:
            return "XLA's partitioner gives no program"
        read = read_partitioned(text, self._target, arguments, free)
        if isinstance(read, Diagnostic):
            return read.message
        found, tensors = read
        step = replace(found.step, source="code", tensors=tensors)
        cost = self._cost(step)
        return Priced(Figures.of(cost), cost.memory, mode_of(step))

    def _cost(self, step: Step) -> Cost:
        return cost_of(self.base.plan, step, tokens=self.base.tokens)


#: An operation that copies another, as a constraint leaves one; a name.
_COPY = re.compile(r"(?m)^ *%([\w.\-]+) = \S+ copy\(%([\w.\-]+)\)[^\n]*\n")
_NAME = re.compile(r"%([\w.\-]+)")


def _bare(text: str) -> str:
    """Return a program without copies, and with names that are the same for the same program."""
    copied: dict[str, str] = {}
    names: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        copied[found[1]] = found[2]
        return ""

    def name(found: re.Match[str]) -> str:
        own = found[1]
        while own in copied:
            own = copied[own]
        return names.setdefault(own, f"%{len(names)}")

    return _NAME.sub(name, _COPY.sub(take, text))


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

    def figures(
        self, trials: Sequence[Trial], tell: Callable[[int, int], None] = lambda done, left: None
    ) -> Iterator[Figures | None]:
        """Yield what each trial takes; None where that is not known. None is priced twice.

        Args:
          tell: is called after each trial, with how many are done and how many of these are left.
        """
        new = list(dict.fromkeys(each for each in trials if each not in self._known))
        before = self.count
        self.count += len(new)
        tell(before, len(new))
        for number, figures in enumerate(self._pool.map(self._priced, new)):
            self._known[new[number]] = figures
            tell(before + number + 1, len(new) - number - 1)
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


def main() -> int:
    """Answer until stdin ends, or the parent does: a process with this number."""
    end_with(int(sys.argv[2]))
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print
    base: Base = pickle.load(given)
    with tempfile.TemporaryDirectory(dir=sys.argv[1], ignore_cleanup_errors=True) as name:
        pricing = Pricing(base, Path(name))
        while True:
            try:
                lines: Sequence[Line] = pickle.load(given)
            except EOFError:
                return 0
            pickle.dump(pricing.figures(lines), answers)
            answers.flush()


if __name__ == "__main__":
    raise SystemExit(main())
