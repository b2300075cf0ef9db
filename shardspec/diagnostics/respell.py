"""A misspelt name -> the fix that replaces it by the one that was meant.

A respelling is sure where nobody could have meant anything else: the names differ in capitals,
`-`, `_`, `.` or blanks alone, or in one slip of the fingers (a letter more, less or other, or
two swapped) for each four letters and two at most, with no other known name as near. Digits must
agree: `wi_0` is no slip for `wi_1`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from shardspec.diagnostics.diagnostic import Edit, Fix
from shardspec.diagnostics.name_index import bare, index_of
from shardspec.diagnostics.source import Span

_FAR = 3


def respelt(
    spans: Iterable[Span | None],
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    may_be_sure: bool = True,
) -> Fix | None:
    """Return the fix that writes the nearest known name at each of `spans`, or None.

    Args:
      spans: places that hold the name, in quotes or not; others are passed over, and where none
        holds it there is no fix.
      without: those of `known` that are not meant.
      may_be_sure: False where the right name may not do what the author wants.
    """
    meant, is_sure = _meant(name, known, without)
    places = [place for span in spans if span is not None and (place := _place(span, name))]
    if meant is None or not places:
        return None
    edits = tuple(Edit(place, meant) for place in dict.fromkeys(places))
    return Fix(f"replace `{name}` by `{meant}`", edits, is_sure=is_sure and may_be_sure)


def is_slip(name: str, meant: str) -> bool:
    """Say whether a name is a slip of the fingers for another, and nothing else in all likelihood.

    >>> is_slip("mpl", "mlp"), is_slip("kvHeads", "kv_heads"), is_slip("wi_0", "wi_1")
    (True, True, False)
    """
    if bare(name) == bare(meant):
        return True
    shorter = min(len(name), len(meant))
    slips = distance(name, meant)
    return shorter > 2 and _digits(name) == _digits(meant) and slips <= max(1, shorter // 4)


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
    from shardspec.diagnostics.suggest import nearest

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
