"""What could be constrained in a lowered step: the values that expressions of the code yield.

JAX notes for each operation the extent of the expression that asked for it. A value that is used
outside of its expression is what the expression yields. One expression yields many values: one for
each layer that calls it, one that is computed again for the backward pass, and the gradient, which
a constraint lays out as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from shardspec.cure.lines import Point, Site
from shardspec.cure.patching import Extent
from shardspec.ir.spec import Shape
from shardspec.jax_backend.step.graph import functions_of
from shardspec.programs.op_names import is_library

#: A frame of Python, as MLIR prints it: `"model.py":3:8 to 4:24`, `"model.py":3:8 to :24`.
_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to (\d*):(\d+))?')
_NAME = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"(?!:\d)')
#: What yields nothing that could be laid out otherwise, or has a layout stated already.
_PASSED_OVER = frozenset(
    (
        *("stablehlo.constant", "stablehlo.iota", "stablehlo.while", "stablehlo.case"),
        *("sdy.sharding_constraint", "sdy.mesh", "sdy.reshard", "stablehlo.custom_call"),
    )
)
_RETURNS = frozenset(("func.return", "stablehlo.return", "sdy.return"))
#: Smaller arrays are left where they are.
_LEAST_ELEMENTS = 1 << 18


class Where(NamedTuple):
    """The expression that asked for an operation, and what JAX calls that."""

    name: str
    extent: Extent | None

    @property
    def is_gradient(self) -> bool:
        """Say whether it is of the backward pass, and not computed again there."""
        return "transpose(" in self.name and "rematted_computation" not in self.name


@lru_cache(maxsize=65536)
def where(text: str) -> Where:
    """Return what the location of an operation says."""
    found = _NAME.match(text)
    name = found.group(1) if found else ""
    for file, line, column, end_line, end_column in _FRAME.findall(text):
        if not is_library(file):
            if not end_column:
                return Where(name, None)
            start = int(line), int(column)
            return Where(name, Extent(file, *start, int(end_line or line), int(end_column)))
    return Where(name, None)


class _Op(NamedTuple):
    number: int
    op: Any
    where: Where


def numbered(module: Any) -> Iterator[tuple[int, Any]]:
    """Yield all operations of the functions of a module, numbered in order."""
    functions = (each for name in functions_of(module).values() for each in _inside(name))
    yield from enumerate(functions)


def _inside(op: Any) -> Iterator[Any]:
    """Yield an operation, and all inside of it."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for each in block.operations:
                yield from _inside(each.operation)


def sites_of(module: Any) -> tuple[Site, ...]:
    """Return the values that could be constrained, without layouts, in the order of the program.

    Args:
      module: as JAX lowered it; nothing of it is changed.
    """
    ops = _located(module)
    opaque = {name for name, each in functions_of(module).items() if _is_opaque(each, ops)}
    found: dict[tuple[Extent, Shape, str], list[Point]] = {}
    for one in ops.values():
        for key, point in _yielded(one, ops, opaque):
            found.setdefault(key, []).append(point)
    for one in ops.values():
        for key, point in _gradients(one, ops):
            if key in found and point not in found[key]:
                found[key].append(point)
    ranks: dict[Extent, set[int]] = {}
    for extent, shape, _ in found:
        ranks.setdefault(extent, set()).add(len(shape))
    return tuple(
        Site(shape, dtype, extent, points=tuple(points))
        for (extent, shape, dtype), points in found.items()
        if len(ranks[extent]) == 1  # one line of names has to do for all of them
    )


def _located(module: Any) -> dict[Any, _Op]:
    """Return all operations with their expressions; names begin with those of the calls."""
    numbers = {op: number for number, op in numbered(module)}
    found: dict[Any, _Op] = {}
    functions = functions_of(module)
    waiting, seen = [("main", "")], {"main"}
    while waiting:
        name, prefix = waiting.pop(0)
        for op in _inside(functions[name]):
            own = where(str(op.location))
            whole = f"{prefix}/{own.name}" if prefix else own.name
            found[op] = _Op(numbers[op], op, Where(whole, own.extent))
            callee = op.attributes["callee"].value if op.name == "func.call" else name
            if callee not in seen:
                seen.add(callee)
                waiting.append((callee, whole))
    return found


def _is_opaque(function: Any, ops: Mapping[Any, _Op]) -> bool:
    """Say whether a function is a library's: one expression of the user asks for all of it."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    extents = {
        ops[each.operation].where.extent
        for block in function.regions[0].blocks
        for each in block.operations
        if each.operation.name not in _RETURNS
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
    if kind is None or "vmap(" in one.where.name or _is_inside(op, opaque):
        return
    users = [use.owner.operation for use in op.results[0].uses]
    if any(user.name in _RETURNS or ops[user].where.extent != extent for user in users):
        yield (extent, *kind), Point(one.number)


def _gradients(
    one: _Op, ops: Mapping[Any, _Op]
) -> Iterator[tuple[tuple[Extent, Shape, str], Point]]:
    """Yield what an operation of the backward pass reads that is the gradient of its expression."""
    extent = one.where.extent
    if extent is None or not one.where.is_gradient:
        return
    for at, value in enumerate(one.op.operands):
        kind = _kind(value)
        owner = getattr(value.owner, "operation", None)
        made = ops.get(owner) if owner is not None else None
        if kind and made and made.where.is_gradient and made.where.extent != extent:
            yield (extent, *kind), Point(one.number, at, is_operand=True)


def _kind(value: Any) -> tuple[Shape, str] | None:
    """Return the shape and dtype of what is worth a layout."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    shape = tuple(value.type.shape)
    count = 1
    for size in shape:
        count *= size
    if len(shape) < 2 or count < _LEAST_ELEMENTS:
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


def _is_inside(op: Any, opaque: set[str]) -> bool:
    """Say whether an operation is in a library's function, or in `shard_map`: shapes are local."""
    owner = op.parent
    while owner is not None:
        if owner.name == "sdy.manual_computation":
            return True
        if owner.name == "func.func":
            return ir.StringAttr(owner.attributes["sym_name"]).value in opaque
        owner = owner.parent
    return False
