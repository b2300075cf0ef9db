"""Which mesh axis gets which part of which physical axis, for any mesh that fits the machine.

The axis that talks most chooses first, from all ways to make its size out of what is left of
each physical axis; the lowest digit of a physical axis is the most local, so it goes to whoever
comes first. There is always an answer: the sizes multiply to the devices, so what one axis
takes leaves exactly enough for the rest, prime by prime. Choices that score the same are all
carried on, so that an even choice early does not cost a later axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.topology.digit import Digit
from shardspec.topology.machine import Machine
from shardspec.topology.score import AxisScore, score_axis

_TIES_KEPT = 24
Factors = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A mesh axis that wants its share.

    Attributes:
      asks_dcn: whether it should run over DCN.
      factors: ways along each physical axis, where the spec fixes them (a submesh).
    """

    size: int
    asks_dcn: bool = False
    factors: Factors | None = None


@dataclass(frozen=True, slots=True)
class _Partial:
    """An unfinished assignment: what is taken, what is left, and the score so far."""

    taken: tuple[tuple[int, tuple[Digit, ...]], ...]
    left: Factors
    strides: Factors
    scores: tuple[AxisScore, ...] = ()


def assign_digits(
    requests: Sequence[Request], machine: Machine
) -> tuple[tuple[Digit, ...], ...] | None:
    """Return the digits of every mesh axis, in the order of `requests`.

    None where a fixed request does not fit, or the sizes do not multiply to the devices.
    """
    extents = tuple(axis.extent for axis in machine)
    partials = [_Partial((), extents, (1,) * len(extents))]
    for index in _by_weight(requests):
        grown = [
            _extended(partial, index, factors, requests[index], machine)
            for partial in partials
            for factors in _choices(requests[index], partial.left, machine)
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
    """Return whose turn it is: DCN axes, fixed tiles, then from the last axis to the first."""

    def turn(index: int) -> tuple[bool, bool, int]:
        request = requests[index]
        return (not request.asks_dcn, request.factors is None, -index)

    return sorted(range(len(requests)), key=turn)


def _choices(request: Request, left: Factors, machine: Machine) -> Iterator[Factors]:
    """Yield the ways along each physical axis that multiply to the size of the request."""
    if request.factors is not None:
        fits = all(have % want == 0 for have, want in zip(left, request.factors, strict=True))
        return iter((request.factors,) if fits else ())
    if not request.asks_dcn:
        return _factorings(request.size, left)
    choices = list(_factorings(request.size, left))
    most = max((_dcn_ways(factors, machine) for factors in choices), default=1)
    return (factors for factors in choices if _dcn_ways(factors, machine) == most)


def _dcn_ways(factors: Factors, machine: Machine) -> int:
    return next(ways for ways, axis in zip(factors, machine, strict=True) if axis.link == "dcn")


def _factorings(size: int, left: Sequence[int]) -> Iterator[Factors]:
    """Yield every tuple with product `size` whose entries divide those of `left`, in order."""
    if not left:
        if size == 1:
            yield ()
        return
    for factor in range(1, min(size, left[0]) + 1):
        if size % factor == 0 and left[0] % factor == 0:
            for rest in _factorings(size // factor, left[1:]):
                yield (factor, *rest)


def _extended(
    partial: _Partial, index: int, factors: Factors, request: Request, machine: Machine
) -> _Partial:
    digits = tuple(
        Digit(axis, size, stride)
        for axis, (size, stride) in enumerate(zip(factors, partial.strides, strict=True))
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
