"""Colours by meaning: which words of a text are names, and what of.

What an editor's grammar knows, keys and comments and strings, it colours itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.lsp import types
from shardspec.lsp.kinds import TYPES, TYPES_IN_ORDER, Kind
from shardspec.lsp.snapshot import Snapshot

_STATED = 1
#: The colour of each kind, by its place in the legend.
_NUMBERS = {kind: TYPES_IN_ORDER.index(name) for kind, name in TYPES.items()}


def tokens(snapshot: Snapshot) -> types.SemanticTokens:
    """Return the names of a text, each counted from the one before it."""
    data: list[int] = []
    line = column = 0
    for number, start, length, kind, stated in _found(snapshot):
        column = 0 if number != line else column
        data += [number - line, start - column, length, _NUMBERS[kind], stated]
        line, column = number, start
    return types.SemanticTokens(data)


def _found(snapshot: Snapshot) -> Iterator[tuple[int, int, int, Kind, int]]:
    """Yield line, column, length, kind and modifiers of each name, none over another."""
    end = 0
    for use in snapshot.uses:
        span, text = use.span, use.span.text
        if span.start < end or "\n" in text or not text:
            continue
        end = span.end
        at = snapshot.lines.position(span.start)
        length = snapshot.lines.units(text)
        yield at.line, at.character, length, use.kind, use.is_definition * _STATED
