"""Fixes -> new texts: spans replaced, and nothing else changed.

A fix is taken whole or not at all. Of two that touch the same characters the first is taken, and
the other has its turn when the new text has been looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardspec.diagnostics.diagnostic import Edit, Fix


class Edited(NamedTuple):
    """The texts after some fixes.

    Attributes:
      texts: by name of the source, of those that changed.
      taken, left: the fixes that are in these texts, and those that stood in their way.
    """

    texts: Mapping[str, str]
    taken: tuple[Fix, ...]
    left: tuple[Fix, ...]


def apply(fixes: Iterable[Fix]) -> Edited:
    """Return the texts of all sources that the fixes edit, after as many of them as can be.

    Invariants:
      outside: what no edit of a taken fix covers is in the new text as it was, in order.
      line ends: an edit of a text with CRLF brings no bare LF.
    """
    taken: list[Fix] = []
    left: list[Fix] = []
    edits: dict[str, list[Edit]] = {}
    for fix in dict.fromkeys(fixes):
        others = [other for each in fix.edits for other in edits.get(each.span.source.name, ())]
        if any(_touch(each, other) for each in fix.edits for other in others):
            left.append(fix)
            continue
        taken.append(fix)
        for each in fix.edits:
            edits.setdefault(each.span.source.name, []).append(each)
    texts = {name: "".join(_pieces(each)) for name, each in edits.items()}
    return Edited(texts, tuple(taken), tuple(left))


def _touch(one: Edit, other: Edit) -> bool:
    """Say whether two edits cover a character both, or meet in one place."""
    if one.span.source.name != other.span.source.name:
        return False
    first, second = sorted((one.span, other.span), key=lambda span: (span.start, span.end))
    return second.start < first.end or (second.start == first.end and _is_empty(one, other))


def _is_empty(*edits: Edit) -> bool:
    return any(each.span.start == each.span.end for each in edits)


def _pieces(edits: list[Edit]) -> Iterator[str]:
    text = edits[0].span.source.text
    at = 0
    for edit in sorted(edits, key=lambda each: each.span.start):
        yield text[at : edit.span.start]
        yield edit.text.replace("\n", "\r\n") if "\r\n" in text else edit.text
        at = edit.span.end
    yield text[at:]
