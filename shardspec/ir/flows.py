"""Which operations make what others read, where only what computes is an operation.

What stands between, a view or arithmetic element by element, passes on what it is made of. A way
that leads over other operations is not noted once more: `x + f(x)` comes from `f` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

Ticks = frozenset[int]


class Flows:
    """The makers of values, noted in the order of a program.

    Invariants:
      shortest: no maker of a value is reached from another maker of it.
    """

    def __init__(self) -> None:
        """Begin with arguments alone, which nothing makes."""
        self._made: dict[Hashable, Ticks] = {}
        #: By tick, a bit for each operation that leads to it, and for itself.
        self._before: dict[int, int] = {}

    def makers(self, values: Iterable[Hashable]) -> Ticks:
        """Return the ticks of the operations that make values; of arguments none."""
        return self.reduced({tick for value in values for tick in self._made.get(value, ())})

    def reduced(self, found: Collection[int]) -> Ticks:
        """Return operations without those that lead to another of them."""
        return frozenset(
            tick
            for tick in found
            if not any(self._before[other] >> tick & 1 for other in found if other != tick)
        )

    def compute(self, tick: int, values: Iterable[Hashable]) -> Ticks:
        """Note an operation that reads values, and return the operations that make them."""
        found = self.makers(values) - {tick}
        self._before[tick] = self._before.get(tick, 0) | 1 << tick
        for each in found:
            self._before[tick] |= self._before[each]
        return found

    def make(self, value: Hashable, ticks: Iterable[int]) -> None:
        """Note what makes a value."""
        self._made[value] = frozenset(ticks)
