"""Which known name is meant by one that is not known, and how names stand in a message.

Known names, put in order once: a misspelt one finds those worth comparing without a look at all.

A file may have as many misspelt names as right ones. Of few names all are compared. Of many, those
are that stand next to the name in the order of their beginnings or of their ends: a slip leaves
at least half of a name as it is, at one end or at the other.

A misspelt name -> the fix that replaces it by the one that was meant.

A respelling is sure where nobody could have meant anything else: the names differ in capitals,
`-`, `_`, `.` or blanks alone, or in one slip of the fingers (a letter more, less or other, or
two swapped) for each four letters and two at most, with no other known name as near. Digits must
agree: `wi_0` is no slip for `wi_1`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from shardspec.diagnostics.diagnostic import Edit, Fix
from shardspec.diagnostics.source import Span

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


def nearest(
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    count: int = 1,
    cutoff: float = 0.6,
) -> tuple[str, ...]:
    """Return up to `count` of `known` that look like `name`, the nearest first.

    Args:
      known: of one frozenset, however often it is asked, the index is made once.
      without: those of `known` that are not meant.

    >>> nearest("tenosr", ["data", "tensor"])
    ('tensor',)
    """
    import difflib

    candidates = index_of(known).alike(name, without)
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    found = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)
    return tuple(lowered[match] for match in found)


_FAR = 3


def respelt(
    spans: Iterable[Span | None],
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    may_be_sure: bool = True,
) -> Fix | None:
    """Return the fix that writes the nearest known name at each of `spans`; None if all are far.

    Args:
      spans: places that hold the name, in quotes or not; others are passed over, and where none
        holds it there is no fix.
      without: those of `known` that are not meant.
      may_be_sure: False where the right name may not do what the author wants.
    """
    meant, is_sure = _meant(name, known, without)
    if meant is not None and bare(meant) != bare(name) and distance(name, meant) >= _FAR:
        return None
    places = [place for span in spans if span is not None and (place := _place(span, name))]
    if meant is None or not places:
        return None
    edits = tuple(Edit(place, meant) for place in dict.fromkeys(places))
    return Fix(f"replace `{name}` by `{meant}`", edits, is_sure=is_sure and may_be_sure)


def is_slip(name: str, meant: str) -> bool:
    """Say whether a name is a slip of the fingers for another, and nothing else in all likelihood.

    Of names of several words each word is compared: one word in place of another is no slip.

    >>> is_slip("mpl", "mlp"), is_slip("kvHeads", "kv_heads"), is_slip("wi_0", "wi_1")
    (True, True, False)
    >>> is_slip("q_heads", "kv_heads"), is_slip("activation_lenght", "activation_length")
    (False, True)
    """
    if bare(name) == bare(meant):
        return True
    if _digits(name) != _digits(meant):
        return False
    words, others = _SEPARATORS.split(name), _SEPARATORS.split(meant)
    if len(words) != len(others):
        return min(len(name), len(meant)) > 2 and distance(name, meant) == 1
    pairs = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    return len(pairs) < _FAR and all(_is_slip_of_a_word(*pair) for pair in pairs)


def _is_slip_of_a_word(word: str, meant: str) -> bool:
    shorter = min(len(word), len(meant))
    return shorter > 2 and distance(word, meant) <= min(max(1, shorter // 4), _FAR - 1)


def _place(span: Span, name: str) -> Span | None:
    """Return where the name itself stands in a span that may hold its quotes."""
    longer = span.end - span.start - len(name)
    if longer == 0 and span.text == name:
        return span
    if longer == 2 and span.text[0] in "'\"" and span.text[1:-1] == name:
        return Span(span.source, span.start + 1, span.end - 1)
    return None


def _meant(name: str, known: Iterable[str], without: Collection[str]) -> tuple[str | None, bool]:
    """Return the nearest known name, and whether it is meant beyond doubt."""
    known = known if isinstance(known, frozenset) else frozenset(known)
    found = nearest(name, known, without=without)
    meant = found[0] if found else None
    same = index_of(known).same(name, without)
    if same:
        return (same[0] if len(same) == 1 else meant), len(same) == 1
    if meant is None or _digits(meant) != _digits(name):
        return meant, False
    slips = distance(name, meant)
    if slips > min(2, len(name) // 4):
        return meant, False
    alike = index_of(known).alike(name, without)
    return meant, not any(each != meant and distance(name, each) <= slips for each in alike)


def _digits(name: str) -> list[str]:
    return re.findall(r"\d", name)


def distance(one: str, other: str) -> int:
    """Return how many slips lie between two words: letters put in, left out, changed, swapped.

    Stops counting at three.

    >>> distance("tenosr", "tensor"), distance("embd", "embed"), distance("data", "model")
    (1, 1, 3)
    """
    if abs(len(one) - len(other)) >= _FAR:
        return _FAR
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, against in enumerate(other, start=1):
            cost = min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != against))
            if row > 1 and column > 1 and (letter, against) == (other[column - 2], one[row - 2]):
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        before, above = above, line
    return min(above[-1], _FAR)
