"""Colours by meaning: which words of a text are names, and what of.

What an editor's grammar knows, keys and comments and strings, it colours itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.lsp import types
from shardspec.lsp.kinds import TYPES, TYPES_IN_ORDER, Kind
from shardspec.lsp.snapshot import Snapshot

_STATED = 1


def tokens(snapshot: Snapshot) -> types.SemanticTokens:
    """Return the names of a text, each counted from the one before it."""
    data: list[int] = []
    line = column = 0
    for number, start, length, kind, stated in _found(snapshot):
        column = 0 if number != line else column
        data += [number - line, start - column, length, TYPES_IN_ORDER.index(TYPES[kind]), stated]
        line, column = number, start
    return types.SemanticTokens(data)


def _found(snapshot: Snapshot) -> Iterator[tuple[int, int, int, Kind, int]]:
    """Yield line, column, length, kind and modifiers of each name, none over another."""
    end = 0
    for use in snapshot.uses:
        span = use.span
        if span.start < end or "\n" in span.text or span.start == span.end:
            continue
        end = span.end
        at = snapshot.lines.position(span.start)
        length = snapshot.lines.units(span.text)
        yield at.line, at.character, length, use.kind, use.is_definition * _STATED
