"""Where a pipeline goes wrong: values that one device computes, and no device of many does.

In a pipeline each device has some of the layers, and microbatches reach it one after another. Then
what a line computes in one iteration on one device is computed in another iteration, on the device
that has the layer; and while a device waits, it computes what nobody reads. So the values of such a
line are compared as sets: each one of one device has to be found somewhere. The first that is not,
in the order of one device, is where the pipeline goes wrong. If it is what an earlier layer on
another device has made, then how that reaches its device tells which line is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardspec.diagnostics.words import grouped, reached
from shardspec.ir.step import Place
from shardspec.jax_backend.numbers.rerun import CARRY, MOVES, RING, Mark, Watched

#: A difference up to this share of the largest value is rounding.
ROUNDING = 1e-5
#: Elements of a value that are compared, evenly spread.
_SAMPLE = 256


class Spread(NamedTuple):
    """The values of one line in a pipeline.

    Attributes:
      at: when one device computes the first that no device of many does: how many values are
        outside of loops with exchanges before, the iteration of that loop, and the mark; None where
        all are found.
      layer: in which iteration of the inner loop that is.
      value: it.
      layers: how many iterations of that a device of many has.
    """

    at: tuple[int, int, int] | None = None
    layer: int = 0
    value: Any = None
    layers: int = 0


def key_of(mark: Mark) -> object:
    """Return what is the same for values of one line in two runs."""
    return mark.primitive, mark.place, mark.wraps


def spread(one: Watched, many: Watched) -> dict[int, Spread]:
    """Return the values of many devices that a pipeline computes in other iterations, by mark.

    There is none where no device sends something to the next.
    """
    moves = [many.marks[at] for at in _moves(many)]
    if all(mark.primitive != RING for mark in moves):
        return {}
    depth = min(len(mark.wraps) for mark in moves)
    expected = _alike(one)
    found: dict[int, Spread] = {}
    for key, places in _alike(many).items():
        if key in expected and "devices" in many.marks[places[0]].wraps:
            made = _compared(one, expected[key], many, places, depth)
            found.update(dict.fromkeys(places, made) if made is not None else {})
    return found


def _alike(run: Watched) -> dict[object, list[int]]:
    """Return the marks of values of one line and one shape."""

    def key(at: int) -> object:
        mark = run.marks[at]
        return key_of(mark), np.shape(run.values[at])[len(mark.wraps) :]

    return grouped(range(len(run.marks)), key)


def _compared(
    one: Watched, others: Sequence[int], many: Watched, places: Sequence[int], depth: int
) -> Spread | None:
    """Return how the values of a line are spread; None where iterations are those of one device."""
    count = len(many.marks[places[0]].wraps)
    shape, many_shape = (np.shape(e.values[at]) for e, at in ((one, others[0]), (many, places[0])))
    loops, many_loops = shape[1:count], many_shape[1:count]
    is_same = len(others) == len(places) and loops == many_loops
    if is_same or math.prod(shape[count:]) == 1 or not math.prod(loops):
        return None
    rows = np.concatenate([_rows(many, at) for at in places])
    for at in others:
        for row, value in enumerate(_rows(one, at)):
            if not _has(rows, value):
                turn = np.unravel_index(row, loops) if loops else (0,)
                before = sum(len(mark.wraps) < depth for mark in one.marks[:at])
                when = (before, int(turn[0]) if depth > 1 else 0, at)
                return Spread(when, int(turn[-1]), value, (many_loops or (1,))[-1])
    return Spread()


def _rows(run: Watched, at: int) -> Any:
    """Return the values of a mark, a part of the elements of each, in their order."""
    value, wraps = np.asarray(run.values[at]), run.marks[at].wraps
    value = value.astype(np.int32) if value.dtype == bool else value
    for dim in (dim for dim, wrap in enumerate(wraps) if wrap == "reversed"):
        value = np.flip(value, dim)
    rows = value.reshape(math.prod(value.shape[: len(wraps)]), -1)
    return rows[:, :: max(1, rows.shape[1] // _SAMPLE)]


def _has(rows: Any, value: Any) -> bool:
    """Say whether one of the rows is a value."""
    scale = np.abs(value).max(initial=0.0)
    with np.errstate(all="ignore"):
        return bool((np.abs(rows - value).max(1, initial=0.0) <= 2 * ROUNDING * scale).any())


def fault_of(
    many: Watched, spreads: dict[int, Spread], passed: Collection[int], over: str
) -> tuple[int, str] | None:
    """Return the first value that no device computes, or what keeps it from it; and what is wrong.

    Args:
      passed: the wrong values on the way to wrong outputs.
      over: the mesh axes, in words.
    """
    missing = [(found.at, at) for at in passed if (found := spreads.get(at)) and found.at]
    if not missing:
        return None
    _, at = min(missing)
    found = spreads[at]
    index = "".join(f", by an index of {place}" for place in _indices(many, at))
    what = f"is the first value in a pipeline over {over} that no device computes{index}"
    plain = (at, what)
    is_handed_on = many.marks[at].primitive == CARRY and found.layer and found.layers
    if not is_handed_on or found.layer % found.layers:
        return plain
    sent = list(_received(many, found.layer // found.layers, np.size(found.value)))
    for move, rows in sent:
        turns = [turn for turn, row in enumerate(rows) if _has(row[None], found.value)]
        if turns and turns[0] == len(rows) - 1 > 0:
            told = f"ends before devices along {over} have used what the last iteration sends"
            return _loop(many, move), told
        if turns:
            return _reader(many, move), f"does not use what devices along {over} exchange"
    told = f"does not send what is computed next to the device along {over} that computes it"
    return (sent[0][0], told) if sent else plain


def _indices(many: Watched, at: int) -> list[Place]:
    """Return the other line that computes by which integer a value is taken, or put."""
    mark = many.marks[at]

    def integers(each: int) -> list[int]:
        sources = many.marks[each].sources
        return [e for e in sources if np.issubdtype(np.asarray(many.values[e]).dtype, np.integer)]

    is_indexed = mark.primitive.startswith(("scatter", "gather", "dynamic_"))
    found = reached(integers(at), integers) if is_indexed else ()
    places = (many.marks[each].place for each in sorted(found) if integers(each))
    return [place for place in places if place.is_known and place != mark.place][:1]


def _moves(many: Watched) -> Iterator[int]:
    """Yield the exchanges, in their order."""
    for at, mark in enumerate(many.marks):
        if mark.primitive in MOVES and mark.place.is_known:
            yield at


def _received(many: Watched, device: int, size: int) -> Iterator[tuple[int, Any]]:
    """Yield what a device gets by each exchange of values of so many elements, in turn."""
    for at in _moves(many):
        devices = np.shape(many.values[at])[0]
        rows = _rows(many, at)
        if device < devices and rows.shape[1] == size:
            yield at, rows.reshape(devices, -1, size)[device]


def _loop(many: Watched, move: int) -> int:
    """Return what a loop is watched as in which a value is made."""
    carried = (at for at, mark in enumerate(many.marks) if mark.primitive == CARRY)
    return next((at for at in carried if move in many.marks[at].sources), move)


def _reader(many: Watched, move: int) -> int:
    """Return the first value that is made of what is sent, in this iteration or in the next."""
    sent = {move, _loop(many, move)}
    readers = (
        at for at, mark in enumerate(many.marks) if at not in sent and sent & {*mark.sources}
    )
    return next((at for at in readers if many.marks[at].primitive != CARRY), move)
