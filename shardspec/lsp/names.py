"""Every name in a text, and what it is the name of: for hover, definition, rename and colours.

Sections say what their keys name, and which expression their values are; the parser of that says
where each name in it stands. What cannot be read has no names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardspec.diagnostics import Excerpt, SourceFile, Span
from shardspec.ir.spec import ANY, Pattern, axis_of
from shardspec.language.grammar import expressions, syntax
from shardspec.language.grammar.step_lines import LineExpr, parse_step_line
from shardspec.language.grammar.syntax import MeshSize, Name, SizeExpr, SyntaxFault
from shardspec.language.reading import Reading, Route, inner_route, marks_of
from shardspec.language.sections import SECTIONS, expression_at
from shardspec.language.silencing import marked
from shardspec.lsp.types import Kind


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
        yield _axis_use(key, 0, key.text, route, is_definition=True)
        return
    is_definition = kind not in (Kind.WORD, Kind.FINDING, Kind.PATTERN)
    yield Use(kind, key.text, text_of(key), is_definition, route, key)


def _axis_use(
    excerpt: Excerpt, start: int, name: str, route: Route, *, is_definition: bool = False
) -> Use:
    """Return the use of a logical axis, without the role that it has: `embed` of `in:embed'`."""
    axis = axis_of(name)
    at = start + name.rstrip("'").rfind(axis)
    span = excerpt.at(at, at + len(axis))
    return Use(Kind.LOGICAL_AXIS, axis, span, is_definition, route, excerpt)


class _Expression:
    """An expression on the way to its names."""

    def __init__(self, excerpt: Excerpt, route: Route, lets: frozenset[str]) -> None:
        self.excerpt = excerpt
        self.route = route
        self.lets = lets

    def use(self, kind: Kind, name: Name, *, is_definition: bool = False) -> Use:
        span = self.excerpt.at(name.start, name.end)
        return Use(kind, name.text, span, is_definition, self.route, self.excerpt)

    def whole(self, kind: Kind) -> Iterator[Use]:
        """Yield the whole expression as one name."""
        span = text_of(self.excerpt)
        yield Use(kind, self.excerpt.text, span, False, self.route, self.excerpt)

    def axes(self, names: Iterable[Name | None]) -> Iterator[Use]:
        """Yield logical axes."""
        for name in names:
            if name is not None and name.text != ANY:
                yield _axis_use(self.excerpt, name.start, name.text, self.route)

    def names(self, node: object, kind: Kind = Kind.LOGICAL_AXIS) -> Iterator[Use]:
        """Yield the names in a node: the field that holds them says what they are of."""
        if isinstance(node, SizeExpr):
            yield from self.sizes(node)
        elif isinstance(node, Name):
            yield from self.axes([node]) if kind is Kind.LOGICAL_AXIS else [self.use(kind, node)]
        elif isinstance(node, tuple):
            fields = getattr(node, "_fields", ("",) * len(node))
            for field, inner in zip(fields, node, strict=True):
                yield from self.names(inner, _HELD.get(field, kind))

    def sizes(self, size: SizeExpr | None) -> Iterator[Use]:
        """Yield the axes and numbers that a size names."""
        for name in size.names if size is not None else ():
            if name.text in self.lets:
                yield self.use(Kind.NUMBER, name)
            else:
                yield from self.axes([name])


def _of_value(route: Route, value: Excerpt, lets: frozenset[str]) -> Iterator[Use]:
    kind = expression_at(inner_route(route))
    found = _Expression(value, route, lets)
    if kind in _READERS:
        yield from _READERS[kind](found)
    elif kind in _NAMED_WHOLE:
        yield from found.whole(Kind(kind))


def _read(
    parse: Callable[[str], Any],
    uses_in: Callable[[_Expression, Any], Iterator[Use]] = _Expression.names,
) -> Callable[[_Expression], Iterator[Use]]:
    """Return the reader of one kind of expression; what cannot be read has no names."""

    def read(found: _Expression) -> Iterator[Use]:
        stated = parse(found.excerpt.text)
        return iter(()) if isinstance(stated, SyntaxFault) else uses_in(found, stated)

    return read


def _mesh_size(found: _Expression, size: MeshSize) -> Iterator[Use]:
    yield from found.sizes(size.named)
    yield from found.axes([size.fits])
    for part, inner in size.parts:
        yield found.use(Kind.MESH_AXIS, part, is_definition=True)
        yield from _mesh_size(found, inner)


def _derived(found: _Expression, stated: syntax.DerivedExpr) -> Iterator[Use]:
    if stated.parent is not None:
        yield found.use(Kind.PATTERN, stated.parent)
    own = {"in", "out"}.union(*stated.own) if stated.own is not None else set()
    for dim in (*(dim for answer in stated.answers for dim in answer), *stated.names):
        if re.match(r"[^\W\d]", dim.text) and dim.text not in own:
            yield from found.axes([dim])


def _line(found: _Expression, line: LineExpr) -> Iterator[Use]:
    aliases = set[str]()
    for term in (*line.operands, *line.results):
        aliases |= {dim.alias.text for dim in term.dims or () if dim.alias is not None}
    for term in (*line.operands, *line.results):
        if term.kind != "value":
            yield found.use(Kind.PATTERN, Name(term.text, term.start, term.end))
        names = (dim.name for dim in term.dims or () if dim.name is not None)
        yield from found.axes(name for name in names if name.text not in aliases)
    yield from found.sizes(line.flops)


#: Fields whose names are not of logical axes.
_HELD = {"mesh_axes": Kind.MESH_AXIS, "sums": Kind.MESH_AXIS, "dtype": Kind.DTYPE}
#: By kind of expression.
_READERS: Mapping[str, Callable[[_Expression], Iterator[Use]]] = {
    "size": _read(expressions.parse_size),
    **dict.fromkeys(("axes", "names"), _read(expressions.parse_names)),
    "array_type": _read(expressions.parse_array_type),
    "axis_rule": _read(expressions.parse_axis_rule),
    "place": _read(expressions.parse_place),
    "scan": _read(expressions.parse_scan),
    "derived": _read(expressions.parse_derived, _derived),
    "mesh_size": _read(expressions.parse_mesh_size, _mesh_size),
    "step_line": _read(parse_step_line, _line),
    "mesh_axes": _read(expressions.parse_mesh_axes),
    "partition": _read(expressions.parse_partition),
}
#: What is one name, whatever stands in it.
_NAMED_WHOLE = {Kind.HARDWARE, Kind.BASE, Kind.MANIFEST, Kind.STEP, Kind.PATTERN}


def _of_comments(source: SourceFile) -> Iterator[Use]:
    """Yield the findings that comments silence."""
    for each in marked(source).suppressions:
        for name in each.findings:
            yield Use(Kind.FINDING, name.text, name.span, False, (), name)
