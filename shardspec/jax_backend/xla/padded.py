"""What libtpu does to arrays that are put together along a dimension that devices split.

Its pass `tpu-spmd-concat-rewriter` runs between propagation and partitioning. A concatenation whose
operands can be padded for less than they can be resharded becomes the largest of padded arrays, and
devices exchange only what crosses their edges. That is so where all operands but one are no longer
than there are parts, as the first element of a scan is, or where no other dimension can be split as
often. Everything else is resharded, by an all-to-all, or, where it rolls one array, permuted.

Source: dumps of the pass of libtpu 0.0.52, for 120 concatenations of v5e 2x4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from shardspec.jax_backend.step import passes
from shardspec.jax_backend.step.graph import split_of

_CONCATENATE, _SHARDING, _MARK = "stablehlo.concatenate", "sdy.sharding", "shardspec.number"


def pad_concatenated(module: Any) -> None:
    """Replace the concatenations that libtpu pads, in a module without calls, in place."""
    devices = math.prod(_sizes(module).values())
    found = [
        each
        for each in passes.operations(module.operation)
        if each.name == _CONCATENATE and _could_be_padded(each, devices)
    ]
    if not found:
        return
    for at, each in enumerate(found):
        each.attributes[_MARK] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), at)
    shardings = _propagated(module)
    for at, each in enumerate(found):
        del each.attributes[_MARK]
        sharding, ways = shardings.get(at, (None, ()))
        if sharding is not None and _is_padded(each, ways):
            _pad(each, sharding)


def _propagated(module: Any) -> dict[int, tuple[Any, list[int]]]:
    """Return the sharding of each marked operation, and into how many parts it splits each dim."""
    copy = ir.Module.parse(passes.bytecode_of(module))
    for name in passes.propagated(copy):
        if name == passes.NAMED_AFTER:
            break
    sizes = _sizes(copy)
    found = {}
    for each in passes.operations(copy.operation):
        if _MARK in each.attributes and _SHARDING in each.attributes:
            sharding = each.attributes[_SHARDING]
            (value,) = sdy.TensorShardingPerValueAttr(sharding).shardings
            ways = [math.prod(axis.size for axis in dim) for dim in split_of(value, sizes)]
            found[int(each.attributes[_MARK])] = sharding, ways
    return found


def _sizes(module: Any) -> dict[str, int]:
    """Return the sizes of the axes of all meshes of a module."""
    meshes = (each.attributes["mesh"] for each in module.body.operations if each.name == "sdy.mesh")
    axes = (sdy.MeshAxisAttr(axis) for mesh in meshes for axis in sdy.MeshAttr(mesh).axes)
    return {axis.name: axis.size for axis in axes}


def _could_be_padded(concatenate: Any, devices: int) -> bool:
    """Say whether operands are padded for some sharding; the slices of a roll never are.

    Mesh axes that split two dimensions divide the devices together. Another dimension that these
    divide can thus always be split as often.
    """
    if len(set(map(_cut_from, concatenate.operands))) == 1:
        return False
    dim = int(concatenate.attributes["dimension"])
    _, shorter, *_ = sorted((each.type.shape[dim] for each in concatenate.operands), reverse=True)
    others = (size for at, size in enumerate(concatenate.results[0].type.shape) if at != dim)
    return shorter <= devices or all(size % devices for size in others)


def _is_padded(concatenate: Any, ways: Sequence[int]) -> bool:
    """Say whether operands are padded rather than resharded."""
    dim = int(concatenate.attributes["dimension"])
    parts = ways[dim]
    lengths = sorted(each.type.shape[dim] for each in concatenate.operands)
    if parts == 1:
        return False
    shape = concatenate.results[0].type.shape
    own = (size // count for size, count in zip(shape, ways, strict=True))
    can_move = any(at != dim and size % parts == 0 for at, size in enumerate(own))
    return lengths[-2] <= parts or not can_move


def _cut_from(value: Any) -> Any:
    """Return the array that a value is a slice of, or itself."""
    is_slice = passes.made_by(value) == "stablehlo.slice"
    return value.owner.operands[0] if is_slice else value


def _pad(concatenate: Any, sharding: Any) -> None:
    """Put the largest of padded operands in place of a concatenation, sharded as it is."""
    result, dim = concatenate.results[0], int(concatenate.attributes["dimension"])
    kind = result.type
    with ir.InsertionPoint(concatenate), concatenate.location:
        least = stablehlo.constant(_least(kind.element_type))
        made: Any = None
        start = 0
        for each in concatenate.operands:
            low, high = ([0] * len(kind.shape) for _ in range(2))
            low[dim] = start
            start += each.type.shape[dim]
            high[dim] = kind.shape[dim] - start
            padded = stablehlo.pad(each, least, low, high, [0] * len(low))
            made = padded if made is None else stablehlo.maximum(made, padded)
            for op in (padded.owner, made.owner):
                op.attributes[_SHARDING] = sharding
    result.replace_all_uses_with(made)
    concatenate.erase()


def _least(kind: Any) -> Any:
    """Return a scalar that is less than all others of its type."""
    least: ir.Attribute
    if isinstance(kind, ir.IntegerType):
        is_signed = not kind.is_unsigned and kind.width > 1
        least = ir.IntegerAttr.get(kind, -(2 ** (kind.width - 1)) if is_signed else 0)
    else:
        least = ir.FloatAttr.get(kind, -math.inf)
    return ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], kind), least)
