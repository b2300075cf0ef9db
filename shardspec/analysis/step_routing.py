"""Experts that have slots: what `dispatch(...)` and `combine(...)` of a program stand for.

Tokens are multiplied with a mask `[batch length expert slot]` that says which of them goes where,
so that those of a device are sorted by experts; then what goes to the experts of a device travels
there. What these make comes back, and is added up by the weights of the choice. Without drops,
tokens are sorted by index: the mask is one number a token, and its products have no FLOPs.

Source: GShard (arXiv 2006.16668), section 2.2; MaxText, layers/moe.py, with dropped tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.ir.program import Line, Product, Term, TermDim
from shardspec.ir.spec import LogicalAxes

#: What a product by index computes: it only moves tokens.
_NO_FLOPS = (Product((0,)),)


class Slots(NamedTuple):
    """The names of a dispatch.

    Attributes:
      expert: of the dimension of experts, in the result.
      slot: of the dimension of what an expert takes of a group.
      position: of the tokens of a group.
      scored: what the scores call the experts.
      is_dropless: whether tokens are sorted by expert.
      tokens: the dimensions of what is dispatched.
    """

    expert: str
    slot: str
    position: str
    scored: str
    is_dropless: bool = False
    tokens: tuple[TermDim, ...] = ()


def slots_of(
    tokens: LogicalAxes, routing: LogicalAxes, result: Sequence[str | None]
) -> Slots | str:
    """Return what a dispatch calls its dimensions, or what is wrong with its result.

    >>> slots_of(
    ...     ("batch", "length", "embed"),
    ...     ("batch", "length", "router"),
    ...     ["expert", "batch", "slot", "embed"],
    ... )[:4]
    ('expert', 'slot', 'length', 'router')
    """
    new = [name for name in result if name is not None and name not in tokens]
    positions = [name for name in routing if name in tokens and name not in result]
    scored = [name for name in routing if name is not None and name not in tokens]
    if len(new) != 2 or None in result:
        return "needs two names that the tokens have not, of experts and of their slots"
    if len(positions) != 1 or positions[0] is None:
        return "has to leave out one name of the tokens, that of their positions"
    if len(scored) != 1:
        return "goes by scores that need one name the tokens have not, that of experts"
    return Slots(new[0], new[1], positions[0], scored[0])


def dispatched(
    line: Line, routing: Sequence[TermDim], result: tuple[TermDim, ...], slots: Slots
) -> tuple[Line, ...]:
    """Return the choice and its weights, what leaves a device by experts, and what arrives."""
    source, scores = line.operands
    mask = Term("dispatch", "value", _mask(routing, slots), scores.span)
    leaving = Term("leaving", "value", result, line.results[0].span)
    arrived = replace(line.results[0], dims=result)
    return (
        Line("route", (scores,), (mask,), span=line.span),
        Line("", (scores,), (replace(mask, text="combine"),), span=line.span),
        Line("", (source, _bare(mask)), (leaving,), _flops(slots), span=line.span),
        Line("", (_bare(leaving),), (arrived,), span=line.span),
    )


def combined(line: Line, made: Sequence[TermDim], slots: Slots) -> tuple[Line, ...]:
    """Return what comes back from experts, and its sum by the weights of the choice."""
    source, scores = line.operands
    dims = (_whole(known_as(dim)) if known_as(dim) == slots.expert else dim for dim in made)
    returned = Term("returned", "value", tuple(dims), source.span)
    weights = Term("combine", "value", None, scores.span)
    return (
        Line("", (source,), (returned,), span=line.span),
        Line("", (_bare(returned), weights), line.results, _flops(slots), span=line.span),
    )


def known_as(dim: TermDim) -> str | None:
    """Return the name that a line knows a dimension by."""
    return dim.alias or dim.name


def _flops(slots: Slots) -> tuple[Product, ...]:
    return _NO_FLOPS if slots.is_dropless else ()


def _mask(routing: Sequence[TermDim], slots: Slots) -> tuple[TermDim, ...]:
    size = 1 if slots.is_dropless else None
    dims = (_whole(slots.expert, size) if known_as(dim) == slots.scored else dim for dim in routing)
    return (*dims, _whole(slots.slot, 1) if size else TermDim(slots.slot))


def _whole(name: str | None, size: int | None = None) -> TermDim:
    """Return a dimension that no rule splits."""
    return TermDim(None, name, size)


def _bare(term: Term) -> Term:
    return Term(term.text, "value", None, term.span)
