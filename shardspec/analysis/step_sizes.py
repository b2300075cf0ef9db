"""How large the dimensions of a program are, and what the operands of a line have to agree on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardspec.analysis.step_values import Index, Read, Value
from shardspec.diagnostics import Diagnostic, Span, codes, point, quote
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import ParamSharding
from shardspec.ir.program import Line, Product, Term
from shardspec.ir.spec import LogicalAxis, axis_of


class LostError(Exception):
    """A line that makes nothing: a fault, or one that is for other models.

    Attributes:
      finding: the fault, where nobody has told of it.
    """

    def __init__(self, finding: Diagnostic | None = None) -> None:
        """Take the fault."""
        super().__init__()
        self.finding = finding


def sizes_of(arrays: Iterable[ParamSharding]) -> dict[str, int]:
    """Return the size of each name that has one size in all arrays."""
    found: dict[str, set[int]] = {}
    for each in arrays:
        for name, size in zip(each.logical_axes, each.param.shape, strict=True):
            if name is not None:
                found.setdefault(axis_of(name), set()).add(size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def lost(
    message: str, span: Span | None, help: str | None = None, subject: str | None = None
) -> LostError:
    """Return what ends a line, with its fault."""
    return LostError(point(codes.STEP_LINE, message, span, help=help, subject=subject))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a program by name.

    Attributes:
      axes: those that the spec declares.
      known: the sizes, which grow with the program.
    """

    axes: Mapping[str, LogicalAxis]
    known: Mapping[str, int]

    def indices(self, name: str | None, size: int, blank: str) -> tuple[Index, ...]:
        """Return a dimension as its factors, where the sizes agree."""
        if name is None:
            return (Index(blank, size),)
        factors = self.factors(name)
        found = tuple(Index(each, self.known.get(each, 0)) for each in factors)
        if len(found) > 1 and math.prod(index.size for index in found) == size:
            return found
        return (Index(name, size),)

    def factors(self, name: str, depth: int = 0) -> tuple[str, ...]:
        """Return the names whose product a name is; itself where it is none."""
        axis = self.axes.get(name)
        if axis is None or len(axis.factors) < 2 or depth > 8:
            return (name,)
        return tuple(each for part in axis.factors for each in self.factors(part, depth + 1))

    def size(self, name: str | None, term: Term, span: Span | None) -> int:
        """Return the size of a dimension of a term, as it is written there or stated in `axes`."""
        dims = term.dims or ()
        written = next((d.size for d in dims if (d.alias or d.name) == name and d.size), None)
        size = written or (self.known.get(axis_of(name)) if name else None)
        if size is None:
            what = f"`{name}`" if name else "a dimension without a name"
            help = _state_it(name) if name else "name it in brackets"
            help += f", or here: `[{name}=128]`" if name else ""
            raise lost(f"the size of {what} is not known", span or term.span, help, name)
        return size

    def sum(self, products: Sequence[Product], line: Line) -> int:
        """Return what a line says by sizes: `3 * batch * length`."""
        found = 0
        for each in products:
            found += each.sign * math.prod(self._factor(factor, line) for factor in each.factors)
        return found

    def _factor(self, factor: int | str | tuple[Product, ...], line: Line) -> int:
        if isinstance(factor, tuple):
            return self.sum(factor, line)
        if isinstance(factor, int):
            return factor
        size = self.known.get(factor)
        if size is None:
            message = f"the size of `{factor}` is not known"
            raise lost(message, line.span, _state_it(factor), factor)
        return size


def _state_it(name: str) -> str:
    return f"state it{quote.either(f' in `axes`: `{name}: 128`', f', `axis {name} = 128`')}"


def agreed(line: Line, reads: Sequence[Read], result: Value) -> dict[str, int]:
    """Return the sizes of the indices of an einsum, which everything in it agrees on."""
    sizes: dict[str, int] = {}
    whose: dict[str, str] = {}
    views = [(term, read.indices) for term, read in zip(line.operands, reads, strict=True)]
    made = tuple(index for dim in result.view for index in dim)
    for term, indices in (*views, (line.results[0], made)):
        for index in indices:
            first = sizes.setdefault(index.name, index.size)
            if first != index.size and 1 not in (first, index.size):
                message = (
                    f"`{index.name}` is {first} in `{whose[index.name]}`"
                    f" and {index.size} in `{term.text}`"
                )
                help = f"give one another name: `{term.text}[{index.name} as {index.name}_b]`"
                raise lost(message, term.span, help)
            whose.setdefault(index.name, term.text)
    read = {index.name for _, indices in views for index in indices}
    lone = next((index for index in made if index.name not in read and index.size > 1), None)
    if lone is not None:
        there = listed(sorted(name for name in read if not name.startswith("?")), limit=12)
        message = f"`{line.results[0].text}` has `{lone.name}`, and nothing that is read has it"
        help = f"read are {there}; or give another name: `[{lone.name} as ...]`"
        raise lost(message, line.results[0].span, help)
    _joined(line, views, {index.name for index in made})
    return sizes


def _joined(line: Line, views: Sequence[tuple[Term, Sequence[Index]]], made: set[str]) -> None:
    """Report an einsum that sums over what one operand alone has."""
    for at, (term, indices) in enumerate(views):
        others = {i.name for other, (_, v) in enumerate(views) if other != at for i in v}
        for index in indices:
            if index.name in made or index.name in others or index.size == 1:
                continue
            message = f"only `{term.text}` has `{index.name}`, and the line would sum over it"
            help = f"name it in the result, or as the other side does: `[{index.name} as ...]`"
            raise lost(message, term.span, help)
