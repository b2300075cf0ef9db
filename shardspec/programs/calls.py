"""Which computation calls which, and how often each runs in a step.

A compiled program is a tree of computations: fusions and the bodies of loops stand for themselves
and are called from one place each. XLA prints how often a loop goes round for GPUs and CPUs; for
TPUs it has to be read from what the loop counts, from where, and up to where.

How long the operations of a compiled program take, by the compiler's own estimate.

libtpu states cycles for each fusion once it has generated its code, as it thinks them to be for the
shapes on one device; it is the figure that it chooses by. What moves between devices, and kernels
that a user wrote, have none; nor has what it states as more than any step takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from shardspec.diagnostics.words import by_key, grouped, reached
from shardspec.ir.operations import IN_HLO, op_info
from shardspec.ir.step import Phase, Place
from shardspec.programs.hlo import Computation, Instruction, Program, number

#: Operations whose computations run; those of the others say how to combine two numbers.
_CALLS = frozenset(("fusion", "call", "while", "conditional", "async", "custom-call"))
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
#: How many operations a number is followed through.
_FAR = 50
#: More runs than these are not told apart.
_MOST_RUNS = 10**18


class Ref(NamedTuple):
    """An instruction, by the name of its computation and its own."""

    computation: str
    name: str


class Site(NamedTuple):
    """Where a computation is called from, and by what."""

    ref: Ref
    caller: Instruction


@dataclass(frozen=True, slots=True)
class Calls:
    """The computations of a program as they call each other.

    Attributes:
      sites: the instruction that calls each, the first where there are more.
      times: how often each runs in a step; of those that run, callers first.
      endless: loops that do not say how often they go round: counted as one.
    """

    program: Program
    sites: dict[str, Site]
    times: dict[str, int]
    endless: tuple[Ref, ...]

    def instruction(self, ref: Ref) -> Instruction | None:
        """Return an instruction; None where there is none of that name."""
        found = self.program.computations.get(ref.computation)
        return None if found is None else found.instructions.get(ref.name)

    def unfused(self) -> Iterator[tuple[Computation, int]]:
        """Yield the computations that run by themselves and not inside a fusion, and how often."""
        fused = {
            name
            for computation in self.program.computations.values()
            for each in computation.instructions.values()
            if each.operation == "fusion"
            for name in each.called
        }
        for name, times in self.times.items():
            if name not in fused and name in self.program.computations:
                yield self.program.computations[name], times

    def callers(self, names: Iterable[str]) -> frozenset[str]:
        """Return some computations, and all that call them."""
        called = by_key(
            (name, computation.name)
            for computation in self.program.computations.values()
            for each in computation.instructions.values()
            for name in called_by(each)
        )
        return frozenset(reached(names, lambda name: called.get(name, ())))

    def within(self, name: str) -> frozenset[str]:
        """Return a computation and all that it calls."""
        known = self.program.computations

        def called(name: str) -> Iterator[str]:
            for each in known[name].instructions.values():
                yield from (inner for inner in called_by(each) if inner in known)

        return frozenset(reached([name] if name in known else (), called))


def called_by(each: Instruction) -> tuple[str, ...]:
    """Return the computations that an instruction runs."""
    return each.called if each.operation.removesuffix("-start") in _CALLS else ()


def calls_of(program: Program) -> Calls | None:
    """Return how the computations call each other; None where they do so in a circle."""
    sites: dict[str, list[Site]] = {}
    for computation in program.computations.values():
        for each in computation.instructions.values():
            for name in called_by(each):
                if name in program.computations:
                    sites.setdefault(name, []).append(Site(Ref(computation.name, each.name), each))
    callers = {name: {site.ref.computation for site in found} for name, found in sites.items()}
    try:
        order = tuple(TopologicalSorter(callers).static_order())
    except CycleError:
        return None
    first = {name: found[0] for name, found in sites.items()}
    return _counted(program, first, sites, order)


def _counted(
    program: Program, first: dict[str, Site], sites: dict[str, list[Site]], order: tuple[str, ...]
) -> Calls:
    times = {program.entry.name: 1} if program.entry is not None else {}
    endless: list[Ref] = []
    for name in order:
        runs = 0
        for site in sites.get(name, ()):
            rounds = rounds_of(program, site) if site.caller.operation == "while" else 1
            if rounds is None:
                endless.append(site.ref)
            runs += times.get(site.ref.computation, 0) * (1 if rounds is None else rounds)
        if runs and name not in times:
            times[name] = min(_MOST_RUNS, runs)
    running = tuple(dict.fromkeys(ref for ref in endless if ref.computation in times))
    return Calls(program, first, times, running)


def rounds_of(program: Program, site: Site) -> int | None:
    """Return how often a loop goes round, None where the program does not say."""
    known = _TRIPS.search(site.caller.attributes)
    if known:
        return number(known.group(1))
    condition = program.computations.get(site.caller.attribute("condition"))
    body = program.computations.get(site.caller.attribute("body"))
    test = None if condition is None else condition.root
    if condition is None or body is None or test is None:
        return None
    if test.operation == "fusion":
        condition = _opened(program, condition, test)
        test = condition.root or test
    if test.operation != "compare" or "direction=LT" not in test.bare or len(test.operands) != 2:
        return None
    counter, limit = (through(condition, name) for name in test.operands)
    at = _element(counter)
    outside = program.computations[site.ref.computation]
    last = _number(limit)
    if last is None:
        last = _started(outside, site.caller, _element(limit))
    start = _started(outside, site.caller, at)
    step = _step(program, body, at)
    if last is None or not step:
        return None
    return max(0, math.ceil((last - (start or 0)) / step))


def _opened(program: Program, outer: Computation, fusion: Instruction) -> Computation:
    """Return what a fusion does, with what it is given in place of its parameters."""
    inner = program.computations.get(fusion.called[0], outer) if fusion.called else outer
    given = {
        parameter.name: outer.instructions[fusion.operands[at]]
        for at, parameter in inner.parameters.items()
        if at < len(fusion.operands) and fusion.operands[at] in outer.instructions
    }
    others = {name: each for name, each in outer.instructions.items() if not each.is_root}
    return Computation(inner.name, {**others, **inner.instructions, **given})


def through(computation: Computation, name: str) -> Instruction | None:
    """Return what a name stands for, through copies and other forms."""
    found = computation.instructions.get(name)
    for _ in range(_FAR):
        if found is None or op_info(found.operation).view != "whole" or not found.operands:
            return found
        found = computation.instructions.get(found.operands[0])
    return found


def is_made_for(
    reader: Instruction,
    moved: Instruction,
    source: Instruction | None,
    readers: Iterable[Instruction],
) -> bool:
    """Say whether the partitioner moves a value for what reads it, and not because code asks.

    A move has the name of its reader or, since jaxlib 0.12, of what it moves. Where code constrains
    the value, a copy with the name of the constraint is behind it.

    Args:
      readers: of `moved`, copies included.
    """
    if moved.op_name == reader.op_name:
        return True
    is_asked = any(each.op_name.endswith("sharding_constraint") for each in readers)
    return source is not None and moved.op_name == source.op_name and not is_asked


def named_by(moved: Instruction, body: Computation) -> Instruction:
    """Return the instruction whose name says what a collective is for: its reader, or itself.

    XLA gives a move the name of its reader, or since jaxlib 0.12 the name of what it moves. It
    gives a sum the name of what it sums.
    """
    kind = IN_HLO.get(moved.operation)
    source = body.instructions.get(moved.operands[0]) if moved.operands else None
    if kind is None or kind.traits.sums or source is None or source.op_name != moved.op_name:
        return moved
    readers = body.users.get(moved.name, [])
    is_own = any(each.op_name == moved.op_name for each in readers)
    return moved if is_own or not readers else readers[0]


def _element(each: Instruction | None) -> int | None:
    """Return which element of its tuple an instruction takes."""
    if each is None or each.operation != "get-tuple-element":
        return None
    return each.index


def _number(each: Instruction | None) -> int | None:
    if each is None or each.operation != "constant":
        return None
    text = each.stated.strip()
    sign = -1 if text.startswith("-") else 1
    return sign * number(text.lstrip("-")) if text.lstrip("-").isdecimal() else None


def _started(outside: Computation, loop: Instruction, at: int | None) -> int | None:
    """Return the number that an element of a loop's tuple starts as."""
    given = through(outside, loop.operands[0]) if loop.operands else None
    if at is None or given is None or given.operation != "tuple" or at >= len(given.operands):
        return None
    return _number(through(outside, given.operands[at]))


def _step(program: Program, body: Computation, at: int | None) -> int | None:
    """Return by how much each round moves the counter."""
    root = body.root
    if at is None or root is None or root.operation != "tuple" or at >= len(root.operands):
        return None
    found = through(body, root.operands[at])
    inside = body
    if found is not None and found.operation == "fusion" and found.called:
        inside = _opened(program, body, found)
        found = inside.root
    if found is None or found.operation != "add":
        return None
    numbers = (_number(through(inside, name)) for name in found.operands)
    return next((each for each in numbers if each), None)


_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,15})"')
#: What only calls others, which have estimates of their own.
_WITHOUT_CYCLES = frozenset(("while", "conditional", "call", "async-start"))


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
            if cycles and each.operation not in _WITHOUT_CYCLES:
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
