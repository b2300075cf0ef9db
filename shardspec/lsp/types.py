"""What is said to an editor, under the names of the Language Server Protocol.

Only what this server says is here; what an editor says is read by name (`wire.Params`). Behind it
is what a name may be of, with the colour that an editor is told for it.

Every name in a text is found here, for hover, definition, rename and colours. Sections say what
their keys name, and which expression their values are; the parser of that says where each name in
it stands. What cannot be read has no names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from shardspec.diagnostics import Excerpt, SourceFile, Span
from shardspec.ir.spec import ANY, Pattern, axis_of
from shardspec.language.grammar import expressions, syntax
from shardspec.language.grammar.step_lines import LineExpr, parse_step_line
from shardspec.language.grammar.syntax import MeshSize, Name, SizeExpr, SyntaxFault
from shardspec.language.reading import Reading, Route, inner_route, marks_of
from shardspec.language.sections import SECTIONS, expression_at
from shardspec.language.silencing import marked


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


class Use(NamedTuple):
    """A name where it stands.

    Attributes:
      is_definition: whether it is stated here what the name is.
      route: of the entry that it stands in.
      whole: all of the expression that it is part of.
    """

    kind: Kind
    name: str
    span: Span
    is_definition: bool
    route: Route
    whole: Excerpt

    @property
    def pattern(self) -> Pattern:
        """Return the pattern that the name is."""
        _, is_regex, start = marks_of(self.name)
        is_regex = is_regex or self.route[-1:] == ("match",)
        return Pattern(self.name[start:], "regex" if is_regex else "glob")


def uses(reading: Reading) -> tuple[Use, ...]:
    """Return the names of a text, in the order of their places."""
    places = reading.source_map
    lets = frozenset(str(route[-1]) for route in places.keys if inner_route(route)[:1] == ("let",))
    found: list[Use] = []
    for route, key in places.keys.items():
        found += _of_key(route, key)
    for route, value in places.values.items():
        if value.text:
            found += _of_value(route, value, lets)
    found += _of_comments(reading.source)
    unique = {(use.span.start, use.span.end, use.kind): use for use in found}
    names = sorted(unique.values(), key=lambda use: use.kind is Kind.WORD)  # names before words
    return tuple(sorted(names, key=lambda use: (use.span.start, use.span.end)))


def text_of(excerpt: Excerpt) -> Span:
    """Return where the text of an excerpt stands, without its quotes."""
    return excerpt.at(0, len(excerpt.text))


def _of_key(route: Route, key: Excerpt) -> Iterator[Use]:
    inner = inner_route(route)
    kind = Kind.WORD
    section = str(inner[0])
    keys = SECTIONS[section].keys if section in SECTIONS else ""
    if keys and (len(inner) == 2 or (len(inner) == 3 and section == "mesh")):
        kind = Kind(keys)
    elif section == "targets" and len(inner) > 3 and inner[2] == "mesh":
        kind = Kind.MESH_AXIS
    elif inner[2:3] == ("parts",) and len(inner) == 4:
        return
    if kind is Kind.LOGICAL_AXIS:
        yield _axis(0, key.text, is_definition=True).use(route, key)
        return
    is_definition = kind not in (Kind.WORD, Kind.FINDING, Kind.PATTERN)
    yield Use(kind, key.text, text_of(key), is_definition, route, key)


class _Found(NamedTuple):
    """A name in an expression, by its place in the text of that."""

    kind: Kind
    name: str
    start: int
    end: int
    is_definition: bool = False

    def use(self, route: Route, whole: Excerpt) -> Use:
        """Return the name where the expression stands."""
        span = whole.at(self.start, self.end)
        return Use(self.kind, self.name, span, self.is_definition, route, whole)


def _axis(start: int, name: str, *, is_definition: bool = False) -> _Found:
    """Return the use of a logical axis, without the role that it has: `embed` of `in:embed'`."""
    axis = axis_of(name)
    at = start + name.rstrip("'").rfind(axis)
    return _Found(Kind.LOGICAL_AXIS, axis, at, at + len(axis), is_definition)


def _axes(names: Iterable[Name | None]) -> Iterator[_Found]:
    """Yield logical axes."""
    for name in names:
        if name is not None and name.text != ANY:
            yield _axis(name.start, name.text)


def _names(node: object, lets: frozenset[str], kind: Kind = Kind.LOGICAL_AXIS) -> Iterator[_Found]:
    """Yield the names in a node: the field that holds them says what they are of."""
    if isinstance(node, SizeExpr):
        yield from _sizes(node, lets)
    elif isinstance(node, Name):
        yield from _axes([node]) if kind is Kind.LOGICAL_AXIS else [_Found(kind, *node)]
    elif isinstance(node, tuple):
        fields = getattr(node, "_fields", ("",) * len(node))
        for field, inner in zip(fields, node, strict=True):
            yield from _names(inner, lets, _HELD.get(field, kind))


def _sizes(size: SizeExpr | None, lets: frozenset[str]) -> Iterator[_Found]:
    """Yield the axes and numbers that a size names."""
    for name in size.names if size is not None else ():
        yield from [_Found(Kind.NUMBER, *name)] if name.text in lets else _axes([name])


def _of_value(route: Route, value: Excerpt, lets: frozenset[str]) -> Iterator[Use]:
    kind = expression_at(inner_route(route))
    if kind in _READERS:
        for each in _read(kind, value.text, lets):
            yield each.use(route, value)
    elif kind in _NAMED_WHOLE:
        yield Use(Kind(kind), value.text, text_of(value), False, route, value)


@functools.lru_cache(maxsize=4096)
def _read(kind: str, text: str, lets: frozenset[str]) -> tuple[_Found, ...]:
    """Return the names in an expression; what cannot be read has none.

    Thousands of arrays have the same few types: each text is read once.
    """
    parse, names_in = _READERS[kind]
    stated = parse(text)
    return () if isinstance(stated, SyntaxFault) else (*names_in(stated, lets),)


def _mesh_size(size: MeshSize, lets: frozenset[str]) -> Iterator[_Found]:
    yield from _sizes(size.named, lets)
    yield from _axes([size.fits])
    for part, inner in size.parts:
        yield _Found(Kind.MESH_AXIS, *part, is_definition=True)
        yield from _mesh_size(inner, lets)


def _derived(stated: syntax.DerivedExpr, lets: frozenset[str]) -> Iterator[_Found]:
    if stated.parent is not None:
        yield _Found(Kind.PATTERN, *stated.parent)
    own = {"in", "out"}.union(*stated.own) if stated.own is not None else set()
    for dim in (*(dim for answer in stated.answers for dim in answer), *stated.names):
        if re.match(r"[^\W\d]", dim.text) and dim.text not in own:
            yield from _axes([dim])


def _line(line: LineExpr, lets: frozenset[str]) -> Iterator[_Found]:
    aliases = set[str]()
    for term in (*line.operands, *line.results):
        aliases |= {dim.alias.text for dim in term.dims or () if dim.alias is not None}
    for term in (*line.operands, *line.results):
        if term.kind != "value":
            yield _Found(Kind.PATTERN, term.text, term.start, term.end)
        names = (dim.name for dim in term.dims or () if dim.name is not None)
        yield from _axes(name for name in names if name.text not in aliases)
    yield from _sizes(line.flops, lets)


#: Fields whose names are not of logical axes.
_HELD = {"mesh_axes": Kind.MESH_AXIS, "sums": Kind.MESH_AXIS, "dtype": Kind.DTYPE}
_Reader = tuple[Callable[[str], Any], Callable[[Any, frozenset[str]], Iterator[_Found]]]
#: By kind of expression: what reads it, and the names in what is read.
_READERS: Mapping[str, _Reader] = {
    "size": (expressions.parse_size, _names),
    **dict.fromkeys(("axes", "names"), (expressions.parse_names, _names)),
    "array_type": (expressions.parse_array_type, _names),
    "axis_rule": (expressions.parse_axis_rule, _names),
    "place": (expressions.parse_place, _names),
    "scan": (expressions.parse_scan, _names),
    "derived": (expressions.parse_derived, _derived),
    "mesh_size": (expressions.parse_mesh_size, _mesh_size),
    "step_line": (parse_step_line, _line),
    "mesh_axes": (expressions.parse_mesh_axes, _names),
    "partition": (expressions.parse_partition, _names),
}
#: What is one name, whatever stands in it.
_NAMED_WHOLE = {Kind.HARDWARE, Kind.BASE, Kind.MANIFEST, Kind.STEP, Kind.PATTERN}


def _of_comments(source: SourceFile) -> Iterator[Use]:
    """Yield the findings that comments silence."""
    for each in marked(source).suppressions:
        for name in each.findings:
            yield Use(Kind.FINDING, name.text, name.span, False, (), name)
