"""Which section of a document a fault of reading is in, read off the text itself.

A text with a fault in it may have no tree to look in, so the section is the last word that stands
at the margin above the fault: a key in YAML, a keyword in the DSL.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import lru_cache

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.suggest import nearest

#: The sections whose loss other findings may follow from.
SECTIONS = frozenset(
    {"rules", "drop", "extends", "params", "overrides", "scan", "arrays", "manifest"}
    | {"targets", "mesh", "hardware", "axes"}
)
_SINGULAR = {"axis": "axes", "target": "targets", "override": "overrides"}
_KEY = re.compile(r"^\"?([A-Za-z]\w*)", re.MULTILINE)


def placed(diagnostic: Diagnostic, emptied: frozenset[str] = frozenset()) -> Diagnostic:
    """Return the fault with the section it is in; a fault of the section's key is about all of it.

    A key that is none stands for the section whose name is nearest.

    Args:
      emptied: sections of which nothing is left, so that any fault there is about all of it.
    """
    label = diagnostic.primary
    if label is None or diagnostic.section is not None:
        return diagnostic
    key, section = _key_above(label.span), section_at(label.span)
    if key is None or section is None:
        return diagnostic
    is_whole = section in emptied or section == "extends" or key.start == label.span.start
    subject = section if is_whole else diagnostic.subject
    return replace(diagnostic, section=section, subject=subject)


def section_at(span: Span) -> str | None:
    """Return the section that a place is in."""
    key = _key_above(span)
    return None if key is None else _section(key.text)


def _key_above(span: Span) -> Span | None:
    """Return the word at the start of the last line that is not indented, up to the span's own."""
    text = span.source.text
    end = text.find("\n", span.start)
    keys = _keys(text)
    above = bisect_left(keys, (len(text) if end < 0 else end,))
    return Span(span.source, *keys[above - 1]) if above else None


@lru_cache(maxsize=32)
def _keys(text: str) -> tuple[tuple[int, int], ...]:
    """Return start and end of every word at the margin."""
    return tuple(found.span(1) for found in _KEY.finditer(text))


@lru_cache(maxsize=256)
def _section(key: str) -> str | None:
    key = _SINGULAR.get(key, key)
    near = nearest(key, SECTIONS, cutoff=0.75)
    return near[0] if near else None
