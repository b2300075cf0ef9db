"""What devices send each other, in one table: its kinds, their bytes and their names everywhere.

Source: the names are those of XLA's HLO, of StableHLO, of Shardy's dialect and of libtpu's
Megascale. A broadcast passes an array on once, as a permute does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never


class CollectiveKind(StrEnum):
    """What is sent, spelt as XLA does."""

    ALL_GATHER = "all-gather"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    COLLECTIVE_PERMUTE = "collective-permute"

    @property
    def turns(self) -> int:
        """Return how often a ring goes around: an all-reduce is a reduce-scatter and a gather."""
        return 2 if self is CollectiveKind.ALL_REDUCE else 1


#: Those that sum, and those that give the elements that they are given.
SUMS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
MOVES = (
    *(CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL),
    CollectiveKind.COLLECTIVE_PERMUTE,
)

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
    match kind:
        case CollectiveKind.COLLECTIVE_PERMUTE:
            return payload_bytes
        case (
            CollectiveKind.ALL_GATHER
            | CollectiveKind.ALL_REDUCE
            | CollectiveKind.REDUCE_SCATTER
            | CollectiveKind.ALL_TO_ALL
        ):
            return kind.turns * (ways - 1) * payload_bytes // ways
        case _:
            assert_never(kind)
