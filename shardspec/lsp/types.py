"""What is said to an editor, under the names of the Language Server Protocol.

Only what this server says is here; what an editor says is read by name (`wire.Params`). Behind it
is what a name may be of, with the colour that an editor is told for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any


class PositionEncodingKind(StrEnum):
    """The units that columns are counted in."""

    Utf8 = "utf-8"
    Utf16 = "utf-16"
    Utf32 = "utf-32"


class DiagnosticSeverity(IntEnum):
    """How bad a finding is."""

    Error = 1
    Warning = 2


class CodeActionKind(StrEnum):
    """What an editor may ask fixes of."""

    QuickFix = "quickfix"
    SourceFixAll = "source.fixAll"


class FoldingRangeKind(StrEnum):
    """What is folded, where that is no code."""

    Comment = "comment"


class DocumentHighlightKind(IntEnum):
    """Whether a name is used or stated."""

    Read = 2
    Write = 3


class SymbolKind(IntEnum):
    """The picture of a symbol."""

    Module = 2
    Namespace = 3
    Class = 5
    Property = 7
    Field = 8
    Variable = 13
    Constant = 14
    Array = 18
    Key = 20
    Event = 24
    Operator = 25


class CompletionItemKind(IntEnum):
    """The picture of a choice."""

    Field = 5
    Module = 9
    Property = 10
    Unit = 11
    Value = 12
    Keyword = 14
    Snippet = 15
    File = 17
    EnumMember = 20
    Constant = 21
    Event = 23
    TypeParameter = 25


@dataclass(frozen=True, slots=True)
class Position:
    """A line and a column, counted from 0."""

    line: int
    character: int


@dataclass(frozen=True, slots=True)
class Range:
    """A half-open stretch of a text."""

    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class Location:
    """A stretch of a file."""

    uri: str
    range: Range


@dataclass(frozen=True, slots=True)
class DiagnosticRelatedInformation:
    """Another place of a finding."""

    location: Location
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding."""

    range: Range
    message: str
    severity: DiagnosticSeverity
    code: str
    source: str
    related_information: tuple[DiagnosticRelatedInformation, ...] | None = None


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A stretch of a text, and what comes in its place."""

    range: Range
    new_text: str


@dataclass(frozen=True, slots=True)
class WorkspaceEdit:
    """Edits by the URI of the text."""

    changes: dict[str, list[TextEdit]]


@dataclass(frozen=True, slots=True)
class CodeAction:
    """A fix."""

    title: str
    kind: CodeActionKind
    diagnostics: tuple[Diagnostic, ...] = ()
    edit: WorkspaceEdit | None = None
    is_preferred: bool | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a lens, and what a click on them does."""

    title: str
    command: str


@dataclass(frozen=True, slots=True)
class CodeLens:
    """Words above a line."""

    range: Range
    command: Command


@dataclass(frozen=True, slots=True)
class CompletionItem:
    """A choice."""

    label: str
    kind: CompletionItemKind
    detail: str | None
    sort_text: str
    filter_text: str
    text_edit: TextEdit


@dataclass(frozen=True, slots=True)
class DocumentSymbol:
    """An entry of the outline."""

    name: str
    kind: SymbolKind
    range: Range
    selection_range: Range
    detail: str | None = None
    children: list[DocumentSymbol] | None = None


@dataclass(frozen=True, slots=True)
class FoldingRange:
    """Lines that can be folded."""

    start_line: int
    end_line: int
    kind: FoldingRangeKind | None = None


@dataclass(frozen=True, slots=True)
class DocumentHighlight:
    """A place of the name under the cursor."""

    range: Range
    kind: DocumentHighlightKind


@dataclass(frozen=True, slots=True)
class InlayHint:
    """Words behind a place."""

    position: Position
    label: str
    tooltip: str
    padding_left: bool = True


@dataclass(frozen=True, slots=True)
class PrepareRenamePlaceholder:
    """The name that a rename would change."""

    range: Range
    placeholder: str


@dataclass(frozen=True, slots=True)
class SemanticTokens:
    """Colours, each counted from the one before."""

    data: list[int]


@dataclass(frozen=True, slots=True)
class Hover:
    """What there is to say at a place: `kind` and `value`."""

    contents: dict[str, Any]


# What a name may be of, with the colour that an editor is told for it, and what refuses one.


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
