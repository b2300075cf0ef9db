"""What is known of a value along one mesh axis: the same on all devices, split, or a part of a sum.

Everything that is not proved is `UNKNOWN`. A value is `PARTIAL` where each device has a part of it,
and the parts add up to what one device would have computed. It is `STALE` where it was computed
from such a part as if that were the whole: it differs from device to device, and no sum mends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import reduce

from shardspec.ir.step import Part, Place


class Kind(Enum):
    """How a value lies along a mesh axis."""

    ZERO = auto()
    #: the same on all devices, and in every run
    CONSTANT = auto()
    SAME = auto()
    SPLIT = auto()
    PARTIAL = auto()
    STALE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a value along one mesh axis.

    Attributes:
      dim: the dimension that is split.
      even: dimensions along which all elements are equal, of a value that is the same everywhere.
      part: what the devices have parts of.
      born: the operation that left each device with a part.
      used: the operation that took a part for the whole, or added to it what all devices have.
      is_product: whether it is a plain product of a forward pass, whose parts are to be added up.
      is_scaled: whether a number multiplied it: the number may make up for a sum that comes later.
      summed: the sum that made it complete.
      is_implicit: whether JAX wrote that sum.
    """

    kind: Kind
    dim: int = -1
    even: frozenset[int] = frozenset()
    part: Part = "sum"
    born: Place | None = None
    used: Place | None = None
    is_product: bool = False
    is_scaled: bool = False
    summed: Place | None = None
    is_implicit: bool = False

    @property
    def is_same(self) -> bool:
        """Say whether all devices have the same value."""
        return self.kind in (Kind.ZERO, Kind.CONSTANT, Kind.SAME)

    @property
    def is_partial(self) -> bool:
        """Say whether it differs between devices because each has a part."""
        return self.kind in (Kind.PARTIAL, Kind.STALE)

    @property
    def is_sum(self) -> bool:
        """Say whether the parts add up to the whole."""
        return self.kind is Kind.PARTIAL and self.part == "sum" and self.used is None

    def is_even(self, dim: int) -> bool:
        """Say whether all elements along a dimension are equal."""
        return self.kind is Kind.ZERO or dim in self.even


ZERO = State(Kind.ZERO)
SAME = State(Kind.SAME)
UNKNOWN = State(Kind.UNKNOWN)


def split(dim: int) -> State:
    """Return that of a value that is split along a dimension."""
    return State(Kind.SPLIT, dim)


def stale(of: State, at: Place | None) -> State:
    """Return that of a value that was computed from a part as if it were the whole."""
    return State(Kind.STALE, part=of.part, born=of.born, used=of.used or at)


def joined(first: State, second: State) -> State:
    """Return what holds of a value that is one or the other."""
    if first == second or second.kind is Kind.ZERO:
        return first
    if first.kind is Kind.ZERO:
        return second
    if first.is_same and second.is_same:
        return _both_same(first, second)
    kinds = {first.kind, second.kind}
    if kinds == {Kind.PARTIAL} and first.part == second.part:
        scaled, product = (
            first.is_scaled or second.is_scaled,
            first.is_product and second.is_product,
        )
        return replace(first, used=first.used or second.used, is_scaled=scaled, is_product=product)
    partial = first if first.is_partial else second
    other = second if partial is first else first
    if Kind.UNKNOWN not in kinds and partial.is_partial and partial.used is not None:
        return stale(partial, partial.used)
    if other.kind is Kind.STALE and other.used is not None:
        return stale(other, other.used)
    lying, whole = (first, second) if first.kind is Kind.SPLIT else (second, first)
    is_shard = lying.kind is Kind.SPLIT and whole.is_same and whole.is_even(lying.dim)
    return lying if is_shard else UNKNOWN


def _both_same(first: State, second: State) -> State:
    constant = first.kind is second.kind is Kind.CONSTANT
    return State(
        Kind.CONSTANT if constant else Kind.SAME,
        even=first.even & second.even,
        is_scaled=first.is_scaled or second.is_scaled,
        summed=first.summed if first.summed == second.summed else None,
        is_implicit=first.is_implicit and second.is_implicit,
    )


def same_of(states: Iterable[State]) -> State:
    """Return that of what is computed from values that are the same on all devices."""
    kinds = {state.kind for state in states}
    return State(Kind.CONSTANT if Kind.SAME not in kinds else Kind.SAME)


def all_joined(states: Iterable[State]) -> State:
    """Return what holds of a value that is any of these."""
    return reduce(joined, states)
