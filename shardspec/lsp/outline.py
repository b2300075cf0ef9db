"""The shape of a text: its sections and entries as symbols, and the blocks that fold.

Symbols come of what was read; blocks of the lines alone, so that they fold while one is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Excerpt, Span
from shardspec.diagnostics.words import grouped
from shardspec.language.dsl_text.layout import Statement, lay_out
from shardspec.language.reading import Reading, Route, inner_route
from shardspec.lsp import types
from shardspec.lsp.kinds import TYPES, TYPES_IN_ORDER, Kind
from shardspec.lsp.positions import Lines
from shardspec.lsp.snapshot import Snapshot

_KINDS = {
    "axes": types.SymbolKind.Variable,
    "let": types.SymbolKind.Constant,
    "mesh": types.SymbolKind.Field,
    "targets": types.SymbolKind.Class,
    "rules": types.SymbolKind.Operator,
    **dict.fromkeys(("params", "overrides"), types.SymbolKind.Key),
    **dict.fromkeys(("arrays", "caches"), types.SymbolKind.Array),
    "activations": types.SymbolKind.Event,
    "phases": types.SymbolKind.Module,
}
#: Levels below a section: `targets`, a name, `mesh`, an axis.
_DEEPEST = 4
#: Of arrays in a file there may be thousands, of which an outline is no longer one.
MOST_IN_SECTION = 2000


def symbols(snapshot: Snapshot) -> list[types.DocumentSymbol]:
    """Return the sections of a spec with their entries; none where it cannot be read."""
    reading = snapshot.reading
    if reading is None:
        return []
    places = reading.source_map
    items = (route for route in places.values if route and isinstance(route[-1], int))
    below = grouped(dict.fromkeys((*places.keys, *items)), lambda route: route[:-1])
    return [*_symbols((), below, reading, snapshot.lines)]


def _symbols(
    above: Route, below: dict[Route, list[Route]], reading: Reading, lines: Lines
) -> Iterator[types.DocumentSymbol]:
    deepest = _DEEPEST + 2 * (above[:1] == ("phases",))
    if len(above) >= deepest:
        return
    for route in below.get(above, ())[:MOST_IN_SECTION]:
        whole, key = reading.source_map.entry(route), reading.source_map.key(route)
        value = reading.source_map.values.get(route, Excerpt("", whole))
        head = _first_line(key.span)
        end = max(head.end, whole.start + len(whole.text.rstrip()))
        selected = lines.range_of(head)
        yield types.DocumentSymbol(
            name=_name(route, reading) or "(empty)",
            kind=_kind(route),
            detail=None if isinstance(route[-1], int) else value.text or None,
            range=types.Range(
                selected.start if head.start <= whole.start else lines.position(whole.start),
                lines.position(end),
            ),
            selection_range=selected,
            children=[*_symbols(route, below, reading, lines)] or None,
        )


def _first_line(span: Span) -> Span:
    first = span.text.partition("\n")[0].rstrip()
    return Span(span.source, span.start, span.start + len(first))


def _kind(route: Route) -> types.SymbolKind:
    inner = inner_route(route)
    if len(inner) == 1 and len(route) != 2:
        return types.SymbolKind.Namespace
    section = "mesh" if "mesh" in inner[1:-1] else str(inner[0])
    return _KINDS.get(section, types.SymbolKind.Property)


def _name(route: Route, reading: Reading) -> str:
    """Return the key, or of an item of a list what tells it from others."""
    if not isinstance(route[-1], int):
        return str(route[-1])
    values = reading.source_map.values
    for field in ("rule", "path", "match"):
        if (*route, field) in values:
            return values[*route, field].text
    return values[route].text


def folds(snapshot: Snapshot) -> list[types.FoldingRange]:
    """Return the blocks of a text, and its runs of comments."""
    lines = snapshot.lines
    blocks = _braces(lines) if snapshot.is_dsl else _indented(lines)
    found = [types.FoldingRange(first, last) for first, last in blocks if last > first]
    comment = types.FoldingRangeKind.Comment
    return found + [types.FoldingRange(*run, kind=comment) for run in _comments(lines)]


def _braces(lines: Lines) -> Iterator[tuple[int, int]]:
    def walk(statements: Sequence[Statement]) -> Iterator[tuple[int, int]]:
        for each in statements:
            if each.entries is not None:
                last = lines.line_of(each.block_end) - each.is_closed
                yield lines.line_of(each.start), last
                yield from walk(each.entries)

    return walk(lay_out(lines.text).statements)


def _indented(lines: Lines) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each block of YAML, by indentation."""
    open_blocks: list[tuple[int, int]] = []
    last = 0
    for number, line in lines.each():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        # an item of a list may stand as far left as the key that it belongs to
        indent += text.startswith(("- ", "-\t")) or text == "-"
        while open_blocks and open_blocks[-1][0] >= indent:
            yield open_blocks.pop()[1], last
        open_blocks.append((indent, number))
        last = number
    yield from ((first, last) for _, first in open_blocks)


def _comments(lines: Lines) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for number, line in (*lines.each(), (lines.count, "")):
        if line.lstrip().startswith("#"):
            first = number if first is None else first
            continue
        if first is not None and number - first > 1:
            yield first, number - 1
        first = None


# Colours by meaning: which words of a text are names, and what of.
#
# What an editor's grammar knows, keys and comments and strings, it colours itself.


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
