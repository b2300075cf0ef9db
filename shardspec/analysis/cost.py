"""What a step costs on one target: what a device holds, and how long it takes.

Everything here is worked out from a plan and a `Step`, without jax and without devices. Every
figure says how well it is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from shardspec.analysis.accuracy import Interval, interval
from shardspec.analysis.step_memory import Basis, StepMemory, mode_of, step_memory
from shardspec.analysis.step_time import Scale, StepTime, scaled, step_time
from shardspec.diagnostics.words import binary_bytes, seconds_text, three_figures
from shardspec.ir.calibration import Calibration
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Target
from shardspec.ir.step import Figure, Phase, Place, Step, Unknown


class Compiler(NamedTuple):
    """Which compiler made a program, and what that took.

    Attributes:
      name: with its version: `libtpu 0.0.52`.
      held_bytes: the most memory of this machine that it held; 0 where that is not known.
      kept_from: the day of the compile, where the program was not made anew.
      flags: that it had, by the variable that they are in.
    """

    name: str
    seconds: float = 0.0
    held_bytes: int = 0
    kept_from: str = ""
    flags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return `compiled by libtpu 0.0.52 in 2.9 s and 1.10 GiB of memory`."""
        held = f" and {binary_bytes(self.held_bytes)} of memory" if self.held_bytes else ""
        made = f"in {self.seconds:.1f} s{held}"
        when = f"kept from {self.kept_from}" if self.kept_from else made
        flags = "".join(f", {name} {value}" for name, value in self.flags)
        return f"compiled by {self.name}, {when}{flags}"


class Added(NamedTuple):
    """Work that a compiler added to a step, which neither the code nor the sharding asks for.

    Attributes:
      what: `copy`; `written out`, of a constant; or `computed again` to save memory.
      array: on one device, `bf16[4, 4096, 8192]`.
      bytes: of it, each time.
      runs: how often in a step.
      why: of a copy at the start or end of a step: another `order` of dimensions is wanted; a
        `loop` has its result beside what it reads; the caller has `kept` what a loop changes.
      path: of the argument that is copied, or whose memory the copy takes.
      order: the dimensions from major to minor, as what reads or makes the array has them.
    """

    what: str
    array: str
    bytes: int
    runs: float
    place: Place
    phase: Phase
    why: Literal["", "order", "loop", "kept"] = ""
    path: str = ""
    order: tuple[int, ...] = ()

    @property
    def step_bytes(self) -> float:
        """Return the bytes in a step."""
        return self.bytes * self.runs


class Loaded(NamedTuple):
    """A step whose busiest device has more than its even share of the tokens of experts.

    Attributes:
      load: what it has, as even shares.
      seconds: of the step; None where that is not known.
      memory_bytes: of that device.
    """

    load: float
    seconds: float | None
    memory_bytes: int


class Uneven(NamedTuple):
    """A step by how uneven the choice of experts is: what most steps take, and one of a hundred.

    Attributes:
      held: experts of a device, of how many there are.
    """

    held: int
    experts: int
    expected: Loaded
    p99: Loaded


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan costs on its target, and what one step of it does.

    Attributes:
      step: None where only a plan is known: then only what the spec's state takes is.
      time: None without a step, and for machines whose speeds the catalogue does not state.
      tokens: what one step goes through, on all devices; None where that is not clear.
      compiler: that whose program the figures are of; None where they are a model's.
      schedule: what the order of instructions takes that the compiler chose.
      added: what that added to the step, the most bytes first.
      predicted: the model's cost of the same step, beside a compiler's.
      other: the same step by another version of the compiler.
      why_modelled: why the figures are a model's, where a compiler was asked.
      uneven: what a step takes whose experts are uneven, where a spec says how. Then the time is
        what is expected, and the memory that of the 99th percentile, which has to fit.
    """

    plan: ShardingPlan = field(repr=False)
    step: Step | None = field(repr=False)
    memory: StepMemory
    time: StepTime | None = None
    tokens: int | None = None
    compiler: Compiler | None = field(default=None, compare=False)
    schedule: StepTime | None = field(default=None, repr=False)
    added: tuple[Added, ...] = field(default=(), repr=False)
    predicted: Cost | None = field(default=None, repr=False, compare=False)
    other: Cost | None = field(default=None, repr=False, compare=False)
    why_modelled: str = field(default="", compare=False)
    uneven: Uneven | None = None

    @property
    def basis(self) -> Basis:
        """Return how well it is known what the step computes and sends."""
        return "modelled" if self.compiler is None else "compiled"

    @property
    def sent_bytes(self) -> int:
        """Return what one device sends in a step."""
        return sum(each.wire_bytes for each in ([] if self.step is None else self.step.collectives))

    @property
    def sends_interval(self) -> Interval | None:
        """Return where what a compiler sends is in nine of ten traced steps; None of others."""
        hardware = self.target.hardware
        if self.step is None or self.step.source != "code" or hardware is None:
            return None
        sent = sum(each.wire_bytes for each in self.step.collectives)
        return interval(sent, hardware.chip.platform, mode_of(self.step), "sends")

    @property
    def for_checks(self) -> Cost:
        """Return what findings read: the traced step, which knows why, and what a compiler made.

        What the model says of memory is its `predicted`.
        """
        model = self.predicted
        if model is None:
            return self
        return replace(model, memory=self.memory, added=self.added, predicted=model)

    @property
    def target(self) -> Target:
        """Return the target that it is the cost on."""
        return self.plan.target

    @property
    def calibration(self) -> Calibration | None:
        """Return the measurements that the time stands on; None where it is the catalogue's."""
        hardware = self.target.hardware
        made = None if hardware is None else hardware.chip.calibration
        return made if made is not None and made.is_own else None

    @property
    def flops(self) -> int | None:
        """Return the FLOPs of all devices in a step, with all work that is done more than once."""
        if self.step is None:
            return None
        return self.step.flops * self.plan.mesh.device_count

    @property
    def mfu(self) -> float | None:
        """Return the share of the peak that the model's own FLOPs are, each counted once.

        Source: Chowdhery et al., PaLM (arXiv 2204.02311), appendix B: rematerialisation does not
        count.
        """
        return None if self.time is None or self.uncounted("time") else self.time.mfu

    def uncounted(self, figure: Figure) -> tuple[Unknown, ...]:
        """Return what of the step makes a figure a lower bound."""
        return () if self.step is None else self.step.uncounted(figure)

    @property
    def tokens_per_s(self) -> float | None:
        """Return how many tokens all devices go through in a second."""
        if self.time is None or self.tokens is None or not self.time.step_seconds:
            return None
        if self.uncounted("time"):
            return None
        return self.tokens / self.time.step_seconds

    def scale(self, seconds: float) -> Scale:
        """Return what times are multiplied by where this step was measured.

        Raises:
          ValueError: no time is predicted of it, or `seconds` is none of a step.
        """
        predicted = 0.0 if self.time is None else self.time.step_seconds
        if not predicted:
            raise ValueError(self._untimed)
        if not 0 < seconds < math.inf:
            raise ValueError(f"a step takes some seconds, and not {seconds}")
        share = seconds / predicted
        told = (
            f"all times are x {three_figures(share)}: the step of the spec as it is took"
            f" {seconds_text(seconds)} on `{self.target.name}`, as measured, where"
            f" {seconds_text(predicted)} is predicted"
        )
        return Scale(share, told)

    @property
    def _untimed(self) -> str:
        return f"no time is predicted for target `{self.target.name}`, so none is scaled"

    def measured(self, seconds: float, base: Cost | None = None) -> Self:
        """Return the same cost with all times scaled by what a step took over its prediction.

        Args:
          seconds: what it took.
          base: the cost of the step that was measured; None for this one.

        Raises:
          ValueError: no time is predicted of either, or `seconds` is none of a step.
        """
        scale = (base or self).scale(seconds)
        time = None if self.time is None else scaled(self.time, scale.share)
        if time is None:
            raise ValueError(self._untimed)
        return replace(self, time=replace(time, notes=(scale.told, *time.notes)))


def cost_of(plan: ShardingPlan, step: Step | None = None, *, tokens: int | None = None) -> Cost:
    """Return what a plan costs, and a step under it.

    Args:
      tokens: what one step goes through on all devices; else it is read off the batch.
    """
    if tokens is None and step is not None:
        tokens = tokens_of(step)
    time = None if step is None else step_time(plan, step)
    return Cost(plan, step, step_memory(plan, step), time, tokens)


def tokens_of(step: Step) -> int | None:
    """Return the tokens of the batch: batch x length of its arrays of whole numbers.

    None where it has none of two dimensions, or several that disagree.
    """
    shapes = {
        each.array.shape
        for each in step.arguments
        if each.role == "batch" and each.array.dtype in _TOKENS and len(each.array.shape) == 2
    }
    sizes = {batch * length for batch, length in shapes}
    return sizes.pop() if len(sizes) == 1 else None


_TOKENS = frozenset(("s32", "u32", "s64", "u64", "s16", "u16"))
