"""Which mesh axis gets which part of which physical axis, for any mesh that fits the machine.

The axis that talks most chooses first, from all ways to make its size out of what is left of
each physical axis; the lowest digit of a physical axis is the most local, so it goes to whoever
comes first. There is always an answer: the sizes multiply to the devices, so what one axis
takes leaves exactly enough for the rest, prime by prime. Choices that score the same are all
carried on, so that an even choice early does not cost a later axis.

How good an axis lies is one stated score, smaller is better. In this order: no DCN inside an axis
that did not ask for it; all devices of a chip together (their own link is faster than ICI); whole
wrapped rings; then compact, which is most links at work and then the shortest diameter; then
fewest hosts. Mesh axes are compared from the last to the first, since by convention the last talks
most. Links are counted as in a ring all-gather: a closed ring sends both ways (2), a line is worth
1, a ring that takes every second chip shares each link with another ring (half as much). Two
devices of a chip whose rings differ share the chip's links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardspec.topology.machine import Digit, Machine, PhysicalAxis, joined_digits

_TIES_KEPT = 24
Factors = tuple[int, ...]


class AxisScore(NamedTuple):
    """The score of one mesh axis; tuples of these compare placements.

    Attributes:
      dcn_ways: how many ways the axis is split over DCN, unasked; 1 is none.
      chip_groups: groups of the axis that meet in one chip; 1 where it has the chip to itself.
      open_runs: 0 where every stretch of torus is a whole ring (or a whole row of two), else 1.
      minus_links: links at work per device, negated; minus infinity inside a chip or switch.
      diameter: hops between the two devices farthest apart.
      hosts: hosts that one group touches.
    """

    dcn_ways: int
    chip_groups: int
    open_runs: int
    minus_links: float
    diameter: int
    hosts: int

    @property
    def links(self) -> float:
        """Return the ICI links at work per device."""
        return -self.minus_links


def is_ring(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit goes all the way around its physical axis."""
    return axis.wraps and digit.span == axis.extent and digit.size > 2


def is_whole(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit is a whole wrapped row of chips, or a whole row of two."""
    return digit.size == axis.extent and (axis.wraps or digit.size == 2)


def score_axis(digits: Sequence[Digit], machine: Machine, *, asks_dcn: bool = False) -> AxisScore:
    """Return the score of a mesh axis that runs over `digits`.

    Args:
      asks_dcn: whether the spec says `@ dcn`, so that DCN costs nothing.
    """
    return _score(joined_digits(digits), machine, asks_dcn)


@lru_cache(maxsize=1 << 14)
def _score(digits: tuple[Digit, ...], machine: Machine, asks_dcn: bool) -> AxisScore:
    torus = [digit for digit in digits if machine[digit.axis].link == "ici"]
    dcn = math.prod(digit.size for digit in digits if machine[digit.axis].link == "dcn")
    links = sum((2 if is_ring(digit, machine[digit.axis]) else 1) / digit.stride for digit in torus)
    shared = links_shared(digits, machine)
    return AxisScore(
        dcn_ways=1 if asks_dcn else dcn,
        chip_groups=shared,
        open_runs=int(not all(is_whole(digit, machine[digit.axis]) for digit in torus)),
        minus_links=-links / shared if torus else -math.inf,
        diameter=sum(_reach(digit, machine[digit.axis]) for digit in torus),
        hosts=host_count(digits, machine),
    )


def links_shared(digits: Iterable[Digit], machine: Machine) -> int:
    """Return how many groups of a mesh axis use the links of one chip at once."""
    cores = math.prod(axis.extent for axis in machine if axis.link == "chip")
    own = math.prod(digit.size for digit in digits if machine[digit.axis].link == "chip")
    return max(1, cores // own)


def _reach(digit: Digit, axis: PhysicalAxis) -> int:
    steps = digit.size // 2 if is_ring(digit, axis) else digit.size - 1
    return steps * digit.stride


def host_count(digits: Sequence[Digit], machine: Machine) -> int:
    """Return the hosts that a group touches, at most, wherever the group lies."""
    count = 1
    for index, axis in enumerate(machine):
        own = [digit for digit in digits if digit.axis == index and digit.size > 1]
        if own:
            count *= _hosts_along(own, axis)
    return count


def _hosts_along(digits: Sequence[Digit], axis: PhysicalAxis) -> int:
    """Return the hosts of the widest of the groups that lie side by side on a physical axis."""
    if axis.host in (1, axis.extent):
        return math.prod(each.size for each in digits) if axis.host == 1 else 1
    hosts: dict[int, set[int]] = {}
    for place in range(axis.extent):
        first = place - sum(place // each.stride % each.size * each.stride for each in digits)
        hosts.setdefault(first, set()).add(place // axis.host)
    return max(map(len, hosts.values()))


class Request(NamedTuple):
    """A mesh axis that wants its share.

    Attributes:
      asks_dcn: whether it should run over DCN.
      factors: ways along each physical axis, where the spec fixes them (a submesh).
      is_inside: whether it has to lie in one slice, wherever there (`auto N`).
    """

    size: int
    asks_dcn: bool = False
    factors: Factors | None = None
    is_inside: bool = False


class _Partial(NamedTuple):
    """An unfinished assignment: what is taken, what is left, and the score so far.

    What is left stands by the stretches that were free at the beginning.
    """

    taken: tuple[tuple[int, tuple[Digit, ...]], ...]
    left: Factors
    strides: Factors
    scores: tuple[AxisScore, ...] = ()


@lru_cache(maxsize=1 << 12)
def assign_digits(
    requests: tuple[Request, ...], machine: Machine, free: tuple[Digit, ...] | None = None
) -> tuple[tuple[Digit, ...], ...] | None:
    """Return the digits of every mesh axis, in the order of `requests`.

    None where a fixed request does not fit, or the sizes do not multiply to the devices.

    Args:
      free: what others have left of the machine; all of it where that is left out.
    """
    if free is None:
        free = tuple(Digit(index, axis.extent, 1) for index, axis in enumerate(machine))
    sizes, strides = (tuple(each.size for each in free), tuple(each.stride for each in free))
    partials = [_Partial((), sizes, strides)]
    for index in _by_weight(requests):
        grown = [
            _extended(partial, index, factors, requests[index], machine, free)
            for partial in partials
            for factors in _choices(requests[index], partial.left, machine, free)
        ]
        if not grown:
            return None
        best = min(partial.scores for partial in grown)
        kept = (partial for partial in grown if partial.scores == best)
        partials = _without_doubles(kept)[:_TIES_KEPT]
    finished = [partial for partial in partials if set(partial.left) <= {1}]
    if not finished:
        return None
    digits = dict(finished[0].taken)
    return tuple(digits[index] for index in range(len(requests)))


def _by_weight(requests: Sequence[Request]) -> list[int]:
    """Return whose turn it is: DCN axes, fixed tiles, tiles, then from the last to the first."""

    def turn(index: int) -> tuple[bool, bool, bool, int]:
        request = requests[index]
        return (not request.asks_dcn, request.factors is None, not request.is_inside, -index)

    return sorted(range(len(requests)), key=turn)


def _choices(
    request: Request, left: Factors, machine: Machine, free: Sequence[Digit]
) -> Iterator[Factors]:
    """Yield the ways along each free stretch that multiply to the size of the request."""
    choices = iter(factorings(request.size, left))
    if request.factors is not None:
        wanted = request.factors
        return (found for found in choices if _ways(found, machine, free) == wanted)
    if not request.asks_dcn and not request.is_inside:
        return choices
    dcn = next(index for index, axis in enumerate(machine) if axis.link == "dcn")
    kept = [(_ways(factors, machine, free)[dcn], factors) for factors in choices]
    wished = 1 if request.is_inside else max((ways for ways, _ in kept), default=1)
    return (factors for ways, factors in kept if ways == wished)


def _ways(factors: Factors, machine: Machine, free: Sequence[Digit]) -> Factors:
    """Return the ways along each physical axis."""
    ways = [1] * len(machine)
    for factor, stretch in zip(factors, free, strict=True):
        ways[stretch.axis] *= factor
    return tuple(ways)


@lru_cache(maxsize=1 << 12)
def factorings(size: int, left: tuple[int, ...]) -> tuple[Factors, ...]:
    """Return every tuple with product `size` whose entries divide those of `left`, in order."""
    if not left:
        return ((),) if size == 1 else ()
    return tuple(
        (factor, *rest)
        for factor in range(1, min(size, left[0]) + 1)
        if size % factor == 0 and left[0] % factor == 0
        for rest in factorings(size // factor, left[1:])
    )


def _extended(
    partial: _Partial,
    index: int,
    factors: Factors,
    request: Request,
    machine: Machine,
    free: Sequence[Digit],
) -> _Partial:
    digits = tuple(
        Digit(stretch.axis, size, stride)
        for stretch, size, stride in zip(free, factors, partial.strides, strict=True)
        if size > 1
    )
    score = score_axis(digits, machine, asks_dcn=request.asks_dcn)
    return _Partial(
        (*partial.taken, (index, digits)),
        tuple(have // ways for have, ways in zip(partial.left, factors, strict=True)),
        tuple(stride * ways for stride, ways in zip(partial.strides, factors, strict=True)),
        (*partial.scores, score),
    )


def _without_doubles(partials: Iterator[_Partial]) -> list[_Partial]:
    """Return partials that leave different things over, the first of each kind."""
    return list({partial.left: partial for partial in reversed(list(partials))}.values())[::-1]
