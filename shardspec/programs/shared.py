"""How devices share the products of a step, by the program that XLA's partitioner made.

Where Shardy has a mesh axis split what a product sums over, XLA may gather the operands instead,
and each device of the axis then computes the product whole. A product of the program is that of the
propagation at the same line if its arrays are the same but for mesh axes that no longer split them.
Products that XLA writes otherwise are left as the propagation has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics.words import by_key
from shardspec.ir.spec import Mesh, PartitionSpec
from shardspec.ir.step import Collective, Phase, Place, Reshard, StepArray, StepOp

_Key = tuple[Place, Phase, str, float]


def as_shared(
    propagated: Sequence[StepOp], partitioned: Iterable[StepOp], mesh: Mesh
) -> tuple[StepOp, ...]:
    """Return the operations of a propagated step, shared as those of its partitioned program.

    Args:
      partitioned: with the shapes of one device.
    """
    left = by_key((_key(op), op) for op in partitioned if op.einsum)
    found = [_taken(op, left, mesh, is_same=True) for op in propagated]
    return tuple(
        _taken(op, left, mesh, is_same=False) or op if one is None else one
        for op, one in zip(propagated, found, strict=True)
    )


def with_flops(ops: Sequence[StepOp], partitioned: Sequence[StepOp]) -> tuple[StepOp, ...]:
    """Return operations with the FLOPs that the partitioned program has at their line.

    Products that XLA writes otherwise are still computed there.
    """
    own, flops = _by_line(ops), _by_line(partitioned)
    lines = {line: flops[line] / own[line] for line in own if own[line] > 0 < flops[line]}
    ratios = (lines.get(_line(op), 1.0) if op.place.is_known else 1.0 for op in ops)
    return tuple(
        op
        if abs(ratio - 1) < _EQUAL
        else replace(op, flops=round(op.flops * ratio), useful=op.useful / max(1.0, ratio))
        for op, ratio in zip(ops, ratios, strict=True)
    )


#: FLOPs that differ by less than this share are the same.
_EQUAL = 0.01


def _line(op: StepOp) -> tuple[str, int, Phase]:
    return op.place.file, op.place.line, op.phase


def _by_line(ops: Iterable[StepOp]) -> Counter[tuple[str, int, Phase]]:
    """Return FLOPs by line and phase."""
    found: Counter[tuple[str, int, Phase]] = Counter()
    for op in ops:
        found[_line(op)] += round(op.flops * op.count)
    return found


def as_read(sent: Collective, propagated: Sequence[StepOp], shared: Sequence[StepOp]) -> Collective:
    """Return a collective whose array is read by the products that devices compute whole.

    They read whole what the propagation splits once more for them. Who shares the work of all that
    reads it is not known then.

    Args:
      shared: the same operations, as the program shares them.
    """
    reshard = sent.reshard
    if reshard is None or reshard.array is None:
        return sent
    pairs = zip(propagated, shared, strict=True)
    later = ((op, other) for op, other in pairs if op.at > reshard.at)
    whole = {op.at: axes for op, other in later if (axes := _read_whole(reshard, op, other))}
    if not whole:
        return sent
    again = set(reshard.split_again).difference(*whole.values())
    read = replace(
        reshard,
        readers=tuple(sorted({*reshard.readers, *whole})),
        works=tuple(sorted({*reshard.works, *whole})),
        split_again=tuple(axis for axis in reshard.split_again if axis in again),
        shared_over=None,
    )
    return replace(sent, reshard=read)


def _read_whole(reshard: Reshard, op: StepOp, other: StepOp) -> set[str]:
    """Return the mesh axes that split an array as it lay before, and no longer where it is read."""
    found: set[str] = set()
    for array, whole in zip(op.operands, other.operands, strict=True):
        own = reshard.array
        is_same = own is not None and (array.dtype, array.shape) == (own.dtype, own.shape)
        if is_same and array.split == reshard.before and whole.split == reshard.after:
            found |= {*array.split.mesh_axes} - {*whole.split.mesh_axes}
    return found


def _key(op: StepOp) -> _Key:
    return op.place, op.phase, op.einsum, op.count


def _taken(
    op: StepOp, left: dict[_Key, list[StepOp]], mesh: Mesh, *, is_same: bool
) -> StepOp | None:
    """Return an operation as one of its line in the program does it, which is not used again."""
    others = left.get(_key(op), []) if op.einsum else []
    for at, other in enumerate(others):
        shared = _as(op, other, mesh)
        if shared is not None and (shared.flops == op.flops or not is_same):
            del others[at]
            return op if is_same else shared
    return None


def _as(op: StepOp, other: StepOp, mesh: Mesh) -> StepOp | None:
    """Return an operation with the mesh axes that still split it; None where it is another."""
    own, new = (*op.operands, op.result), (*other.operands, other.result)
    if len(own) != len(new):
        return None
    arrays = [_lying(one, its.shape, mesh) for one, its in zip(own, new, strict=True)]
    known = [each for each in arrays if each is not None]
    if len(known) < len(arrays):
        return None
    before = {axis for each in own for axis in each.split.mesh_axes}
    after = {axis for each in known for axis in each.split.mesh_axes}
    axes = tuple(axis for axis in op.mesh_axes if axis in after or axis not in before)
    operands, result = tuple(known[:-1]), known[-1]
    return replace(op, operands=operands, result=result, flops=other.flops, mesh_axes=axes)


def _lying(array: StepArray, shape: Sequence[int], mesh: Mesh) -> StepArray | None:
    """Return an array of which a device has such a part; None where mesh axes give no such part."""
    if len(shape) != len(array.shape):
        return None
    dims = []
    for axes, part, size in zip(array.split.dims, array.shard_shape, shape, strict=True):
        kept = next((each for each in _fewer(axes) if _ways(each, axes, mesh) * part == size), None)
        if kept is None:
            return None
        dims.append(kept)
    return replace(array, split=PartitionSpec(tuple(dims)), shard_shape=tuple(shape))


def _fewer(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the mesh axes of a dimension, all first, then without one or several in a row."""
    count = len(axes)
    yield axes
    for length in range(1, count + 1):
        for first in range(count - length, -1, -1):
            yield axes[:first] + axes[first + length :]


def _ways(kept: Sequence[str], axes: Sequence[str], mesh: Mesh) -> int:
    """Return how many times as long a shard is without some mesh axes."""
    return mesh.ways(axes) // mesh.ways(kept)
