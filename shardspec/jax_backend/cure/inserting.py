"""Lines put into a lowered step: a module with more constraints, and arguments that lie otherwise.

A constraint in the code becomes one operation of the module for each value that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.interpreters import mlir
from jaxlib.mlir import ir

from shardspec.cure.lines import Line, Point, Split
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import StepArgument
from shardspec.jax_backend.cure.sites import numbered
from shardspec.jax_backend.step.graph import functions_of
from shardspec.jax_backend.step.passes import CALLS, bytecode_of, inlined, operations
from shardspec.jax_backend.xla.simplified import simplify

_CONSTRAINT = "sdy.sharding_constraint"
_NUMBER, _MARK, _AT = "shardspec.number", "shardspec.mark", "shardspec.at"
_RESHAPE = "stablehlo.reshape"


def prepared(module: bytes) -> bytes:
    """Return a module without calls, in which operations keep the numbers that points have.

    Operations of a function have their numbers once for each call of it. Reshapes that change
    nothing mark the operands and the result of a call.
    """
    with mlir.make_ir_context():
        found = ir.Module.parse(module)
        for number, op in list(numbered(found)):
            if op.name not in CALLS:
                op.attributes[_NUMBER] = _integer(number)
                continue
            for at, value in enumerate(op.operands):
                op.operands[at] = _marked(value, number, ir.InsertionPoint(op), at)
            if len(op.results) == 1:
                users = _users(op.results[0])
                made = _marked(op.results[0], number, ir.InsertionPoint.after(op))
                _give(users, made)
        inlined(found)
        return bytecode_of(found)


def without_idle_marks(module: Any) -> None:
    """Take away the marks of operands that nothing reads, in a prepared module, in place."""
    for op in operations(module.operation):
        if _AT in op.attributes and not any(op.results[0].uses):
            op.erase()


def _integer(number: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _marked(value: Any, number: int, where: Any, at: int | None = None) -> Any:
    """Return an operand of a call, or its result, behind a reshape with the call's number."""
    attributes = {_MARK: _integer(number), **({} if at is None else {_AT: _integer(at)})}
    with where, ir.Location.unknown():
        (made,) = ir.Operation.create(
            _RESHAPE, results=[value.type], operands=[value], attributes=attributes
        ).results
    return made


def inserted(module: bytes, lines: Iterable[Line], *, for_tpu: bool = False) -> bytes:
    """Return the bytecode of a prepared module with lines in it, simplified.

    Args:
      for_tpu: whether it is for a TPU; see `simplified`.

    Raises:
      ValueError, ir.MLIRError: a layout does not fit its value.
    """
    with mlir.make_ir_context():
        found = ir.Module.parse(module)
        ops: dict[tuple[int, int | None], list[Any]] = {}
        marks: list[tuple[int, Any]] = []
        for op in operations(found.operation):
            name = _MARK if _MARK in op.attributes else _NUMBER
            if name in op.attributes:
                number = op.attributes[name].value
                at = op.attributes[_AT].value if _AT in op.attributes else None
                ops.setdefault((number, at), []).append(op)
                del op.attributes[name]
                marks += [(number, op)] if name == _MARK else []
        calls = {number for number, _ in marks}
        for line in lines:
            if line.site.at is None:
                _place(found, line)
                continue
            gradients: dict[Any, Any] = {}
            for point in line.site.points:
                is_marked = point.is_operand and point.op in calls
                where = point._replace(at=0) if is_marked else point
                for op in ops.get((point.op, point.at if is_marked else None), []):
                    _constrain(op, where, [*map(line.site.split_of, line.layouts)], gradients)
        for _, op in marks:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        simplify(found, for_tpu=for_tpu)
        return bytecode_of(found)


def remaining(
    lines: Iterable[Line], numbers: Mapping[int, int], arguments: Sequence[int]
) -> tuple[Line, ...]:
    """Return lines of a step for one from which operations were cut out; see `Shortened`."""
    given = {old: number for number, old in enumerate(arguments)}

    def left(line: Line) -> Line:
        new = given if line.site.at is None else numbers
        points = (each._replace(op=new[each.op]) for each in line.site.points if each.op in new)
        return replace(line, site=replace(line.site, points=tuple(points)))

    return tuple(each for each in map(left, lines) if each.site.points)


def _constrain(op: Any, point: Point, splits: list[Split], gradients: dict[Any, Any]) -> None:
    """Constrain a value; a gradient once for all that read it in one block."""
    value = op.operands[point.at] if point.is_operand else op.results[point.at]
    if point.is_operand:
        if (value, op.block) in gradients:
            op.operands[point.at] = gradients[value, op.block]
            return
        splits = splits[::-1]  # the gradient goes the other way
        where = ir.InsertionPoint(op)
    else:
        where = ir.InsertionPoint.after(op)
    users = _users(value)
    with where, op.location:
        made = value
        for split in splits:
            attributes = {"sharding": ir.Attribute.parse(_text(split))}
            (made,) = ir.Operation.create(
                _CONSTRAINT, results=[value.type], operands=[made], attributes=attributes
            ).results
    if point.is_operand:
        op.operands[point.at] = gradients[value, op.block] = made
        return
    _give(users, made)


def _users(value: Any) -> list[tuple[Any, int]]:
    """Return what reads a value now, and at which operand."""
    return [(use.owner, use.operand_number) for use in value.uses]


def _give(users: Iterable[tuple[Any, int]], value: Any) -> None:
    """Have operations read another value."""
    for user, at in users:
        user.operands[at] = value


def _place(module: Any, line: Line) -> None:
    """Place arguments: the points of their site are their numbers."""
    main = functions_of(module)["main"]
    attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(main.attributes["arg_attrs"])]
    for point in line.site.points:
        found: Any = attributes[point.op]
        own = {each.name: each.attr for each in found}
        own["sdy.sharding"] = ir.Attribute.parse(_text(line.layouts[0].split))
        attributes[point.op] = ir.DictAttr.get(own)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _text(split: Split) -> str:
    dims = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in split)
    return f"#sdy.sharding<@mesh, [{dims}]>"


def arguments_with(
    arguments: tuple[StepArgument, ...], lines: Iterable[Line], sizes: Mapping[str, int]
) -> tuple[StepArgument, ...]:
    """Return the arguments of a step as lines place them."""
    found = list(arguments)
    for line in lines:
        for point in line.site.points if line.site.at is None else ():
            array, split = found[point.op].array, line.layouts[0].split
            shard = list(array.shape)
            for dim, axes in enumerate(split):
                for axis in axes:
                    shard[dim] = -(-shard[dim] // sizes[axis])
            laid = replace(array, split=PartitionSpec(split), shard_shape=tuple(shard))
            found[point.op] = replace(found[point.op], array=laid)
    return tuple(found)
