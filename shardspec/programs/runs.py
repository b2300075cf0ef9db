"""What the operations of a captured step take: each instant of it counts once.

On a device several things go on at once: streams, threads, loops around what they run. An instant
counts for the operations that compute; where none does, for what moves data, which computation does
not hide then; where that is none, for the loop or call around; and else for nothing. So what all
operations show sums to the step, and what a collective shows is what of it is exposed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shardspec.diagnostics.words import by_key, counted, grouped, percent
from shardspec.programs.captures import Capture, Event

#: What an instant counts for first: what computes, what moves data, what only calls others.
Rank = int
COMPUTES, MOVES, CALLS = range(3)
#: The lane whose slices overlap each other.
_ASYNC = "Async"
_S = 1e-12


class Took(NamedTuple):
    """What one operation takes in a step, on one device, in seconds; see `Spent`."""

    seconds: float
    shown: float
    runs: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The complete steps of a capture.

    Attributes:
      module: whose runs they are.
      devices: that ran it.
      count: of steps on each device, the fewest.
      times: of each step on each device.
      ops: by name; the empty name is what is of no instruction of the module.
      idle: of a step, while nothing runs.
      period: from the start of a step to that of the next; None for a single one.
      once: of each operation the times of its runs, each of the device where it was shortest.

    Invariants:
      sum: what `ops` show and `idle` sum to the mean of `times`.
    """

    module: str
    devices: tuple[str, ...]
    count: int
    times: tuple[float, ...] = field(repr=False)
    period: float | None
    ops: dict[str, Took] = field(repr=False)
    idle: float
    once: dict[str, tuple[float, ...]] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return what a step takes."""
        return statistics.fmean(self.times)


class _Run(NamedTuple):
    """One run of the module on one device."""

    device: str
    events: tuple[Event, ...]

    @property
    def start(self) -> int:
        return self.events[0].start

    @property
    def end(self) -> int:
        return max(each.end for each in self.events)

    def whole(self) -> Iterator[Event]:
        """Yield the events that are whole operations, and not the start or the end of one."""
        beside = {each.op for each in self.events if each.lane.startswith(_ASYNC)}
        for each in self.events:
            if each.op not in beside or each.lane.startswith(_ASYNC):
                yield each


def modules_of(capture: Capture) -> dict[str, float]:
    """Return the modules of a capture and the seconds of their operations, the longest first."""
    found: Counter[str] = Counter()
    for each in capture.events:
        if each.module:
            found[each.module] += each.end - each.start
    return {name: picoseconds * _S for name, picoseconds in found.most_common()}


def steps_of(
    capture: Capture,
    module: str,
    rank: Callable[[str], Rank],
    name: Callable[[str], str] = str,
) -> Steps:
    """Return what the operations of a module take in a step.

    Args:
      rank: what an instant counts for, by the name of an operation.
      name: what the end of an operation counts as: what began it.
    """
    notes: list[str] = []
    runs = [
        _Run(run.device, tuple(each._replace(op=name(each.op)) for each in run.events))
        for run in _complete(list(_runs(capture, module)), notes)
    ]
    beside = by_key((each.device, each) for each in capture.events if each.module != module)
    ops, idle = _added_up(runs, beside, rank)
    return Steps(
        module,
        tuple(dict.fromkeys(run.device for run in runs)),
        min(Counter(run.device for run in runs).values()),
        tuple((run.end - run.start) * _S for run in runs),
        _period(runs),
        ops,
        idle,
        _shortest(runs),
        tuple(notes),
    )


def _added_up(
    runs: Sequence[_Run], beside: Mapping[str, Sequence[Event]], rank: Callable[[str], Rank]
) -> tuple[dict[str, Took], float]:
    """Return what operations take in the mean of some runs, and how long nothing runs."""
    ops: dict[str, list[float]] = {}
    idle = 0.0
    for run in runs:
        others = _within(beside.get(run.device, ()), run)
        busy, shown, empty = _swept([*run.events, *others], rank)
        idle += empty
        for op, took in busy.items():
            held = ops.setdefault(op, [0.0, 0.0, 0.0])
            held[0] += took * _S
            held[1] += shown.get(op, 0.0) * _S
        for each in run.whole():
            ops.setdefault(each.op, [0.0, 0.0, 0.0])[2] += 1
    mean = {op: Took(*(value / len(runs) for value in held)) for op, held in ops.items()}
    return mean, idle * _S / len(runs)


def _runs(capture: Capture, module: str) -> Iterator[_Run]:
    """Yield the runs of a module on each device, in order."""
    own = by_key((each.device, each) for each in capture.events if each.module == module)
    for device, events in own.items():
        if all(each.run for each in events):
            found = grouped(events, lambda each: each.run).values()
            yield from (_Run(device, tuple(each)) for each in found)
        else:
            yield from (_Run(device, tuple(each)) for each in _apart(events))


def _apart(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield the events of each run, where nothing says which run they are of.

    A run has one of the operation that a step runs least often; between two of them it ends where
    nothing runs for longest.
    """
    counts = Counter(each.op for each in events)
    least = min(counts.values())
    once = next(each.op for each in events if counts[each.op] == least)
    marks = [at for at, each in enumerate(events) if each.op == once]
    cuts = [_longest_gap(events, *pair) for pair in pairwise(marks)]
    yield from (events[a:b] for a, b in pairwise((0, *cuts, len(events))))


def _longest_gap(events: Sequence[Event], first: int, last: int) -> int:
    """Return which of the events behind the first, up to the last, begins after the longest gap."""
    end, gaps = events[first].end, []
    for at in range(first + 1, last + 1):
        gaps.append((events[at].start - end, -at))
        end = max(end, events[at].end)
    return -max(gaps)[1]


def _complete(runs: list[_Run], notes: list[str]) -> list[_Run]:
    """Return the runs that have as many operations as most have."""
    usual = Counter(len(run.events) for run in runs)
    size = max(usual, key=lambda each: (usual[each], each))
    is_usual = 2 * usual[size] > len(runs)
    whole = [run for run in runs if not is_usual or len(run.events) == size]
    if len(whole) < len(runs) and usual[size] > 1:
        part = len(runs) - len(whole)
        notes.append(
            f"{part} of {counted(len(runs), 'captured step')} of a device"
            f" {'has' if part == 1 else 'have'} fewer or more operations than the others: left out"
        )
        return whole
    return runs


def _within(events: Sequence[Event], run: _Run) -> list[Event]:
    """Return what else the device did meanwhile, cut to the run, under no name."""
    start, end = run.start, run.end
    return [
        each._replace(op="", start=max(start, each.start), end=min(end, each.end))
        for each in events
        if each.start < end and each.end > start
    ]


def _period(runs: Iterable[_Run]) -> float | None:
    """Return the time from the start of a step to the start of the next."""
    gaps = [
        (later.start - before.start) * _S
        for found in grouped(runs, lambda run: run.device).values()
        for before, later in pairwise(sorted(found, key=lambda run: run.start))
    ]
    return statistics.median(gaps) if gaps else None


def _shortest(runs: Iterable[_Run]) -> dict[str, tuple[float, ...]]:
    """Return the times of each operation, run by run: of all devices the shortest.

    A device that comes early to a collective waits for the others; the last one does not.
    """
    found: dict[tuple[str, int], int] = {}
    for run_list in grouped(runs, lambda run: run.device).values():
        seen: Counter[str] = Counter()
        for run in run_list:
            for each in run.whole():
                key = each.op, seen[each.op]
                seen[each.op] += 1
                took = each.end - each.start
                found[key] = min(found.get(key, took), took)
    times = by_key((op, took * _S) for (op, _), took in found.items())
    return {op: tuple(each) for op, each in times.items()}


# one run


def _swept(
    events: Sequence[Event], rank: Callable[[str], Rank]
) -> tuple[dict[str, float], dict[str, float], float]:
    """Return what operations take, what they show, and how long nothing runs."""
    points: list[tuple[int, int, str]] = []
    for lane in grouped(events, lambda each: each.lane).values():
        for start, end, op in _own(lane):
            points += ((start, 1, op), (end, -1, op))
    points.sort()
    active: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    busy: dict[str, float] = {}
    shown: dict[str, float] = {}
    idle, before = 0.0, points[0][0] if points else 0
    for at, change, op in points:
        took = at - before
        if took:
            before = at
            for ops in active:
                for name in ops:
                    busy[name] = busy.get(name, 0.0) + took
            first = next((ops for ops in active if ops), None)
            idle += took if first is None else 0
            for name in first or ():
                shown[name] = shown.get(name, 0.0) + took / len(first or ())
        ops = active[rank(op)]
        ops[op] += change
        if not ops[op]:
            del ops[op]
        busy.setdefault(op, 0.0)
    return busy, shown, idle


def _own(events: Iterable[Event]) -> Iterator[tuple[int, int, str]]:
    """Yield the slices of one lane: of what is around others, what these leave."""
    open_: list[Event] = []
    at = 0
    for each in sorted(events, key=lambda each: (each.start, -each.end)):
        while open_ and open_[-1].end <= each.start:
            last = open_.pop()
            if last.end > at:
                yield at, last.end, last.op
                at = last.end
        if each.lane.startswith(_ASYNC) or (open_ and each.end > open_[-1].end):
            yield each.start, each.end, each.op
            continue
        if open_ and each.start > at:
            yield at, each.start, open_[-1].op
        at = each.start
        open_.append(each)
    while open_:
        last = open_.pop()
        if last.end > at:
            yield at, last.end, last.op
            at = last.end


def told_of_others(modules: dict[str, float], module: str) -> Iterator[str]:
    """Yield which other modules ran for long."""
    whole = sum(modules.values())
    for name, seconds in modules.items():
        if name != module and seconds > 0.05 * whole:
            yield f"{name} took {percent(seconds, whole)} of the time of operations: not this step"
