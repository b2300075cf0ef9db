"""Price a step with lines in it; run as a process of its own, many steps one after the other.

    python -P -m shardspec.jax_backend.cure.worker FOLDER PARENT

On stdin come pickled values of the process that started this one: first a `Base`, then trials,
each a tuple of lines. For each one a `Figures` goes to stdout, or the reason why there is none.
No code of the user's runs here. Each module is partitioned in a fork, which ends once it is.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from shardspec.analysis.accuracy import Mode
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.step_memory import StepMemory, grown, mode_of
from shardspec.cure.figures import Figures
from shardspec.cure.lines import Line
from shardspec.diagnostics import Diagnostic
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Shape, Target
from shardspec.ir.step import Step, StepArgument
from shardspec.jax_backend.cure.inserting import arguments_with, inserted, prepared, remaining
from shardspec.jax_backend.cure.shortened import KEPT, Shortened
from shardspec.jax_backend.xla.child import partition, partitioned_text
from shardspec.orphans import end_with, forked
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
      shorter: the step with three and with two of these layers.
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
        self._shorter = [replace(each, module=prepared(each.module)) for each in base.shorter]
        #: What the whole step holds beyond what shorter ones tell.
        self._beyond = 0.0
        if base.shorter:
            found = self.figures(())
            if isinstance(found, str) or not self._is_whole(found):
                self._shorter = []
            else:
                self._beyond = base.now.memory - found.memory

    @cached_property
    def _module(self) -> bytes:
        """Return the whole step, ready for lines; where shorter ones do, it is not needed."""
        return prepared(self.base.module)

    def _is_whole(self, found: Figures) -> bool:
        """Say whether shorter steps tell what the whole one takes.

        Where what computes is counted otherwise for the step as it is, its program is read once
        more, as those of trials are, without what it holds.
        """
        if found.is_like(self.base.now):
            return True
        text = self._partitioned(inserted(self._module, (), for_tpu=self._target.is_tpu))
        if not text:
            return False
        read = read_sends(program_of(text), self._target, self.base.arguments)
        if isinstance(read, Diagnostic):
            return False
        return found.is_like(Figures.of(self._cost(replace(read.step, source="code"))))

    def figures(self, lines: Sequence[Line]) -> Figures | str:
        """Return what the step takes with some lines, or why that is not known."""
        if not self._shorter:
            found = self._given(self._module, lines)
            return found if isinstance(found, str) else found.figures
        more, less = (
            self._given(each.module, remaining(lines, each.numbers)) for each in self._shorter
        )
        if isinstance(more, str) or isinstance(less, str):
            return more if isinstance(more, str) else str(less)
        whole = less.figures.onward(more.figures, self.base.layers - KEPT[1])
        memory = whole.memory + self._beyond
        held = grown(more.memory, round(memory) - more.memory.total.bytes, more.mode, self._target)
        return whole._replace(memory=memory, fits=held.fits)

    @property
    def _target(self) -> Target:
        return self.base.plan.target

    def _given(self, module: bytes, lines: Sequence[Line]) -> Priced | str:
        """Return what a module takes with lines in it."""
        try:
            given = inserted(module, lines, for_tpu=self._target.is_tpu)
        except Exception as error:  # of MLIR: the layout does not fit
            return f"{type(error).__name__}: {error}"
        arguments = arguments_with(self.base.arguments, lines, self._target.mesh.sizes)
        text = self._partitioned(given)
        key = sha256(_bare(text).encode()).digest()
        if key not in self._known:
            self._known[key] = self._priced(text, arguments)
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

    def _priced(self, text: str, arguments: tuple[StepArgument, ...]) -> Priced | str:
        if not text:
            return "XLA's partitioner gives no program"
        read = read_partitioned(text, self._target, arguments, self.base.free)
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
