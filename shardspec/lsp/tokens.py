"""Colours by meaning: which words of a text are names, and what of.

What an editor's grammar knows, keys and comments and strings, it colours itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from shardspec.lsp.names import Kind
from shardspec.lsp.snapshot import Snapshot

Type = types.SemanticTokenTypes
_TYPES: dict[Kind, types.SemanticTokenTypes] = {
    Kind.WORD: Type.Keyword,
    Kind.LOGICAL_AXIS: Type.Parameter,
    Kind.MESH_AXIS: Type.EnumMember,
    Kind.NUMBER: Type.Number,
    Kind.TARGET: Type.Class,
    **dict.fromkeys((Kind.PHASE, Kind.BASE, Kind.MANIFEST, Kind.STEP), Type.Namespace),
    **dict.fromkeys((Kind.HARDWARE, Kind.DTYPE), Type.Type),
    Kind.PATTERN: Type.Regexp,
    Kind.ARRAY: Type.Variable,
    Kind.ACTIVATION: Type.Event,
    Kind.FINDING: Type.Macro,
}
_LEGEND = tuple(dict.fromkeys(_TYPES.values()))
_STATED = 1

LEGEND = types.SemanticTokensLegend(
    token_types=[each.value for each in _LEGEND],
    token_modifiers=[types.SemanticTokenModifiers.Definition.value],
)


def tokens(snapshot: Snapshot) -> types.SemanticTokens:
    """Return the names of a text, each counted from the one before it."""
    data: list[int] = []
    line = column = 0
    for number, start, length, kind, stated in _found(snapshot):
        column = 0 if number != line else column
        data += [number - line, start - column, length, _LEGEND.index(_TYPES[kind]), stated]
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
