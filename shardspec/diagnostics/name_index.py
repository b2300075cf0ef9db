"""Known names, put in order once: a misspelt one finds those worth comparing without a look at all.

A file may have as many misspelt names as right ones. Of few names all are compared. Of many, those
are that stand next to the name in the order of their beginnings or of their ends: a slip leaves
at least half of a name as it is, at one end or at the other.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

#: Up to so many names all are compared; of more, so many on each side in each of the two orders.
MOST_COMPARED = 200
_BESIDE = 12

_SEPARATORS = re.compile(r"[-_.\s]+")


class NameIndex:
    """Names in the order of their beginnings, in that of their ends, and by their letters alone."""

    def __init__(self, names: frozenset[str]) -> None:
        """Put `names` in order."""
        self.names = sorted(names)
        self._by_bare: dict[str, list[str]] = {}
        for name in self.names:
            self._by_bare.setdefault(bare(name), []).append(name)
        is_large = len(self.names) > MOST_COMPARED
        self._starts = sorted((name.lower(), name) for name in self.names) if is_large else []
        self._ends = sorted((name.lower()[::-1], name) for name in self.names) if is_large else []

    def alike(self, name: str, without: Collection[str] = ()) -> list[str]:
        """Return the names that are worth comparing with one, in order, but for some."""
        found: Iterable[str] = self.names
        if self._starts:
            lowered = name.lower()
            near = (*_beside(self._starts, lowered), *_beside(self._ends, lowered[::-1]))
            found = sorted({*near, *self._by_bare.get(bare(name), ())[:_BESIDE]})
        return [each for each in found if each not in without]

    def same(self, name: str, without: Collection[str] = ()) -> list[str]:
        """Return the names that differ in capitals and separators alone, but for some."""
        return [each for each in self._by_bare.get(bare(name), ()) if each not in without]


def _beside(ordered: Sequence[tuple[str, str]], key: str) -> list[str]:
    at = bisect_left(ordered, (key, ""))
    return [name for _, name in ordered[max(at - _BESIDE, 0) : at + _BESIDE]]


def bare(name: str) -> str:
    """Return the letters and digits of a name, small.

    >>> bare("kvHeads") == bare("kv_heads")
    True
    """
    return _SEPARATORS.sub("", name).lower()


def index_of(names: Iterable[str]) -> NameIndex:
    """Return the index of names; of one frozenset it is made once."""
    return _index(names if isinstance(names, frozenset) else frozenset(names))


@lru_cache(maxsize=8)
def _index(names: frozenset[str]) -> NameIndex:
    return NameIndex(names)
