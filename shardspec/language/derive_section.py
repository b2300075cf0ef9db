"""`derive:` of a document -> its entries, of which it is known that their parents can be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardspec.diagnostics import codes
from shardspec.ir import spec as ir
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.template import braces_of, template_of
from shardspec.language.reading import Route, marks_of
from shardspec.language.walk import Walk


def stated_derives(walk: Walk, entries: Mapping[str, str]) -> Iterator[ir.DeriveRule]:
    """Yield the entries of `derive:`, by pattern; report those that cannot be read."""
    for key, text in entries.items():
        route: Route = ("derive", key)
        if marks_of(key).is_regex:
            message = "a regex does not say what the path of the parent is"
            help = "write a glob, as in `**/lora_a`: its wildcards stand in `from`, too"
            walk.fault(message, walk.key(route).span, help, codes.BAD_PATTERN)
            continue
        pattern, stated = walk.key_pattern(route), walk.excerpt(route, text)
        parsed = walk.parse(expressions.parse_derived, stated)
        if pattern is None or parsed is None:
            continue
        named, span = parsed.parent, stated.span
        fault: object = None if named is None else template_of(pattern.text, named.text)
        if named is not None and isinstance(fault, SyntaxFault):
            span = stated.at(named.start, named.end)
        elif parsed.factors is not None:
            fault = _unmatched(pattern, parsed.factors)
        if isinstance(fault, SyntaxFault):
            walk.fault(fault.message, span, fault.help, codes.BAD_PATTERN)
            continue
        fixed = (parsed.dims, walk.source_map.entry(route), parsed.own, parsed.factors)
        yield ir.DeriveRule(pattern, "" if named is None else named.text, *fixed)


def _unmatched(pattern: ir.Pattern, factors: ir.Factors) -> SyntaxFault | None:
    """Return why the pattern does not tell the sides of a product apart."""
    texts = (factors.left.text, factors.right.text)
    if braces_of(pattern.text, texts) is not None:
        return None
    braces = f"{{{','.join(sorted(texts))}}}"
    message = f"the pattern `{pattern}` has no braces `{braces}` that tell the sides apart"
    return SyntaxFault(message, 0, 0, f"write one for both: `**/lora_{braces}`")
