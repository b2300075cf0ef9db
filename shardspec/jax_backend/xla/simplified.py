"""A module as XLA simplifies it before it partitions it.

TPU and GPU compilers simplify a program first; the CPU's partitions it as it is. Where that decides
what is sent, the module is simplified here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.interpreters import mlir
from jaxlib.mlir import ir

from shardspec.jax_backend.step.passes import bytecode_of

_SCATTER, _ADD = "stablehlo.scatter", "stablehlo.add"
_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"


def simplified(module: bytes) -> bytes:
    """Return the bytecode of a module in which what is added to a scattered sum is its start.

    The gradient of an array that is read twice, once by an index, is `scatter(0, ...) + a`. XLA's
    algebraic simplifier makes it `scatter(a, ...)`, and the scatter is then sharded as `a` is.
    """
    with mlir.make_ir_context():
        found = ir.Module.parse(module)
        sums = [each for each in _operations(found.operation) if each.name == _SCATTER]
        changed = [each for each in sums if _starts_with_sum(each)]
        return bytecode_of(found) if changed else module


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield each.operation
                yield from _operations(each.operation)


def _starts_with_sum(scatter: Any) -> bool:
    """Let a scatter start with what is added to its result alone; say whether it does now."""
    uses = list(scatter.results[0].uses) if len(scatter.operands) == 3 else []
    add = uses[0].owner.operation if len(uses) == 1 else None
    if add is None or add.name != _ADD or not (_adds(scatter) and _is_zero(scatter.operands[0])):
        return False
    other = add.operands[1 - uses[0].operand_number]
    if other.owner == scatter:
        return False
    scatter.move_before(add)
    scatter.operands[0] = other
    add.results[0].replace_all_uses_with(scatter.results[0])
    add.erase()
    return True


def _adds(scatter: Any) -> bool:
    """Say whether a scatter adds up what goes to one place."""
    names = [each.operation.name for each in scatter.regions[0].blocks[0].operations]
    return names == [_ADD, "stablehlo.return"]


def _is_zero(value: Any) -> bool:
    made = value.owner
    if made is not None and getattr(made, "name", "") == _BROADCAST:
        made = made.operands[0].owner
    if getattr(made, "name", "") != _CONSTANT:
        return False
    stated = made.attributes["value"]
    return stated.is_splat and not stated.get_splat_value().value
