"""Where XLA places values in memory, and the gaps that it leaves between them.

Lifetimes are known before anything is placed. XLA takes one value after the other and places each
into the smallest gap that fits, among the values that are in memory at some time with it; else
behind them. It takes the largest first, and then anew the longest-lived, and keeps what is smaller.
Source: xla/service/heap_simulator, `GlobalDecreasingSizeBestFitHeap`, and
`BufferAssigner::AssignBuffersWithSequentialOrdering`, which chooses between both orders.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from shardspec.analysis.step_memory import highest

#: The first and the last tick at which a value is in memory, and its bytes.
Span = tuple[int, int, int]
#: Values that are smaller than this part of the peak fill the gaps between others.
_SMALL = 1024
#: So many of the largest values are placed: each is compared with all before it.
_MOST = 1024


def gaps_between(lives: Iterable[Span]) -> int:
    """Return the bytes that XLA leaves free below the end of what it places.

    >>> gaps_between([(0, 1, 2), (0, 3, 1), (2, 3, 2)])
    0
    >>> gaps_between([(0, 1, 5), (1, 2, 4), (2, 3, 3), (3, 4, 5)])
    3
    """
    spans = list(lives)
    _, peak = highest(spans)
    large = [each for each in spans if each[2] > peak // _SMALL]
    large = sorted(large, key=lambda each: (-each[2], each[0] - each[1], each[0]))[:_MOST]
    longest = sorted(large, key=lambda each: (each[0] - each[1], -each[2], each[0]))
    return min(_end(large), _end(longest)) - highest(large)[1]


def _end(spans: Sequence[Span]) -> int:
    """Return where the last value ends, of some that are placed in this order."""
    placed: list[tuple[int, int, int, int]] = []
    for born, dies, size in spans:
        gaps, end = [], 0
        for start, behind, first, last in placed:
            if first <= dies and born <= last:
                if start - end >= size:
                    gaps.append((start - end, end))
                end = max(end, behind)
        _, start = min(gaps, default=(0, end))
        insort(placed, (start, start + size, born, dies))
    return max((behind for _, behind, _, _ in placed), default=0)
