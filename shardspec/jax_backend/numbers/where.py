"""Find the first value inside a step that differs, by two watched runs of it.

Values outside `shard_map` are compared as they are. Inside, each device has one, and they may
stand for the value of one device in several ways: all the same, its parts, or numbers of which it
is the sum, the mean or the largest. A value that fits none of these is wrong, or is part of a way
to compute that comes right again. So the search starts at the outputs that differ, and goes back
through values that are wrong, as far as the first that is made of right ones alone. What is wrong
in one iteration of a loop makes all that follow wrong, so first iterations are compared, and
others only where those are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from shardspec.diagnostics.words import grouped, reached
from shardspec.jax_backend.equations import BACKWARD
from shardspec.jax_backend.numbers import schedules
from shardspec.jax_backend.numbers.rerun import (
    FORMS_OF_PARTS,
    LOOP,
    MOVES,
    RING,
    Mark,
    Watched,
)
from shardspec.jax_backend.numbers.schedules import ROUNDING, Spread, key_of
from shardspec.programs.numbers import FirstDifference

#: How the values of devices stand for that of one; `unknown` where they cannot be paired.
#: `larger` are gradients of each device's own mean: on N devices they are N times larger.
State = Literal["same", "split", "sum", "mean", "largest", "larger", "wrong", "unknown"]

#: What is larger stands for a score that is masked, and says nothing of the size of others.
_MASKED = 1e9
_PENDING: dict[State, str] = {
    "sum": "a partial sum",
    "mean": "a mean over a part",
    "largest": "the largest of a part",
}
#: An error of a value is one of its source where that is off by at least this share of it.
_INHERITED = 0.05
#: What follows the order of the values on one device.
_OWN_ORDER = frozenset(
    (
        *("iota", "sort", "top_k", "argmax", "argmin"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    )
)
#: What reads or writes at positions, which are those of a device's part.
_READ_AT = frozenset(("gather", "scatter", "scatter-add", "dynamic_slice", "dynamic_update_slice"))
_SCATTERS = frozenset(("psum_scatter", "reduce_scatter"))
_SUMS = frozenset(("psum", "psum_invariant", "psum2", "all_gather_invariant"))
_EXCHANGES = _SUMS | _SCATTERS | MOVES


def first_difference(
    one: Watched, many: Watched, axes: Sequence[str], wrong: Sequence[int]
) -> FirstDifference | None:
    """Return the first value that differs and leads to outputs that do; None if none is found.

    Args:
      axes: the mesh axes of `many`.
      wrong: the outputs that differ, by their places.
    """
    spreads = schedules.spread(one, many)
    for is_whole in (False, True):
        pairs = list(_settled(many, _states(one, many, spreads, is_whole=is_whole)))
        states = [state for state, _ in pairs]
        found, passed = _back(many, states, [error for _, error in pairs], wrong)
        named = sorted(
            at
            for at in found
            if many.marks[at].place.is_known and (is_whole or many.marks[at].primitive != LOOP)
        )
        fault = schedules.fault_of(many, spreads, passed, _over(axes))
        told = [_what(many, states, at, axes) for at in named]
        before = (at for at, _ in told if at not in spreads and at < fault[0]) if fault else ()
        is_first = all(many.marks[at].primitive in _OWN_ORDER for at in before)
        reasons = [fault] if fault and is_first else [pair for pair in told if pair[1]]
        reasons = reasons or _local_count(many, states, named, passed, axes)
        for at, what in reasons or _exchange(many, states, named, passed, axes) or told:
            mark = many.marks[at]
            index = "".join(f", by the index of a device at {each}" for each in mark.indices)
            plain = f"is the first value that differs when {_over(axes)} is larger than 1{index}"
            return FirstDifference(mark.place, what or plain, mark.primitive)
        at_end = _at_end(many, states, axes)
        if at_end is not None:
            return at_end
    return None


def _states(
    one: Watched, many: Watched, spreads: Mapping[int, Spread], *, is_whole: bool
) -> Iterator[tuple[State, float]]:
    """Yield how each value of many devices is related to that of one device, and its error.

    Args:
      spreads: values that a pipeline computes in other iterations.
      is_whole: whether all iterations of loops are compared, or the first alone.
    """
    expected = grouped(range(len(one.marks)), lambda at: key_of(one.marks[at]))
    found = grouped(range(len(many.marks)), lambda at: key_of(many.marks[at]))
    pairs: dict[int, int] = {}
    for key, places in found.items():
        others = expected.get(key, ())
        if len(others) == len(places):
            pairs.update(zip(places, others, strict=True))
    for at, mark in enumerate(many.marks):
        if at in spreads:
            yield ("same", 0.0) if spreads[at].at is None else ("wrong", 1.0)
            continue
        if at not in pairs:
            yield "unknown", 0.0
            continue
        left = _by_device(one.values[pairs[at]], one.marks[pairs[at]], is_whole)
        right = _by_device(many.values[at], mark, is_whole)
        state, error = _state(left, right)
        yield ("wrong", 1.0) if state in _PENDING and _is_chance(mark, right) else (state, error)


def _is_chance(mark: Mark, value: Any) -> bool:
    """Say whether a value may be a part by chance: one integer, equal on all devices, no sum."""
    is_count = mark.primitive.startswith("reduce_") or mark.primitive in _OWN_ORDER
    is_one = value.size == len(value) and bool((value == value[:1]).all())
    return is_one and not is_count and not np.issubdtype(value.dtype, np.inexact)


def _settled(many: Watched, pairs: Iterable[tuple[State, float]]) -> Iterator[tuple[State, float]]:
    """Yield states and errors; what an exchange made larger is wrong, and so is what follows it."""
    made: list[State] = []
    for at, (mark, (state, error)) in enumerate(zip(many.marks, pairs, strict=True)):
        before = {made[each] for each in mark.sources if each < at}
        is_local = before.isdisjoint(("wrong", *_PENDING)) and mark.primitive not in _EXCHANGES
        made.append(state if state != "larger" or is_local else "wrong")
        yield made[-1], error if made[-1] == state else 1.0


def _by_device(value: Any, mark: Mark, is_whole: bool) -> Any:
    """Return a value with its devices first: one row for a value outside of `shard_map`."""
    value = np.asarray(value)
    for dim, wrap in enumerate(mark.wraps if not is_whole else ()):
        if wrap != "devices" and value.shape[dim]:
            first = value.shape[dim] - 1 if wrap == "reversed" else 0
            value = np.take(value, [first], dim)
    if value.dtype == bool:
        value = value.astype(np.int32)
    if "devices" not in mark.wraps:
        return value[None]
    places = [at for at, each in enumerate(mark.wraps) if each == "devices"]
    value = np.moveaxis(value, places, range(len(places)))
    return value.reshape(math.prod(value.shape[: len(places)]), *value.shape[len(places) :])


def _state(one: Any, many: Any) -> tuple[State, float]:
    """Return how values of devices are related to that of one device, and their error.

    How far is a share of the largest value, and of a wrong value the least of all ways.
    """
    expected = one[0]
    sizes = np.abs(expected[np.abs(expected) < _MASKED])
    scale = float(sizes.max(initial=0.0))
    least = math.inf
    with np.errstate(all="ignore"):
        for state, value in _ways(expected, many):
            off = _off(expected, value, scale)
            if off <= ROUNDING:
                return state, off
            least = min(least, off)
    return "wrong", least


def _ways(expected: Any, many: Any) -> Iterator[tuple[State, Any]]:
    """Yield each way to put the values of devices together, and what it makes."""
    shape, count = many[0].shape, len(many)
    if shape == expected.shape:
        yield "same", many
        if count > 1:
            yield from (("sum", many.sum(0)), ("mean", many.mean(0)), ("largest", many.max(0)))
            yield from _larger(many, count)
        return
    if len(shape) != expected.ndim or count == 1:
        return
    ratios = [
        whole / part if part else 0.0 for whole, part in zip(expected.shape, shape, strict=True)
    ]
    longer = [dim for dim, ratio in enumerate(ratios) if ratio == count]
    for dim in longer:
        yield "split", np.concatenate(list(many), dim)
        yield from _larger(np.concatenate(list(many), dim), count)
    for among in (dim for dim, size in enumerate(shape) if size == count * expected.shape[dim]):
        for dim in longer:
            yield "same", np.stack([_merged(each, among, dim) for each in many])
            for own in longer:
                if own != dim:
                    parts = [_merged(each, among, dim) for each in many]
                    yield "split", np.concatenate(parts, own)


def _larger(value: Any, count: int) -> Iterator[tuple[State, Any]]:
    if np.issubdtype(value.dtype, np.floating):
        yield "larger", value / count


def _merged(value: Any, among: int, dim: int) -> Any:
    """Return a value whose parts along one dimension stand behind one another along another."""
    return np.concatenate(np.split(value, value.shape[among], among), dim)


def _off(expected: Any, value: Any, scale: float) -> float:
    """Return the largest difference as a share of what it may be: rounding is `ROUNDING`."""
    if value.shape[value.ndim - expected.ndim :] != expected.shape:
        return math.inf
    is_number = np.issubdtype(value.dtype, np.inexact)
    one, other = (each if is_number else each.astype(float) for each in (expected, value))
    one = np.broadcast_to(one, value.shape)
    if not one.size:
        return 0.0
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    off = np.abs(one - other) / (np.abs(one) + scale)
    return float(np.where(is_same, 0.0, np.where(np.isnan(off), math.inf, off)).max())


def _over(axes: Sequence[str]) -> str:
    return " and ".join(f"`{axis}`" for axis in axes)


def _local_count(
    many: Watched,
    states: Sequence[State],
    named: Sequence[int],
    passed: Sequence[int],
    axes: Sequence[str],
) -> list[tuple[int, str]]:
    """Return the first positions that every device counts from 0 and computes with as they are.

    Args:
      named: the first values that differ.
      passed: the wrong values on the way to wrong outputs.
    """

    def onward(at: int) -> tuple[int, ...]:
        is_plain = states[at] == "unknown" and not many.marks[at].indices
        return many.marks[at].sources if is_plain else ()

    def is_count(at: int) -> bool:
        rows = np.asarray(many.values[at])
        return many.marks[at].primitive == "iota" and bool((rows == rows[:1]).all())

    counts = list(filter(is_count, named))
    for reader in sorted(passed):
        mark = many.marks[reader]
        is_float = np.issubdtype(np.asarray(many.values[reader]).dtype, np.floating)
        if not is_float or mark.indices or mark.primitive in _READ_AT:
            continue
        own = next((at for at in reached(mark.sources, onward) if at in counts), None)
        if own is not None:
            what = f"counts from 0 on every device along {_over(axes)}, which has one part each"
            return [(own, what)]
    return []


def _exchange(
    many: Watched,
    states: Sequence[State],
    named: Sequence[int],
    passed: Sequence[int],
    axes: Sequence[str],
) -> list[tuple[int, str]]:
    """Return the first exchange between devices that gives wrong values, where it is the fault.

    A device counts and sorts its own part in its own order, and a ring has parts of the answer
    until it ends. Such values differ in right steps, too, so they are no fault by themselves.

    Args:
      named: the first values that differ, all without a reason.
      passed: the wrong values on the way to wrong outputs.
    """
    behind = _behind(many, passed)
    moves = (
        at
        for at in behind
        if many.marks[at].primitive in MOVES
        and (
            (states[at] == "wrong" and (at in passed or _is_in_loop(many.marks[at])))
            or (states[at] == "unknown" and many.marks[at].primitive == RING)
        )
    )
    move = next((at for at in moves if many.marks[at].place.is_known), None)
    if move is None:
        return []
    wraps = many.marks[move].wraps
    is_ring = _is_in_loop(many.marks[move]) or states[move] == "unknown"

    def is_own(at: int) -> bool:
        mark, dtype = many.marks[at], np.asarray(many.values[at]).dtype
        is_count = mark.primitive in _OWN_ORDER or not np.issubdtype(dtype, np.inexact)
        return is_count or (is_ring and mark.wraps == wraps)

    if not all(map(is_own, named)):
        return []
    if is_ring:
        return [(move, f"is in a ring over {_over(axes)} that ends with values that differ")]
    return [(move, f"is the first exchange over {_over(axes)} that gives other values")]


def _is_in_loop(mark: Mark) -> bool:
    return any(wrap != "devices" for wrap in mark.wraps)


def _behind(many: Watched, marks: Sequence[int]) -> list[int]:
    """Return all values that some are made of, and those, in their order."""
    return sorted(reached(marks, lambda at: many.marks[at].sources))


def _back(
    many: Watched, states: Sequence[State], errors: Sequence[float], wrong: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the wrong values that are made of right ones alone, and all wrong ones on the way.

    Both are on the way to wrong outputs.
    """
    results = [mark for at in wrong for mark in many.results[at]]
    first: list[int] = []
    waiting, seen = [*results], set[int]()
    while waiting:
        at = waiting.pop()
        is_wrong = states[at] == "wrong" or (states[at] in ("same", "larger") and at in results)
        if at in seen or not (is_wrong or states[at] == "unknown"):
            continue
        seen.add(at)
        sources = _sources(many, states, at)
        before = [each for each in sources if states[each] == "wrong"]
        before = before or _inherited(many, states, errors, at)
        waiting += before
        if not before and states[at] == "wrong":
            first.append(at)
    return first, [at for at in seen if states[at] == "wrong"]


def _inherited(
    many: Watched, states: Sequence[State], errors: Sequence[float], at: int
) -> list[int]:
    """Return the wrong values whose error is that of one that differs by little.

    Beside a large value an error may look like rounding, and no longer where that is gone.
    """
    waiting, seen = [at], {at}
    found: list[int] = []
    while waiting:
        for each in _sources(many, states, waiting.pop()):
            if each in seen:
                continue
            seen.add(each)
            if states[each] == "wrong":
                found.append(each)
            elif errors[each] >= _INHERITED * errors[at] > 0:
                waiting.append(each)
    return found


def _sources(many: Watched, states: Sequence[State], at: int) -> list[int]:
    """Return the values that one is made of; in place of those without a pair, what makes them."""

    def onward(each: int) -> tuple[int, ...]:
        return many.marks[each].sources if states[each] == "unknown" else ()

    every = reached(many.marks[at].sources, onward)
    return [each for each in every if states[each] != "unknown"]


def _what(many: Watched, states: Sequence[State], at: int, axes: Sequence[str]) -> tuple[int, str]:
    """Return the value at fault, and what is wrong about it; that is empty where it is not clear.

    Where a backward rule returns what another line takes for complete, the rule is at fault.
    """
    mark = many.marks[at]
    over = _over(axes)
    sources = _sources(many, states, at)
    given = {states[each] for each in mark.sources}
    if mark.primitive == "random_bits":
        return at, f"every device along {over} draws the same random numbers for other data"
    if mark.primitive in _SUMS and "same" in given:
        return at, f"sums over {over} a value that is already the same on every device"
    if mark.primitive in _SUMS | _SCATTERS and "mean" in given:
        whole = "what is to be averaged: each device has a mean over its part"
        return at, f"sums over {over} {whole}"
    if mark.primitive in FORMS_OF_PARTS:
        return at, f"orders what devices along {over} have exchanged differently from one device"
    if mark.primitive in MOVES:
        return at, f"does not give the array of one device in its order along {over}"
    pending = next((each for each in sources if states[each] in _PENDING), None)
    if pending is None:
        return at, ""
    return _part(many, states, pending, over, at)


def _part(
    many: Watched, states: Sequence[State], pending: int, over: str, reader: int | None = None
) -> tuple[int, str]:
    """Return the value at fault where a part is taken for complete, and what is wrong about it.

    Args:
      reader: the value made of it; None where `shard_map` returns it.
    """
    chain = list(_pending_since(many, states, pending))
    rule = next((each for each in chain if many.marks[each].primitive == BACKWARD), None)
    at = next(each for each in (rule, reader, pending) if each is not None)
    made, own = many.marks[chain[-1]].place, many.marks[at].place
    part = f"{_PENDING[states[pending]]} over {over}"
    part += f" (of {made})" if made.is_known and made != own else ""
    if rule is None:
        uses = f"uses {part} as if it were complete"
        return (
            at,
            uses if reader is not None else f"is {part}, and `shard_map` returns it as complete",
        )
    if reader is None:
        return at, f"returns {part}, and `shard_map` returns it as complete"
    return at, f"returns {part}, and {many.marks[reader].place} uses it as if it were complete"


def _pending_since(many: Watched, states: Sequence[State], at: int) -> Iterator[int]:
    """Yield a value that is a part, and what it is made of, back to where it began to be one."""
    seen = {at}
    found: int | None = at
    while found is not None:
        yield found
        seen.add(found)
        before = (e for e in _sources(many, states, found) if states[e] in _PENDING)
        found = next((each for each in before if each not in seen), None)


def _at_end(many: Watched, states: Sequence[State], axes: Sequence[str]) -> FirstDifference | None:
    """Return a result of a `shard_map` that is returned as complete and is not."""
    over = _over(axes)
    for end in many.ends:
        for at in end.marks:
            if states[at] in _PENDING and not end.axes.issuperset(axes):
                fault, what = _part(many, states, at, over)
                mark = many.marks[fault]
                place = mark.place if mark.place.is_known else end.place
                return FirstDifference(place, what, mark.primitive)
    return None
