"""What a name may be of, with the colour that an editor is told for it, and what refuses one."""

from __future__ import annotations

from enum import StrEnum


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


#: The colour of each, as the protocol calls it.
TYPES: dict[Kind, str] = {
    Kind.WORD: "keyword",
    Kind.LOGICAL_AXIS: "parameter",
    Kind.MESH_AXIS: "enumMember",
    Kind.NUMBER: "number",
    Kind.TARGET: "class",
    **dict.fromkeys((Kind.PHASE, Kind.BASE, Kind.MANIFEST, Kind.STEP), "namespace"),
    **dict.fromkeys((Kind.HARDWARE, Kind.DTYPE), "type"),
    Kind.PATTERN: "regexp",
    Kind.ARRAY: "variable",
    Kind.ACTIVATION: "event",
    Kind.FINDING: "macro",
}
TYPES_IN_ORDER = tuple(dict.fromkeys(TYPES.values()))

LEGEND = {"tokenTypes": TYPES_IN_ORDER, "tokenModifiers": ["definition"]}


class RefusedError(Exception):
    """Why what was asked for is not done, for the person who asked."""
