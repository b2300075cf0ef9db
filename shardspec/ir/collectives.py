"""What devices send each other, in one table: its kinds, their bytes and their names everywhere.

Source: the names are those of XLA's HLO, of StableHLO, of Shardy's dialect and of libtpu's
Megascale. A broadcast passes an array on once, as a permute does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple, assert_never

#: How the parts of an array travel.
Way = Literal["ring", "pairs", "shift"]


class CollectiveKind(StrEnum):
    """What is sent, spelt as XLA does."""

    ALL_GATHER = "all-gather"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    COLLECTIVE_PERMUTE = "collective-permute"

    @property
    def traits(self) -> Traits:
        """Return what is so of the kind wherever it is used."""
        match self:
            case CollectiveKind.ALL_GATHER:
                return Traits(grows=True)
            case CollectiveKind.ALL_REDUCE:  # a reduce-scatter and a gather
                return Traits(sums=True, turns=2)
            case CollectiveKind.REDUCE_SCATTER:
                return Traits(sums=True)
            case CollectiveKind.ALL_TO_ALL:
                return Traits(way="pairs", takes_parts=True)
            case CollectiveKind.COLLECTIVE_PERMUTE:
                return Traits(way="shift")
            case _:
                assert_never(self)

    def payload(self, given: int, made: int) -> int:
        """Return which counts, as `ring_bytes` takes it: what it is given, or what it makes."""
        return made if self.traits.grows else given


class Traits(NamedTuple):
    """What is so of a kind of collective.

    Attributes:
      way: around a ring, from every device to every other, or to the next one alone.
      sums: whether it adds up, and not only moves, the elements that it is given.
      grows: whether it makes more than it is given.
      takes_parts: whether several operands are the parts of one array.
      turns: how often a ring goes around.
    """

    way: Way = "ring"
    sums: bool = False
    grows: bool = False
    takes_parts: bool = False
    turns: int = 1


#: Those that sum, and those that give the elements that they are given.
SUMS = tuple(kind for kind in CollectiveKind if kind.traits.sums)
MOVES = tuple(kind for kind in CollectiveKind if not kind.traits.sums)

IN_HLO = {
    **{str(kind): kind for kind in CollectiveKind},
    "collective-broadcast": CollectiveKind.COLLECTIVE_PERMUTE,
}
IN_STABLEHLO = {f"stablehlo.{name.replace('-', '_')}": kind for name, kind in IN_HLO.items()}
IN_SHARDY = {
    **{f"sdy.{kind.name.lower()}": kind for kind in CollectiveKind},
    "sdy.reshard": CollectiveKind.ALL_TO_ALL,
}
#: By the word of a send to other slices.
IN_MEGASCALE = {
    **{kind.name: kind for kind in CollectiveKind},
    "ONE_TO_ONE": CollectiveKind.COLLECTIVE_PERMUTE,
}


def ring_bytes(kind: CollectiveKind, payload_bytes: int, ways: int) -> int:
    """Return the bytes one device sends in a collective over a ring of `ways` devices.

    Source: the ring algorithm. Each of `ways` - 1 turns passes on one part of `ways`; an all-reduce
    is a reduce-scatter and an all-gather.

    Args:
      payload_bytes: of the array on one device where it is largest: what an all-gather makes, what
        the others are given.
    """
    if ways <= 1:
        return 0
    traits = kind.traits
    if traits.way == "shift":
        return payload_bytes
    return traits.turns * (ways - 1) * payload_bytes // ways
