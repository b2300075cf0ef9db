"""What the walk over a document offers to its sections: texts with their places, and what is wrong.

Faulty expressions are reported and left out; the rest goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from shardspec.diagnostics import Code, Diagnostic, Edit, Excerpt, Fix, Label, Span, codes, point
from shardspec.diagnostics.budget import spend
from shardspec.ir import spec as ir
from shardspec.ir.spec import Pattern
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import AxisTarget, NamesExpr, SyntaxFault
from shardspec.language.layer import unknown_dtype
from shardspec.language.reading import Route, SourceMap, is_dsl, marks_of
from shardspec.language.validate import Validated

if TYPE_CHECKING:
    from shardspec.language.document import ActivationEntry, OverrideEntry, ReplicateEntry

T = TypeVar("T")
Entry = TypeVar("Entry", bound="OverrideEntry | ReplicateEntry")
_WRONG = codes.WRONG_TYPE
Chosen: TypeAlias = "OverrideEntry | ReplicateEntry | ActivationEntry"

_NAME = re.compile(r"[\w.-]+")
#: What a comma tore off the axes of an unquoted `embed, mlp -> none`, to the end of the rule.
_REST_OF_AXES = re.compile(r"(?:[ \t]*,[ \t]*[\w.-]+)+[ \t]*->[ \t]*[\w.-]+")


class Choice(NamedTuple):
    """Two fields of which an entry has one.

    Attributes:
      what: what either of them states.
      forms: what stands in them.
    """

    what: str
    first: str
    second: str
    forms: str


PATTERN = Choice("pattern", "path", "match", "a glob, or a regex, over whole paths")


class Walk:
    """The walk over one document; collects what goes wrong on the way."""

    def __init__(self, valid: Validated, source_map: SourceMap) -> None:
        """Start at the beginning of a document."""
        self.document = valid.document
        self.faulty = valid.faulty
        self.source_map = source_map
        self.diagnostics: list[Diagnostic] = []
        self._torn: list[Span] = []

    def excerpt(self, route: Route, text: str) -> Excerpt:
        """Return the value at `route` with the way back to its characters."""
        found = self.source_map.value(route)
        return found if found.text == text else Excerpt(text, found.span)

    def key(self, route: Route) -> Excerpt:
        """Return the key that `route` ends in."""
        found = self.source_map.key(route)
        return found if found.text == route[-1] else Excerpt(str(route[-1]), found.span)

    def parse(self, parser: Callable[[str], T | SyntaxFault], excerpt: Excerpt) -> T | None:
        """Return what `parser` makes of the text, or None after reporting its fault."""
        spend(100, excerpt.span.source, excerpt.span.start)
        parsed = parser(excerpt.text)
        if not isinstance(parsed, SyntaxFault):
            return parsed
        if any(whole.start < excerpt.span.start < whole.end for whole in self._torn):
            return None  # the rest of an item that a comma ended, which is reported
        whole = _torn(excerpt)
        if whole is not None:
            self._torn.append(whole)
            self.report(_unquoted(excerpt, whole, parser))
            return None
        self.report(parsed.diagnostic(excerpt))
        return None

    def report(self, diagnostic: Diagnostic) -> None:
        """Keep a finding."""
        self.diagnostics.append(diagnostic)

    def fault(self, message: str, span: Span, help: str | None = None, code: Code = _WRONG) -> None:
        """Keep the finding for what should be something else."""
        self.diagnostics.append(point(code, message, span, help=help))

    def has_one(self, route: Route, entry: Chosen, noun: str, *choices: Choice) -> bool:
        """Say whether an entry has one field of each choice; report it where it does not."""
        for what, first, second, forms in choices:
            given = [getattr(entry, first) is not None, getattr(entry, second) is not None]
            if all(given):
                places = (self.key((*route, second)).span, self.key((*route, first)).span)
                labels = tuple(Label(span, "", span is places[0]) for span in places)
                message = f"an {noun} has one {what}, and this has both `{first}` and `{second}`"
                self.report(Diagnostic(_WRONG, message, labels, help="remove one of the two"))
                return False
            if not any(given):
                help = f"add `{first}` or `{second}`: {forms}"
                self.fault(f"this {noun} has no {what}", self._head(route), help)
                return False
        return True

    def _head(self, route: Route) -> Span:
        """Return the first line of an entry, without what follows it."""
        span = self.source_map.value(route).span
        first = span.text.partition("\n")[0].partition(" #")[0].rstrip()
        return Span(span.source, span.start, span.start + len(first))

    def entry_pattern(self, route: Route, entry: OverrideEntry | ReplicateEntry) -> Pattern | None:
        """Return the pattern in the `path` or `match` of an entry."""
        kind = "path" if entry.path is not None else "match"
        text = entry.path if entry.path is not None else entry.match or ""
        excerpt = self.excerpt((*route, kind), text)
        return self.pattern(excerpt, is_regex=kind == "match", is_optional=entry.optional)

    def pattern(
        self, excerpt: Excerpt, *, is_regex: bool, is_optional: bool = False
    ) -> Pattern | None:
        """Return the pattern, once it is known that it compiles."""
        from shardspec.language.patterns.glob import compile_glob
        from shardspec.language.patterns.regex import compile_regex

        compiled = compile_regex(excerpt.text) if is_regex else compile_glob(excerpt.text)
        if isinstance(compiled, SyntaxFault):
            self.report(compiled.diagnostic(excerpt, codes.BAD_PATTERN))
            return None
        return Pattern(excerpt.text, "regex" if is_regex else "glob", excerpt.span, is_optional)

    def key_pattern(self, route: Route) -> Pattern | None:
        """Return the pattern in the key that `route` ends in, behind `optional:` and `re:`."""
        key = self.key(route)
        is_optional, is_regex, at = marks_of(key.text)
        pattern = key.part(at, len(key.text)) if at else key
        return self.pattern(pattern, is_regex=is_regex, is_optional=is_optional)

    def name(self, route: Route) -> bool:
        """Say whether the key at `route` is a name that expressions can use; report if not."""
        key = self.key(route)
        parsed = expressions.parse_names(key.text)
        is_read = isinstance(parsed, NamesExpr) and len(parsed.names) == 1 and all(parsed.names)
        may_be_role = len(route) == 2 and route[0] == "axes"
        if is_read and (may_be_role or ir.axis_of(key.text) == key.text):
            return True
        what = "a number" if route[0] == "let" else "an axis"
        help = "names are letters, digits and `_`, with `-` and `.` inside; `none` is taken"
        self.fault(f"`{key.text}` is no name for {what}", key.span, help)
        return False

    def dtype(self, route: Route, name: str) -> str | None:
        """Return the short name of a dtype, or None after reporting that it is not known."""
        known = ir.dtype_name(name)
        if known is None:
            self.report(unknown_dtype(name, self.source_map.value(route).span))
        return known

    def entries(
        self, section: str, noun: str, entries: Sequence[Entry], *choices: Choice
    ) -> Iterator[tuple[Route, Entry]]:
        """Yield the entries of a list that make each of the choices; report the others."""
        for index, entry in enumerate(entries):
            route: Route = (section, index)
            if route not in self.faulty and self.has_one(route, entry, noun, *choices):
                yield route, entry


def axes_of(stated: NamesExpr) -> ir.LogicalAxes:
    """Return logical axes, None for a dimension without a name."""
    return tuple(name.text if name else None for name in stated.names)


def mesh_axes(target: AxisTarget) -> tuple[str, ...]:
    """Return the names of the mesh axes of one right side."""
    return tuple(axis.text for axis in target.mesh_axes)


def _torn(excerpt: Excerpt) -> Span | None:
    """Return all of an unquoted `a, b -> c` in a YAML flow, whose comma ends the item."""
    span, text = excerpt.span, excerpt.span.source.text
    if is_dsl(span.source) or span.text != excerpt.text or text[span.start - 1] in "'\"":
        return None
    rest = _REST_OF_AXES.match(text, span.end) if _NAME.fullmatch(excerpt.text) else None
    return None if rest is None else Span(span.source, span.start, rest.end())


def _unquoted(
    excerpt: Excerpt, whole: Span, parser: Callable[[str], T | SyntaxFault]
) -> Diagnostic:
    """Return the finding for an item without quotes; with the fix, where it needs nothing else."""
    fix = None
    if not isinstance(parser(whole.text), SyntaxFault):
        edges = (Span(whole.source, at, at) for at in (whole.start, whole.end))
        fix = Fix("quote it", tuple(Edit(edge, '"') for edge in edges), is_sure=True)
    message = f"the comma ends the item, which is then `{excerpt.text}`"
    help = f'between brackets, quote what holds a comma: `"{whole.text}"`'
    return point(codes.SYNTAX, message, whole, "two items for YAML", help=help, fix=fix)
