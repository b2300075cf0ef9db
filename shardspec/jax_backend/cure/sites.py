"""What could be constrained in a lowered step: the values that expressions of the code yield.

JAX notes for each operation the extent of the expression that asked for it. A value that is used
outside of its expression is what the expression yields. One expression yields many values: one for
each layer that calls it, one that is computed again for the backward pass, and the gradient, which
a constraint lays out as well. Where a helper computes the values of several lines, each of those is
an expression, too: what is right for one may be wrong for another. Where its values are of several
shapes, the line of the helper is none, since no names are right for all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from shardspec.cure.lines import Point, Site
from shardspec.cure.patching import Extent
from shardspec.diagnostics.words import by_key, grouped
from shardspec.ir.spec import Shape
from shardspec.jax_backend.step.graph import (
    RETURNS,
    children,
    functions_of,
    joined_names,
    location_texts,
    name_in,
)
from shardspec.programs.op_names import Callers, Frame, Stack, stack_of

#: A frame of Python, as MLIR prints it: `"model.py":3:8 to 4:24`, `"model.py":3:8 to :24`.
_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to (\d*):(\d+))?')
#: What yields nothing that could be laid out otherwise, or has a layout stated already.
_PASSED_OVER = frozenset(
    (
        *("stablehlo.constant", "stablehlo.iota", "stablehlo.while", "stablehlo.case"),
        *("sdy.sharding_constraint", "sdy.mesh", "sdy.reshard", "stablehlo.custom_call"),
    )
)
#: What looks up in its first operand.
_LOOKUPS = frozenset(("stablehlo.gather", "stablehlo.dynamic_slice", "func.call"))
#: Smaller arrays are left where they are.
_LEAST_ELEMENTS = 1 << 18


class Where(NamedTuple):
    """The expression that asked for an operation, and what JAX calls that.

    Attributes:
      stack: the user's frames; `extents` are their expressions, as far as they are known.
    """

    name: str
    extent: Extent | None
    stack: Stack = ()
    extents: tuple[Extent | None, ...] = ()

    @property
    def is_gradient(self) -> bool:
        """Say whether it is of the backward pass, and not computed again there."""
        return "transpose(" in self.name and "rematted_computation" not in self.name


@lru_cache(maxsize=65536)
def where(text: str) -> Where:
    """Return what the location of an operation says."""
    extents: dict[Frame, Extent | None] = {}
    for file, line, column, end_line, end_column in _FRAME.findall(text):
        start = int(line), int(column)
        end = int(end_line or line), int(end_column or 0)
        extents.setdefault(Frame(file, *start), Extent(file, *start, *end) if end_column else None)
    stack = stack_of(extents)
    own = tuple(extents[frame] for frame in stack)
    return Where(name_in(text), own[0] if own else None, stack, own)


class _Op(NamedTuple):
    number: int
    op: Any
    where: Where


def numbered(module: Any) -> Iterator[tuple[int, Any]]:
    """Yield all operations of the functions of a module, numbered in order."""
    functions = (each for name in functions_of(module).values() for each in inside(name))
    yield from enumerate(functions)


def inside(op: Any) -> Iterator[Any]:
    """Yield an operation, and all inside of it."""
    yield op
    for each in children(op):
        yield from inside(each)


def sites_of(module: Any) -> tuple[Site, ...]:
    """Return the values that could be constrained, without layouts, in the order of the program.

    Args:
      module: as JAX lowered it; nothing of it is changed.
    """
    ops = _located(module)
    found = [*_sites(module, ops)]
    callers = Callers((one.where.stack, one.where.name) for one in ops.values())
    called = {op: one._replace(where=_called(one.where, callers)) for op, one in ops.items()}
    helpers = {ops[op].where.extent for op, one in called.items() if one != ops[op]}
    if not helpers:
        return tuple(found)
    shapes = by_key((site.at, site.shape) for site in found if site.at in helpers)
    found = [site for site in found if len(set(shapes.get(site.at, ()))) < 2]
    known = {(site.at, site.shape, site.is_index) for site in found}
    lines = (s for s in _sites(module, called) if (s.at, s.shape, s.is_index) not in known)
    return *found, *lines


def _called(where: Where, callers: Callers) -> Where:
    """Return the expression that calls the helper which asked for an operation, if one did."""
    at = callers.shown(where.stack)
    return where._replace(extent=where.extents[at]) if at else where


def _sites(module: Any, ops: Mapping[Any, _Op]) -> Iterator[Site]:
    opaque = {name for name, each in functions_of(module).items() if _is_opaque(each, ops)}
    found = by_key(pair for one in ops.values() for pair in _yielded(one, ops, opaque))
    called = (one.op for one in ops.values() if one.op.name == "func.call")
    calls = grouped(called, lambda op: str(op.attributes["callee"].value))
    for one in ops.values():
        for key, point in _gradients(one, ops, calls):
            if key in found and point not in found[key]:
                found[key].append(point)
    by_number = {one.number: one for one in ops.values()}
    used = {
        key
        for key, points in found.items()
        if any(_is_used(by_number[e.op], ops, opaque) for e in points if not e.is_operand)
    }
    of_used = {extent for extent, *_ in used}
    kept = {key: each for key, each in found.items() if key in used or key[0] not in of_used}
    ranks: dict[Extent, set[int]] = {}
    for extent, shape, _ in kept:
        ranks.setdefault(extent, set()).add(len(shape))
    is_derived = any(one.where.is_gradient for one in ops.values())

    def names(points: Sequence[Point]) -> list[str]:
        return [by_number[each.op].where.name for each in points]

    for (extent, shape, dtype), points in kept.items():
        if len(ranks[extent]) == 1:  # one line of names has to do for all of them
            yield Site(
                *(shape, dtype, extent),
                points=tuple(points),
                is_update=is_derived and not any("jvp(" in name for name in names(points)),
                vmaps=_vmaps(names(points)),
            )
    yield from _indices(ops, calls, opaque)


def _located(module: Any) -> dict[Any, _Op]:
    """Return all operations with their expressions; names begin with those of the calls."""
    numbers = {op: number for number, op in numbered(module)}
    found: dict[Any, _Op] = {}
    functions = functions_of(module)
    text = location_texts()
    waiting, seen = [("main", "")], {"main"}
    while waiting:
        name, prefix = waiting.pop(0)
        for op in inside(functions[name]):
            own = where(text(op))
            whole = joined_names(prefix, own.name)
            found[op] = _Op(numbers[op], op, own._replace(name=whole))
            callee = op.attributes["callee"].value if op.name == "func.call" else name
            if callee not in seen:
                seen.add(callee)
                waiting.append((callee, whole))
    return found


def _is_opaque(function: Any, ops: Mapping[Any, _Op]) -> bool:
    """Say whether a function is a library's: one expression of the user asks for all of it."""
    name = _function_of(function)
    extents = {
        ops[each].where.extent for each in children(function) if each.name not in RETURNS
    } - {None}
    return name != "main" and len(extents) < 2


def _yielded(
    one: _Op, ops: Mapping[Any, _Op], opaque: set[str]
) -> Iterator[tuple[tuple[Extent, Shape, str], Point]]:
    """Yield the value of an operation, if it leaves its expression."""
    op, extent = one.op, one.where.extent
    if extent is None or len(op.results) != 1 or op.name in _PASSED_OVER or one.where.is_gradient:
        return
    kind = _kind(op.results[0])
    if kind is None or _is_inside(one, ops, opaque):
        return
    users = [use.owner.operation for use in op.results[0].uses]
    if any(user.name in RETURNS or ops[user].where.extent != extent for user in users):
        yield (extent, *kind), Point(one.number)


def _is_used(one: _Op, ops: Mapping[Any, _Op], opaque: set[str]) -> bool:
    """Say whether the forward pass computes with a value: others are kept for the backward pass."""
    users = (ops[use.owner.operation] for use in one.op.results[0].uses)
    return any(
        user.where.extent != one.where.extent
        and user.op.name not in RETURNS
        and not user.where.is_gradient
        and not _is_inside(user, ops, opaque)
        for user in users
    )


def _indices(
    ops: Mapping[Any, _Op], calls: Mapping[str, Sequence[Any]], opaque: set[str]
) -> Iterator[Site]:
    """Yield the integers that expressions look up by, where those are arguments of the step.

    Expressions that read integers of several shapes are left out.
    """
    gathers = [one for one in ops.values() if one.op.name == "stablehlo.gather"]
    around = {_function_of(one.op) for one in gathers} & opaque
    looking = {one.where.extent for one in gathers}
    looking |= {ops[call].where.extent for name in around for call in calls.get(name, ())}
    found: dict[Extent, dict[tuple[Shape, str], list[Point]]] = {}
    vmaps: dict[Extent, int] = {}
    for one in ops.values():
        extent = one.where.extent
        if extent is None or extent not in looking or one.where.is_gradient:
            continue
        if _is_inside(one, ops, opaque):
            continue
        is_from_first = one.op.name in _LOOKUPS and len(one.op.operands) > 1
        for at, value in enumerate(one.op.operands):
            kind = _kind(value) if isinstance(value.owner, ir.Block) else None
            if kind is None or kind[1][0] not in "su" or (is_from_first and not at):
                continue
            point = Point(one.number, at, is_operand=True)
            found.setdefault(extent, {}).setdefault(kind, []).append(point)
            vmaps[extent] = _vmaps([one.where.name])
    for extent, kinds in found.items():
        if len(kinds) == 1:
            (((shape, dtype), points),) = kinds.items()
            yield Site(
                shape, dtype, extent, points=tuple(points), vmaps=vmaps[extent], is_index=True
            )


def _vmaps(names: Iterable[str]) -> int:
    """Return how many `jax.vmap` are around what JAX gives these names."""
    return min(name.count("vmap(") for name in names)


def _gradients(
    one: _Op, ops: Mapping[Any, _Op], calls: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[tuple[Extent, Shape, str], Point]]:
    """Yield what an operation of the backward pass reads that is the gradient of its expression.

    A sum of gradients is of what the expression reads, and not of what it yields.
    """
    extent = one.where.extent
    if extent is None or not one.where.is_gradient or one.where.name.endswith("/add_any"):
        return
    for at, value in enumerate(one.op.operands):
        kind = _kind(value)
        made = _maker(value, ops, calls) if kind else None
        if kind and made and made.where.is_gradient and made.where.extent != extent:
            yield (extent, *kind), Point(one.number, at, is_operand=True)


def _maker(value: Any, ops: Mapping[Any, _Op], calls: Mapping[str, Sequence[Any]]) -> _Op | None:
    """Return what makes a value; of what a body is given, what its loop or its callers give it."""
    seen: set[Any] = set()
    while value not in seen:
        seen.add(value)
        if not isinstance(value.owner, ir.Block):
            return ops.get(value.owner.operation)
        block, at = value.owner, ir.BlockArgument(value).arg_number
        around = block.owner.operation
        if around.name == "stablehlo.while":
            value = block.operations[len(block.operations) - 1].operands[at]
        elif around.name == "func.func":
            callers = calls.get(_function_of(around), ())
            if not callers:
                return None
            value = callers[0].operands[at]
    return None


def _kind(value: Any) -> tuple[Shape, str] | None:
    """Return the shape and dtype of what is worth a layout."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    shape = tuple(value.type.shape)
    if len(shape) < 2 or math.prod(shape) < _LEAST_ELEMENTS:
        return None
    return shape, _dtype(value.type.element_type)


def _dtype(kind: Any) -> str:
    """Return a dtype as steps spell it: `bf16`, `s32`, `pred`."""
    text = str(kind)
    return (
        "pred"
        if text == "i1"
        else re.sub(r"^u?i(?=\d)", lambda m: "u" if "u" in m[0] else "s", text)
    )


def _is_inside(one: _Op, ops: Mapping[Any, _Op], opaque: set[str]) -> bool:
    """Say whether an operation is no expression's value.

    It may be in a library's function, in `shard_map`, where shapes are local, or be what a loop
    takes from its arrays for a turn, or keeps of one.
    """
    owner = one.op.parent
    while owner is not None:
        if owner.name == "sdy.manual_computation":
            return True
        if owner.name == "stablehlo.while" and ops[owner].where.extent == one.where.extent:
            return True
        if owner.name == "func.func":
            return _function_of(owner) in opaque
        owner = owner.parent
    return False


def _function_of(op: Any) -> str:
    """Return the name of the function that an operation is in."""
    while op.name != "func.func":
        op = op.parent
    return str(ir.StringAttr(op.attributes["sym_name"]).value)
