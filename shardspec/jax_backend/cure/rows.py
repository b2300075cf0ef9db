"""Which dimensions of values are the rows of a batch, by what a step does along them.

Rows of a batch do not meet. So a dimension of the data is none of rows where an operation moves
elements along it, as a shift of tokens does; where a value has it twice, as scores of attention
have; where it is joined with positions or with a dimension of a parameter; and where a scan goes
over it. The dimension of an argument of which nothing of that is seen is that of its rows, if there
is one such. If there are two, as in a step that treats each token alone, or none, as with a loss
over all pairs of rows, nothing is known of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.extend.core

from shardspec.cure.lines import IsRows
from shardspec.cure.patching import Extent
from shardspec.ir.spec import Shape
from shardspec.jax_backend.equations import followed, scan_counts, stack_at
from shardspec.jax_backend.step.sum_rules import slots_of
from shardspec.jax_backend.step.trace import Traced

#: For each dimension of a value where it comes from; None where that is not known.
Dims = tuple[int | None, ...]
#: Where the dimensions of parameters and those of positions come from.
_WEIGHTS, _POSITIONS = 0, 1
#: What moves elements along the dimensions that have no slot, and keeps the order of dimensions.
_MOVES = frozenset(
    (
        *("slice", "dynamic_slice", "dynamic_update_slice", "pad", "concatenate", "split", "rev"),
        *("sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    )
)
_OF_STATE = ("parameter", "optimizer")


class Rows:
    """The dimensions of the values of a step, each with where it comes from."""

    def __init__(self, traced: Traced) -> None:
        """Walk the program of a step; of one that is not there nothing is known."""
        self._from = [_WEIGHTS, _POSITIONS]
        self._mixed: set[int] = set()
        self._at: dict[tuple[str, int, int, Shape], list[Dims]] = {}
        self._rows: set[int] = set()
        program, given = traced.program or (None, ())
        shapes = [] if program is None else [tuple(each.aval.shape) for each in program.invars]
        if not shapes or shapes != [each.shape for each in given]:
            return
        owned = [
            (_WEIGHTS,) * len(each.shape) if each.role in _OF_STATE else self._new(len(each.shape))
            for each in given
        ]
        self._walk(program, owned)
        self._mixed = {_WEIGHTS, _POSITIONS, *map(self._root, self._mixed)}
        every = [{self._root(each) for each in dims if each is not None} for dims in owned]
        of_data = [roots for roots in every if len(roots) > 1]
        free = [roots - self._mixed for roots in of_data]
        self._rows = {each for roots in free if len(roots) == 1 for each in roots}
        # where all dimensions meet, as in a loss over pairs of rows, none of them is known
        untold = {each for roots in of_data if roots <= self._mixed for each in roots}
        self._mixed -= untold - {_WEIGHTS, _POSITIONS}

    def of(self, at: Extent, shape: Shape) -> IsRows:
        """Return which dimensions of what an expression yields are rows."""
        known = self._at.get((at.file, at.line, at.column, shape))
        if not known:
            return (None,) * len(shape)
        found = [{*map(self._is_rows, dims)} - {None} for dims in zip(*known, strict=True)]
        return tuple(each.pop() if len(each) == 1 else None for each in found)

    def _is_rows(self, dim: int | None) -> bool | None:
        if dim is None:
            return None
        root = self._root(dim)
        return True if root in self._rows else False if root in self._mixed else None

    def _new(self, count: int) -> Dims:
        start = len(self._from)
        self._from += range(start, start + count)
        return tuple(range(start, start + count))

    def _root(self, dim: int) -> int:
        while self._from[dim] != dim:
            dim = self._from[dim]
        return dim

    def _joined(self, dims: Iterable[int | None]) -> int | None:
        """Return what dimensions that are joined come from: that of the data, if there is one."""
        roots = sorted({self._root(each) for each in dims if each is not None})
        own = [each for each in roots if each > _POSITIONS]
        if not own:
            return roots[0] if roots else None
        for other in own[1:]:
            self._from[other] = own[0]
        if len(own) < len(roots):
            self._mixed.add(own[0])
        return own[0]

    def _walk(self, program: Any, given: Sequence[Dims]) -> list[Dims]:
        """Return where the results of a program come from."""

        def made(equation: Any, own: Sequence[Dims]) -> list[Dims]:
            found = self._made(equation, own)
            for var, dims in zip(equation.outvars, found, strict=False):
                self._note(equation, var, dims)
            return found

        def unknown(var: Any) -> Dims:
            return (None,) * len(getattr(var.aval, "shape", ()))

        return followed(program, given, made, unknown)

    def _note(self, equation: Any, var: Any, dims: Dims) -> None:
        roots = [self._root(each) for each in dims if each is not None]
        self._mixed |= {each for each in roots if each > _POSITIONS and roots.count(each) > 1}
        if len(dims) > 1 and any(each is not None for each in dims):
            for frame in stack_at(equation):
                self._at.setdefault((*frame[:3], tuple(var.aval.shape)), []).append(dims)

    def _made(self, equation: Any, given: Sequence[Dims]) -> list[Dims]:
        """Return where the dimensions of the results of an operation come from."""
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return self._scanned(equation, given)
        inner = [getattr(e, "jaxpr", e) for e in jax.extend.core.jaxprs_in_params(params)]
        if name == "cond":
            branches = [self._walk(each, given[1:]) for each in inner]
            return branches[0]
        if len(inner) == 1 and len(inner[0].invars) == len(given) and name != "shard_map":
            return self._walk(inner[0], given)
        if name == "iota":
            rank = len(params["shape"])
            return [tuple(_POSITIONS if at == params["dimension"] else None for at in range(rank))]
        return [self._of_slots(equation, given, len(var.aval.shape)) for var in equation.outvars]

    def _scanned(self, equation: Any, given: Sequence[Dims]) -> list[Dims]:
        consts, carried = scan_counts(equation)
        kept, over = given[: consts + carried], given[consts + carried :]
        self._mixed |= {dims[0] for dims in over if dims[0] is not None and dims[0] > _POSITIONS}
        made = self._walk(equation.params["jaxpr"].jaxpr, [*kept, *(dims[1:] for dims in over)])
        turns = self._joined(dims[0] for dims in over)
        return [*made[:carried], *((turns, *dims) for dims in made[carried:])]

    def _of_slots(self, equation: Any, given: Sequence[Dims], rank: int) -> Dims:
        slots = slots_of(equation)
        if slots is None:
            return (None,) * rank
        onto: list[list[int | None]] = [[] for _ in range(rank)]
        summed: dict[int, list[int | None]] = {}
        merged: set[int] = set()
        for dims, own in zip(given, slots, strict=True):
            for at, (dim, slot) in enumerate(zip(dims, own, strict=False)):
                if slot is None:
                    if dim is not None and equation.primitive.name in _MOVES:
                        self._mixed.add(dim)
                        onto[at].append(dim)
                elif slot.part is not None:
                    summed.setdefault(slot.at, []).append(dim)
                elif slot.is_minor:
                    merged.add(slot.at)
                elif slot.at < rank:
                    onto[slot.at].append(dim)
        if equation.primitive.name == "dot_general":
            for pair in summed.values():
                if _WEIGHTS in pair:
                    self._joined(pair)
        return tuple(None if at in merged else self._joined(own) for at, own in enumerate(onto))
