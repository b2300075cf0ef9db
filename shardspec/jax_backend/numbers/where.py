"""Find the first value inside a step that differs, by two watched runs of it.

Values outside `shard_map` are compared as they are. Inside, each device has one, and they may stand
for the value of one device in several ways: all the same, its parts, or numbers of which it is the
sum, the mean or the largest. A value that fits none of these is wrong, or is part of a way to
compute that comes right again. So the search starts at the outputs that differ, and goes back
through values that are wrong, as far as the first that is made of right ones alone. What is wrong
in one iteration of a loop makes all that follow wrong, so first iterations are compared, and others
only where those are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardspec.diagnostics.words import grouped
from shardspec.jax_backend.numbers.rerun import End, Mark
from shardspec.programs.numbers import FirstDifference

#: How the values of devices stand for that of one; `unknown` where they cannot be paired.
State = Literal["same", "split", "sum", "mean", "largest", "wrong", "unknown"]

#: A difference up to this share of the largest value is rounding.
_ROUNDING = 1e-5
#: What is larger stands for a score that is masked, and says nothing of the size of others.
_MASKED = 1e9
_PENDING: dict[State, str] = {
    "sum": "a partial sum",
    "mean": "a mean over a part",
    "largest": "the largest of a part",
}
_MOVES = frozenset(("all_gather", "all_to_all", "ppermute", "psum_scatter", "reduce_scatter"))
_SUMS = frozenset(("psum", "psum_invariant", "psum2", "all_gather_invariant"))


@dataclass(frozen=True, slots=True)
class Watched:
    """One watched run.

    Attributes:
      results: the marks of each result.
    """

    marks: Sequence[Mark]
    values: Sequence[Any]
    results: Sequence[tuple[int, ...]]
    ends: Sequence[End]


def first_difference(
    one: Watched, many: Watched, axes: Sequence[str], wrong: Sequence[int]
) -> FirstDifference | None:
    """Return the first value that differs and leads to outputs that do; None if none is found.

    Args:
      axes: the mesh axes of `many`.
      wrong: the outputs that differ, by their places.
    """
    for is_whole in (False, True):
        states = list(_states(one, many, is_whole=is_whole))
        found = [*_back(many, states, wrong)]
        named = sorted(each for each in found if many.marks[each].place.is_known)
        told = [(at, _what(many, states, at, axes)) for at in named]
        for at, what in [pair for pair in told if pair[1]] or told:
            mark = many.marks[at]
            over = " and ".join(f"`{axis}`" for axis in axes)
            plain = f"is the first value that differs when {over} is larger than 1"
            return FirstDifference(mark.place, what or plain, mark.primitive)
        at_end = _at_end(many, states, axes)
        if at_end is not None:
            return at_end
    return None


def _states(one: Watched, many: Watched, *, is_whole: bool) -> Iterator[State]:
    """Yield how each value of many devices stands for that of one.

    Args:
      is_whole: whether all iterations of loops are compared, or the first alone.
    """
    expected = grouped(range(len(one.marks)), lambda at: _key(one.marks[at]))
    found = grouped(range(len(many.marks)), lambda at: _key(many.marks[at]))
    pairs: dict[int, int] = {}
    for key, places in found.items():
        others = expected.get(key, ())
        if len(others) == len(places):
            pairs.update(zip(places, others, strict=True))
    for at, mark in enumerate(many.marks):
        if at not in pairs:
            yield "unknown"
            continue
        left, right = one.values[pairs[at]], many.values[at]
        yield _state(
            _by_device(left, one.marks[pairs[at]], is_whole), _by_device(right, mark, is_whole)
        )


def _key(mark: Mark) -> object:
    return mark.primitive, mark.place, mark.wraps


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


def _state(one: Any, many: Any) -> State:
    expected = one[0]
    sizes = np.abs(expected[np.abs(expected) < _MASKED])
    scale = float(sizes.max(initial=0.0)) * _ROUNDING

    def equal(value: Any) -> bool:
        return value.shape == expected.shape and bool(
            np.isclose(value, expected, rtol=_ROUNDING, atol=scale, equal_nan=True).all()
        )

    if all(map(equal, many)):
        return "same"
    if len(many) == 1:
        return "wrong"
    if many[0].shape == expected.shape:
        if equal(many.sum(0)):
            return "sum"
        if equal(many.mean(0)):
            return "mean"
        return "largest" if equal(many.max(0)) else "wrong"
    for dim in range(expected.ndim):
        if many[0].shape[dim] != expected.shape[dim] and equal(np.concatenate(list(many), dim)):
            return "split"
    return "wrong"


def _back(many: Watched, states: Sequence[State], wrong: Sequence[int]) -> Iterator[int]:
    """Yield the wrong values that are made of right ones alone, on the way to wrong outputs."""
    results = [mark for at in wrong for mark in many.results[at]]
    waiting, seen = [*results], set[int]()
    while waiting:
        at = waiting.pop()
        is_wrong = states[at] == "wrong" or (states[at] == "same" and at in results)
        if at in seen or not (is_wrong or states[at] == "unknown"):
            continue
        seen.add(at)
        sources = _sources(many, states, at)
        before = [each for each in sources if states[each] == "wrong"]
        waiting += before
        if not before and states[at] == "wrong":
            yield at


def _sources(many: Watched, states: Sequence[State], at: int) -> list[int]:
    """Return the values that one is made of; in place of those without a pair, what makes them."""
    found: dict[int, None] = {}
    waiting = list(many.marks[at].sources)
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if states[each] == "unknown":
            waiting += many.marks[each].sources
        else:
            found[each] = None
    return list(found)


def _what(many: Watched, states: Sequence[State], at: int, axes: Sequence[str]) -> str:
    """Return what is wrong about a value; empty where that is not clear."""
    mark = many.marks[at]
    over = " and ".join(f"`{axis}`" for axis in axes)
    sources = _sources(many, states, at)
    kinds = {states[each] for each in sources}
    if mark.primitive == "random_bits":
        return f"every device along {over} draws the same random numbers for other data"
    if mark.primitive in _SUMS and "same" in kinds:
        return f"sums over {over} a value that is already the same on every device"
    if mark.primitive in _SUMS and "mean" in kinds:
        return f"sums over {over} what is to be averaged: each device has a mean over its part"
    if mark.primitive in _MOVES:
        return f"does not give the array of one device in its order along {over}"
    pending = next((each for each in sources if states[each] in _PENDING), None)
    if pending is not None:
        made = many.marks[_origin(many, states, pending)].place
        where = f" (of {made})" if made.is_known and made != mark.place else ""
        return f"uses {_PENDING[states[pending]]} over {over}{where} as if it were complete"
    return ""


def _origin(many: Watched, states: Sequence[State], at: int) -> int:
    """Return where a value began to be a part: what it is made of is not one."""
    seen = {at}
    while True:
        before = (each for each in _sources(many, states, at) if states[each] in _PENDING)
        found = next((each for each in before if each not in seen), None)
        if found is None:
            return at
        seen.add(found)
        at = found


def _at_end(many: Watched, states: Sequence[State], axes: Sequence[str]) -> FirstDifference | None:
    """Return a result of a `shard_map` that is returned as complete and is not."""
    over = " and ".join(f"`{axis}`" for axis in axes)
    for end in many.ends:
        for at in end.marks:
            pending = _PENDING.get(states[at])
            if pending is not None and not end.axes.issuperset(axes):
                mark = many.marks[at]
                place = mark.place if mark.place.is_known else end.place
                what = f"is {pending} over {over}, and `shard_map` returns it as complete"
                return FirstDifference(place, what, mark.primitive)
    return None
