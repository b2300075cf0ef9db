"""`step:` of a document -> the keys that it sets, its lines with the place of every name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from shardspec.diagnostics import Excerpt
from shardspec.ir.program import Line, Product, Term, TermDim
from shardspec.language.grammar import step_lines
from shardspec.language.grammar.syntax import Name, SizeExpr
from shardspec.language.validate import Walk

if TYPE_CHECKING:
    from shardspec.language.document import StepEntry

#: Lines of one program: as many as a person reads.
_MOST_LINES = 1_000


def stated_step(walk: Walk, entry: StepEntry) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `step:` that a document sets, and where."""
    stated: dict[str, Any] = {key: getattr(entry, key) for key in entry.model_fields_set}
    stated.pop("extends", None)
    parsers = (
        ("tokens", step_lines.parse_count),
        ("experts", step_lines.parse_experts),
        ("pipeline", step_lines.parse_schedule),
    )
    for key, parse in parsers:
        text = stated.get(key)
        stated[key] = text and walk.parse(parse, walk.excerpt(("step", key), text))
    stated["dtype"] = entry.dtype and walk.dtype(("step", "dtype"), entry.dtype)
    if entry.remat is not None:
        stated["remat"] = tuple(entry.remat) or ("none",)
    if entry.program is not None:
        stated["program"] = tuple(_lines(walk, entry.program))
    stated = {key: value for key, value in stated.items() if value is not None}
    if stated or entry.extends is not None:
        stated["span"] = walk.source_map.key(("step",)).span
    return tuple(stated.items())


def _lines(walk: Walk, program: list[str]) -> Iterator[Line]:
    if len(program) > _MOST_LINES:
        message = f"a program of {len(program):,} lines"
        help = f"{_MOST_LINES:,} are the most: a pattern runs once for each array that it matches"
        span = walk.source_map.key(("step", "program")).span
        walk.fault(message, span, help)
    for index, text in enumerate(program[:_MOST_LINES]):
        excerpt = walk.excerpt(("step", "program", index), text)
        line = walk.parse(step_lines.parse_step_line, excerpt)
        if line is None:
            continue
        operands = tuple(_term(walk, each, excerpt) for each in line.operands)
        results = tuple(_term(walk, each, excerpt) for each in line.results)
        per = None if line.per is None else _term(walk, line.per, excerpt)
        flops = () if line.flops is None else _products(line.flops)
        call: Any = line.call
        if None not in (*operands, *results) and (per is not None or line.per is None):
            known = tuple(filter(None, operands)), tuple(filter(None, results))
            yield Line(call, *known, flops, line.times, per, excerpt.span)


def _products(size: SizeExpr) -> tuple[Product, ...]:
    return tuple(Product(tuple(map(_factor, term.factors)), term.sign) for term in size.terms)


def _factor(factor: int | Name | SizeExpr) -> int | str | tuple[Product, ...]:
    if isinstance(factor, SizeExpr):
        return _products(factor)
    return factor.text if isinstance(factor, Name) else factor


def _term(walk: Walk, term: step_lines.LineTerm, excerpt: Excerpt) -> Term | None:
    """Return a term, once it is known that its pattern compiles."""
    span = excerpt.at(term.start, term.end)
    if term.kind != "value":
        is_quoted = span.text[:1] in ('"', "r") and span.text[-1:] == '"'
        inner = Excerpt(term.text, span) if is_quoted else excerpt.part(term.start, term.end)
        if walk.pattern(inner, is_regex=term.kind == "regex") is None:
            return None
    dims = None
    if term.dims is not None:
        dims = tuple(_dim(dim, excerpt) for dim in term.dims)
    kind: Literal["value", "glob", "regex"] = term.kind
    return Term(term.text, kind, dims, span)


def _dim(dim: step_lines.LineDim, excerpt: Excerpt) -> TermDim:
    first, last = dim.name or dim.alias, dim.alias or dim.name
    span = None if first is None or last is None else excerpt.at(first.start, last.end)
    name = dim.name.text if dim.name is not None else None
    return TermDim(name, dim.alias.text if dim.alias else None, dim.size, span)
