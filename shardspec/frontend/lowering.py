"""What the walk over a document needs everywhere: its texts with their places, and its faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, Edit, Excerpt, Fix, Label, Span
from shardspec.diagnostics.codes import BAD_PATTERN, SYNTAX, WRONG_TYPE
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.reading import Route, SourceMap
from shardspec.frontend.spelling import is_dsl
from shardspec.frontend.validate import FAULTY
from shardspec.ir.spec import Pattern

if TYPE_CHECKING:
    from shardspec.frontend.document import Document, OverrideEntry, ReplicateEntry

T = TypeVar("T")

_NAME = re.compile(r"[\w.-]+")
#: What a comma tore off the axes of an unquoted `embed, mlp -> none`, to the end of the rule.
_REST_OF_AXES = re.compile(r"(?:[ \t]*,[ \t]*[\w.-]+)+[ \t]*->[ \t]*[\w.-]+")

#: What a comma tore off an unquoted tuple, to its parenthesis.
_REST_OF_TUPLE = re.compile(r"[ \t]*,[^\n\[\]{}()#]*\)(?:[^\n\[\]{}(),#]*[^\s\[\]{}(),#])?")


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


class Lowering:
    """The walk over one document; collects what goes wrong on the way."""

    def __init__(self, document: Document, source_map: SourceMap) -> None:
        """Start at the beginning of `document`."""
        self.document = document
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

    def is_reported(self, route: Route, text: str | None) -> bool:
        """Say whether a value only stands in for one whose fault is known already."""
        return text == FAULTY and self.source_map.value(route).text != FAULTY

    def choice_fault(
        self, route: Route, entry: OverrideEntry | ReplicateEntry, noun: str, choice: Choice
    ) -> Diagnostic | None:
        """Return what is wrong where an entry has both fields of a choice, or neither."""
        what, first, second, forms = choice
        given = [getattr(entry, first) is not None, getattr(entry, second) is not None]
        if all(given):
            places = (self.key((*route, second)).span, self.key((*route, first)).span)
            labels = tuple(Label(span, "", span is places[0]) for span in places)
            message = f"an {noun} has one {what}, and this has both `{first}` and `{second}`"
            return Diagnostic(WRONG_TYPE, message, labels, help="take one of the two out")
        if not any(given):
            help = f"add `{first}` or `{second}`: {forms}"
            return point(WRONG_TYPE, f"this {noun} has no {what}", self.head(route), help=help)
        return None

    def head(self, route: Route) -> Span:
        """Return the first line of an entry, without what follows it."""
        span = self.source_map.value(route).span
        first = span.text.partition("\n")[0].partition(" #")[0].rstrip()
        return Span(span.source, span.start, span.start + len(first))

    def entry_pattern(self, route: Route, entry: OverrideEntry | ReplicateEntry) -> Pattern | None:
        """Return the pattern in the `path` or `match` of an entry."""
        kind = "path" if entry.path is not None else "match"
        text = entry.path if entry.path is not None else entry.match or ""
        return self.pattern(self.excerpt((*route, kind), text), is_regex=kind == "match")

    def pattern(self, excerpt: Excerpt, *, is_regex: bool) -> Pattern | None:
        """Return the pattern, once it is known that it compiles."""
        from shardspec.frontend.patterns.glob import compile_glob
        from shardspec.frontend.patterns.regex import compile_regex

        compiled = compile_regex(excerpt.text) if is_regex else compile_glob(excerpt.text)
        if isinstance(compiled, SyntaxFault):
            self.report(compiled.diagnostic(excerpt, BAD_PATTERN))
            return None
        return Pattern(excerpt.text, "regex" if is_regex else "glob", excerpt.span)


def _torn(excerpt: Excerpt) -> Span | None:
    """Return all of an unquoted `a -> (b, c)` in a YAML flow, whose comma ends the item."""
    span, text = excerpt.span, excerpt.span.source.text
    if is_dsl(span.source) or span.text != excerpt.text or text[span.start - 1] in "'\"":
        return None
    rest = None
    if excerpt.text.count("(") > excerpt.text.count(")"):
        rest = _REST_OF_TUPLE.match(text, span.end)
    elif _NAME.fullmatch(excerpt.text):
        rest = _REST_OF_AXES.match(text, span.end)
    return None if rest is None else Span(span.source, span.start, rest.end())


def _unquoted(
    excerpt: Excerpt, whole: Span, parser: Callable[[str], T | SyntaxFault]
) -> Diagnostic:
    """Return the finding for an item without quotes; with the fix, where it needs nothing else."""
    fix = None
    if not isinstance(parser(whole.text), SyntaxFault):
        edges = (Span(whole.source, at, at) for at in (whole.start, whole.end))
        fix = Fix("quote it", tuple(Edit(edge, '"') for edge in edges), is_sure=True)
    return Diagnostic(
        SYNTAX,
        f"the comma ends the item, which is then `{excerpt.text}`",
        (Label(whole, "two items for YAML"),),
        help=f'between brackets, quote what holds a comma: `"{whole.text}"`',
        fix=fix,
    )
