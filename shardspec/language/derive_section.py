"""`derive:` of a document -> its entries, of which it is known that their parents can be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from shardspec.diagnostics import Diagnostic, Excerpt, codes, point
from shardspec.ir import spec as ir
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.template import braces_of
from shardspec.language.reading import Route, SourceMap, marks_of

T = TypeVar("T")


class Walk(Protocol):
    """What the walk over a document offers to a section."""

    source_map: SourceMap

    def excerpt(self, route: Route, text: str) -> Excerpt:
        """Return the value at `route`."""

    def key(self, route: Route) -> Excerpt:
        """Return the key that `route` ends in."""

    def parse(self, parser: Callable[[str], T | SyntaxFault], excerpt: Excerpt) -> T | None:
        """Return what `parser` makes of a text, or None after reporting its fault."""

    def key_pattern(self, route: Route) -> ir.Pattern | None:
        """Return the pattern in a key, or None after reporting why it does not compile."""

    def report(self, diagnostic: Diagnostic) -> None:
        """Keep a finding."""


def stated_derives(walk: Walk, entries: Mapping[str, str]) -> Iterator[ir.DeriveRule]:
    """Yield the entries of `derive:`, by pattern; report those that cannot be read."""
    for key, text in entries.items():
        route: Route = ("derive", key)
        if marks_of(key).is_regex:
            message = "a regex does not say what the path of the parent is"
            help = "write a glob, as in `**/lora_a`: its wildcards stand in `from`, too"
            walk.report(point(codes.BAD_PATTERN, message, walk.key(route).span, help=help))
            continue
        pattern, stated = walk.key_pattern(route), walk.excerpt(route, text)
        parsed = walk.parse(expressions.parse_derived, stated)
        if pattern is None or parsed is None:
            continue
        parent = "" if parsed.parent is None else parsed.parent.text
        fault = _untold(pattern, parent) if parsed.parent is not None else None
        if fault is not None and parsed.parent is not None:
            span = stated.at(parsed.parent.start, parsed.parent.end)
            walk.report(point(codes.BAD_PATTERN, fault.message, span, help=fault.help))
            continue
        fault = None if parsed.factors is None else _unmatched(pattern, parsed.factors)
        if fault is not None:
            walk.report(point(codes.BAD_PATTERN, fault.message, stated.span, help=fault.help))
            continue
        place = walk.source_map.entry(route)
        yield ir.DeriveRule(pattern, parent, parsed.dims, place, parsed.own, parsed.factors)


def _unmatched(pattern: ir.Pattern, factors: ir.Factors) -> SyntaxFault | None:
    """Return why the pattern does not tell the sides of a product apart."""
    texts = (factors.left.text, factors.right.text)
    if braces_of(pattern.text, texts) is not None:
        return None
    braces = f"{{{','.join(sorted(texts))}}}"
    message = f"the pattern `{pattern}` has no braces `{braces}` that tell the sides apart"
    return SyntaxFault(message, 0, 0, f"write one for both: `**/lora_{braces}`")


def _untold(pattern: ir.Pattern, parent: str) -> SyntaxFault | None:
    """Return why the pattern does not say what the path of the parent is."""
    from shardspec.language.patterns.template import template_of

    found = template_of(pattern.text, parent)
    return found if isinstance(found, SyntaxFault) else None
