"""A predicted step as a trace of the Trace Event format, for ui.perfetto.dev and other viewers.

One row has what computes, with a slice of waiting for each collective that shows; each mesh axis
has a row of its collectives, as they go on beside the computation. An operation that runs several
times is one slice of all its runs. Memory is a counter, over the order of the program.

The rows sum to the prediction: the slices of computation to what computes, the slices of an axis to
what its collectives take, those of waiting to what shows, and all end with the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardspec.analysis.comparison import Spent, timed_of
from shardspec.analysis.cost import Cost
from shardspec.analysis.step_memory import Made, made_of
from shardspec.versions import PACKAGE

COMPUTE = "compute"
#: The process of all rows; threads are numbered from 1.
_STEP = 1
#: Microseconds between two slices: more than what a viewer's sums of numbers with a point are off.
_GAP = 1e-6

Event = dict[str, Any]


@dataclass(slots=True)
class Slice:
    """What one row shows of an operation.

    Attributes:
      row: `compute`, or the mesh axes that it goes over.
      due: when it is to end, of a collective: what waits for it goes on then.
    """

    row: str
    spent: Spent
    seconds: float
    due: float
    start: float = 0.0
    is_wait: bool = False

    @property
    def end(self) -> float:
        """Return when it ends."""
        return self.start + self.seconds


def trace_text(cost: Cost) -> str:
    """Return a predicted step as a trace; nothing where no time is predicted."""
    slices = slices_of(cost)
    if not slices:
        return ""
    end = max(each.end for each in slices)
    rows = [COMPUTE, *sorted({each.row for each in slices} - {COMPUTE})]
    events = [*_names(cost, rows), *_events(slices, rows), *_memory(cost, end)]
    lines = ",\n".join(json.dumps(each) for each in events)
    about = json.dumps({"made_by": f"shardspec {PACKAGE}", "target": cost.target.name})
    head = f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": [\n'
    return f"{head}{lines}\n]}}\n"


def slices_of(cost: Cost) -> list[Slice]:
    """Return the slices of all rows, placed."""
    compute: list[Slice] = []
    sent: dict[str, list[Slice]] = {}
    now = 0.0
    for _, row in sorted(timed_of(cost), key=lambda item: item[0]):
        took = row.shown
        if took:
            is_wait = row.kind == "collective"
            compute.append(Slice(COMPUTE, row, took, now + took, now, is_wait))
        now += took
        if row.kind == "collective" and row.seconds:
            axis = "+".join(row.mesh_axes)
            sent.setdefault(axis, []).append(Slice(axis, row, row.seconds, now))
    for each in sent.values():
        _place(each, now)
    return [*compute, *(one for each in sent.values() for one in each)]


def _place(row: Sequence[Slice], end: float) -> None:
    """Place the collectives of one axis: each ends when it is waited for, if there is room.

    One that goes on while another of its axis is under way is earlier; what would begin before the
    step does is later.
    """
    for each in reversed(row):
        end = min(each.due, end)
        each.start = end = end - each.seconds
    begin = 0.0
    for each in row:
        each.start = begin = max(each.start, begin)
        begin += each.seconds


def _names(cost: Cost, rows: Sequence[str]) -> Iterator[Event]:
    step = f"predicted step of target {cost.target.name}"
    yield _named("process_name", 0, name=step)
    for number, row in enumerate(rows, 1):
        yield _named("thread_name", number, name=row if number == 1 else f"mesh axis {row}")
        yield _named("thread_sort_index", number, sort_index=number)


def _named(what: str, thread: int, **args: Any) -> Event:
    return {"ph": "M", "pid": _STEP, "tid": thread, "name": what, "args": args}


def _events(slices: Sequence[Slice], rows: Sequence[str]) -> Iterator[Event]:
    """Yield the slices, and an arrow from each collective to what waits for it."""
    numbers = {row: number for number, row in enumerate(rows, 1)}
    waits = {id(each.spent): each for each in slices if each.is_wait}
    for number, each in enumerate(slices):
        at = {"pid": _STEP, "tid": numbers[each.row]}
        name = f"wait: {each.spent.what}" if each.is_wait else each.spent.what
        begin, took = _times(each)
        times = {"ts": begin, "dur": took}
        yield {"ph": "X", **at, "name": name, "cat": each.spent.kind, **times, "args": _args(each)}
        wait = waits.get(id(each.spent)) if each.row != COMPUTE else None
        if wait is not None:
            flow = {"pid": _STEP, "name": "waits", "cat": "flow", "id": number}
            yield {"ph": "s", **flow, "tid": numbers[each.row], "ts": begin}
            late = max(_at(wait.start), begin)
            yield {"ph": "f", "bp": "e", **flow, "tid": numbers[COMPUTE], "ts": late}


def _times(each: Slice) -> tuple[float, float]:
    """Return when a slice begins and what it takes, in microseconds.

    Viewers add both, as they are, in milliseconds or cut to whole nanoseconds. If the sum were a
    little later than the next slice of the row begins, they would stack it above this one.
    """
    begin = _at(each.start)
    return begin, max(0.0, _at(each.end) - begin - _GAP)


def _at(seconds: float) -> float:
    """Return a time in microseconds that is not below its whole nanoseconds."""
    nanoseconds = round(seconds * 1e9)
    found = nanoseconds / 1e3
    return found if int(found * 1e3) == nanoseconds else math.nextafter(found, math.inf)


def _args(each: Slice) -> Event:
    """Return what is known of a slice: its line, rule and array, and how often it runs."""
    spent = each.spent
    told = {
        "line": str(spent.place) if spent.place.is_known else "unknown",
        "rule": " + ".join(map(str, spent.askers)) or "unknown",
        "array": spent.array,
        "phase": spent.phase,
        "runs": spent.runs,
        "mesh_axes": "+".join(spent.mesh_axes),
    }
    return {key: value for key, value in told.items() if value != ""}


def _memory(cost: Cost, end: float) -> Iterator[Event]:
    """Yield what a device holds, over the order of the program; nothing where that is not known."""
    for at, held in memory_over(cost, end):
        name = "memory, in bytes, by order of the program"
        yield {"ph": "C", "pid": _STEP, "name": name, "ts": _at(at), "args": held}


def memory_over(cost: Cost, end: float) -> list[tuple[float, dict[str, int]]]:
    """Return the bytes of each part that a device holds, from each second of a step on.

    The order of the program is spread evenly over the step. Nothing where no value is known.
    """
    made = None if cost.step is None else made_of(cost.step, cost.target)
    if made is None or not made.lives:
        return []
    parts = {name: part.bytes for name, part in cost.memory.parts.items()}
    over = list(made.over())
    none = dict.fromkeys(over[0][1], 0) | {"activations": made.kept}
    return [(second_of(tick, made, end), parts | held) for tick, held in ((0, none), *over)]


def second_of(tick: int, made: Made, end: float) -> float:
    """Return where in a step of `end` seconds a tick is drawn."""
    return max(tick, 0) / max(1, *(each.ends for each in made.lives)) * end
