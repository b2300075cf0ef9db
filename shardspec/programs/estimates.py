"""How long the operations of a compiled program take, by the compiler's own estimate.

libtpu states cycles for each fusion once it has generated its code, as it thinks them to be for the
shapes on one device; it is the figure that it chooses by. What moves between devices, and kernels
that a user wrote, have none; nor has what it states as more than any step takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardspec.diagnostics.words import grouped
from shardspec.ir.step import Phase, Place
from shardspec.programs.calls import Calls, Ref
from shardspec.programs.hlo import Instruction, number

_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,15})"')
#: What only calls others, which have estimates of their own.
_CALLS = frozenset(("while", "conditional", "call", "async-start"))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one operation takes.

    Attributes:
      what: the einsum that it is, or JAX's word for it.
      cycles: of one device, each time it runs.
      count: how often it runs in a step.
    """

    what: str
    place: Place
    phase: Phase
    cycles: int
    count: float

    @property
    def step_cycles(self) -> float:
        """Return what it takes in a step."""
        return self.cycles * self.count


def estimates_of(
    calls: Calls, told: Callable[[Ref, Instruction], tuple[str, Place, Phase]]
) -> Iterator[Estimate]:
    """Yield what the operations of a program take, where the compiler says so.

    Args:
      told: says of an instruction what it is, its place and its phase.
    """
    for body, times in calls.unfused():
        for each in body.instructions.values():
            cycles = _CYCLES.search(each.attributes)
            if cycles and each.operation not in _CALLS:
                yield Estimate(
                    *told(Ref(body.name, each.name), each), number(cycles.group(1)), times
                )


def cycles_in(text: str) -> int | None:
    """Return the cycles of all operations of a program that runs each once; None where it has none.

    >>> cycles_in('a = fusion(), backend_config={"estimated_cycles":"7"}'), cycles_in("a = f32[]")
    (7, None)
    """
    found = [number(each) for each in _CYCLES.findall(text)]
    return sum(found) if found else None


def by_line(estimates: Iterable[Estimate]) -> tuple[tuple[Estimate, ...], ...]:
    """Return estimates, those of one operation at one line together, the longest first."""
    groups = grouped(estimates, lambda each: (each.what, str(each.place), each.phase))
    found = (tuple(group) for group in groups.values())
    return tuple(sorted(found, key=lambda group: -step_cycles(group)))


def step_cycles(estimates: Iterable[Estimate]) -> float:
    """Return what operations take in a step."""
    return sum(each.step_cycles for each in estimates)
