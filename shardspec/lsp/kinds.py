"""What a name may be of, with the colour that an editor is told for it, and what refuses one."""

from __future__ import annotations

from enum import StrEnum

from lsprotocol import types


class Kind(StrEnum):
    """What a name is of."""

    #: a key of the language: `rules`, `hardware`
    WORD = "word"
    LOGICAL_AXIS = "logical axis"
    MESH_AXIS = "mesh axis"
    #: a name of `let`
    NUMBER = "number"
    TARGET = "target"
    PHASE = "phase"
    #: a bundled name or a file, of a base, of arrays or of a step
    BASE = "base"
    MANIFEST = "manifest"
    STEP = "step"
    HARDWARE = "hardware"
    #: a pattern over paths, an override's too
    PATTERN = "pattern"
    #: an entry of `arrays:` or `caches:`
    ARRAY = "array"
    ACTIVATION = "activation"
    FINDING = "finding"
    DTYPE = "dtype"


Type = types.SemanticTokenTypes
TYPES: dict[Kind, types.SemanticTokenTypes] = {
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
TYPES_IN_ORDER = tuple(dict.fromkeys(TYPES.values()))

LEGEND = types.SemanticTokensLegend(
    token_types=[each.value for each in TYPES_IN_ORDER],
    token_modifiers=[types.SemanticTokenModifiers.Definition.value],
)


class RefusedError(Exception):
    """Why what was asked for is not done, for the person who asked."""
