"""What a traced step knows of the collectives of its program: who asked for each, and what moves.

XLA's partitioner and compilers say what is sent, and at which line. Shardy's propagation says why:
which argument or constraint has the mesh axis, and which reshard a collective belongs to. A
collective of the program is like one of the propagation at the same line, over the same axes.

How devices share the products of a step, by the program that XLA's partitioner made.

Where Shardy has a mesh axis split what a product sums over, XLA may gather the operands instead,
and each device of the axis then computes the product whole. A product of the program is that of the
propagation at the same line if its arrays are the same but for mesh axes that no longer split them.
Products that XLA writes otherwise are left as the propagation has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics.words import by_key, grouped
from shardspec.ir import step as steps
from shardspec.ir.spec import Mesh, PartitionSpec

#: Returns why a mesh axis is on what is computed at a line; None where nothing there has it.
CauseAt = Callable[[steps.Place, str], steps.Cause | None]
#: Returns why a mesh axis is on the array that is carried; None where that is not known.
CauseOf = Callable[[steps.Carried, str], steps.Cause | None]


def _nothing(of: object, axis: str) -> None:
    """Know no cause."""


class Known:
    """The collectives of a propagated step, by line, by size and by array."""

    def __init__(
        self, step: steps.Step, of_array: CauseOf = _nothing, at_line: CauseAt = _nothing
    ) -> None:
        """Sort the collectives.

        Args:
          of_array: asked where no collective at the line has the axis.
          at_line: asked last.
        """
        self.step, self.of_array, self.at_line = step, of_array, at_line
        pairs = [(axis, each) for each in step.collectives for axis in each.mesh_axes]
        self._at = by_key(((axis, each.place.own), each) for axis, each in pairs)
        self._of_size = by_key(
            ((axis, each.place.file, each.wire_bytes), each) for axis, each in pairs
        )
        forced = [pair for pair in pairs if pair[1].forced_by is not None and pair[1].reshard]
        self._made = by_key(((axis, e.reshard.made_at.own), e) for axis, e in forced if e.reshard)
        named = [pair for pair in pairs if pair[1].carries.name]
        self._of_array = by_key(((axis, each.kind, each.carries), each) for axis, each in named)
        moves = (each for _, each in named if not each.kind.traits.sums)
        self._moves = by_key(((each.place.own, each.carries), each) for each in moves)
        #: When the propagated step starts each explained collective; None where it does not.
        self.ticks: list[int | None] = []
        self._taken: Counter[int] = Counter()
        self._best: dict[Hashable, list[steps.Collective]] = {}

    def explained(self, sent: steps.Collective) -> steps.Collective:
        """Return a collective with a cause for each mesh axis, and the reshard it belongs to."""
        like = self._like(sent, sent.mesh_axes[0])
        self.ticks.append(None if like is None else like.at)
        if like is not None:
            self._taken[id(like)] += 1
        if like is not None and sent.carries.kind in ("einsum", "unknown"):
            sent = replace(sent, carries=like.carries)
        causes = [self._cause(sent, axis) for axis in sent.mesh_axes]
        known = next((each for each in causes if not _is_unknown(each)), None)
        because = tuple(
            replace(known, mesh_axis=axis) if known and _is_unknown(each) else each
            for axis, each in zip(sent.mesh_axes, causes, strict=True)
        )
        sent = replace(sent, because=because)
        if like is not None and sent.kind is like.kind is steps.CollectiveKind.ALL_REDUCE:
            total, axes = like.total_bytes, like.total_axes
            sent = replace(sent, total_bytes=total, total_axes=axes, is_kept=like.is_kept)
        if like is None or not _are_same(like, sent):
            return sent
        return replace(
            sent,
            array=like.array if like.carries == sent.carries else sent.array,
            forced_by=like.forced_by,
            is_written=like.is_written,
            reshard=like.reshard,
        )

    def with_forced(self, sent: Sequence[steps.Collective]) -> list[steps.Collective]:
        """Return collectives with the constraints that XLA answers by gathering operands.

        Where a constraint wants an array whole that a product makes in parts, XLA may gather what
        the product reads instead. Those gathers then belong to the constraint.
        """
        made = {(each.place, each.phase, each.axes): each for each in self._unmet()}
        found = []
        for each in sent:
            forced = made.get((each.place, each.phase, each.axes))
            is_free = each.reshard is None and not each.kind.traits.sums
            if forced is not None and is_free:
                each = replace(each, forced_by=forced.forced_by, reshard=forced.reshard)
            found.append(each)
        return found

    def _unmet(self) -> Iterator[steps.Collective]:
        """Yield what constraints ask for and no collective does, at the product before it."""
        ops = [op for op in self.step.ops if op.kind == "einsum"]
        for each in self.step.collectives:
            if each.forced_by is not None and each.reshard and not self._taken[id(each)]:
                before = (op for op in ops if op.at < each.reshard.at)
                last = max(before, key=lambda op: op.at, default=None)
                if last is not None and last.result.split == each.reshard.before:
                    yield replace(each, place=last.place, phase=last.phase)

    def has(self, sent: steps.Collective) -> bool:
        """Say whether the propagated step does what a collective does."""
        return self._like(sent, sent.mesh_axes[0]) is not None

    def _cause(self, sent: steps.Collective, axis: str) -> steps.Cause:
        like = self._like(sent, axis)
        known = () if like is None else like.because
        cause = next((each for each in known if each.mesh_axis == axis), None)
        if _is_unknown(cause):
            cause = self.of_array(sent.carries, axis) or cause
        if _is_unknown(cause):
            cause = self.at_line(sent.place, axis) or cause
        if _is_unknown(cause):
            cause = self._moved(sent, axis) or cause
        return cause or steps.Cause(axis, steps.CauseKind.UNKNOWN)

    def _moved(self, sent: steps.Collective, axis: str) -> steps.Cause | None:
        """Return why an array is gathered that does not lie along an axis.

        XLA may move its shards first, to devices that have copies, and gather them there.
        """
        moves = () if sent.kind.traits.sums else self._moves.get((sent.place.own, sent.carries), ())
        causes = (cause for each in moves for cause in each.because if not _is_unknown(cause))
        return next((replace(cause, mesh_axis=axis) for cause in causes), None)

    def _like(self, sent: steps.Collective, axis: str) -> steps.Collective | None:
        """Return the collective at the same line that is most like another.

        XLA says of what a constraint moves the line that made it. Where none is at the line, as
        when XLA moves one out of a loop, it is one that does the same to the same array. Of several
        alike, as with the gradients of one line, each is taken in turn.
        """
        # sends of layers that are alike have the same answers, which are found once
        place = sent.place
        at = axis, place.own, place.shown, place.file, sent.phase
        key = (*at, sent.wire_bytes, sent.kind, sent.carries, sent.axes, sent.array.shape)
        if key not in self._best:
            found = (
                self._at.get((axis, sent.place.own))
                or (() if sent.kind.traits.sums else self._made.get((axis, sent.place.own)))
                or self._of_size.get((axis, sent.place.file, sent.wire_bytes))
                or self._of_array.get((axis, sent.kind, sent.carries))
                or ()
            )
            alike = grouped(found, lambda each: _likeness(each, sent))
            self._best[key] = alike[max(alike)] if alike else []
        return min(self._best[key], key=lambda each: self._taken[id(each)], default=None)


def _is_unknown(cause: steps.Cause | None) -> bool:
    return cause is None or cause.kind is steps.CauseKind.UNKNOWN


def _are_same(one: steps.Collective, other: steps.Collective) -> bool:
    """Say whether two collectives do the same to an array, over the same mesh axes."""
    return one.axes == other.axes and one.kind.traits.sums == other.kind.traits.sums


def _likeness(one: steps.Collective, other: steps.Collective) -> tuple[bool, ...]:
    """Return in what a propagated collective is like one of the program, the most telling first."""
    shards = sorted(one.array.shard_shape), sorted(other.array.shape)
    return (
        _are_same(one, other),
        one.place.shown == other.place.shown,
        bool(one.carries.name) and one.carries == other.carries,
        one.kind is other.kind,
        one.phase == other.phase,
        shards[0] == shards[1],
        one.array.shard_shape == other.array.shape,
    )


_Key = tuple[steps.Place, steps.Phase, str, float]


def as_shared(
    propagated: Sequence[steps.StepOp], partitioned: Iterable[steps.StepOp], mesh: Mesh
) -> tuple[steps.StepOp, ...]:
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


def with_flops(
    ops: Sequence[steps.StepOp], partitioned: Sequence[steps.StepOp]
) -> tuple[steps.StepOp, ...]:
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


def _line(op: steps.StepOp) -> Hashable:
    return op.place.shown, op.phase


def _by_line(ops: Iterable[steps.StepOp]) -> Counter[Hashable]:
    """Return FLOPs by line and phase."""
    found: Counter[Hashable] = Counter()
    for op in ops:
        found[_line(op)] += round(op.flops * op.count)
    return found


def as_read(
    sent: steps.Collective, propagated: Sequence[steps.StepOp], shared: Sequence[steps.StepOp]
) -> steps.Collective:
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


def _read_whole(reshard: steps.Reshard, op: steps.StepOp, other: steps.StepOp) -> set[str]:
    """Return the mesh axes that split an array as it lay before, and no longer where it is read."""
    found: set[str] = set()
    for array, whole in zip(op.operands, other.operands, strict=True):
        own = reshard.array
        is_same = own is not None and (array.dtype, array.shape) == (own.dtype, own.shape)
        if is_same and array.split == reshard.before and whole.split == reshard.after:
            found |= {*array.split.mesh_axes} - {*whole.split.mesh_axes}
    return found


def _key(op: steps.StepOp) -> _Key:
    return op.place, op.phase, op.einsum, op.count


def _taken(
    op: steps.StepOp, left: dict[_Key, list[steps.StepOp]], mesh: Mesh, *, is_same: bool
) -> steps.StepOp | None:
    """Return an operation as one of its line in the program does it, which is not used again."""
    others = left.get(_key(op), []) if op.einsum else []
    for at, other in enumerate(others):
        shared = _as(op, other, mesh)
        if shared is not None and (shared.flops == op.flops or not is_same):
            del others[at]
            return op if is_same else shared
    return None


def _as(op: steps.StepOp, other: steps.StepOp, mesh: Mesh) -> steps.StepOp | None:
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


def _lying(array: steps.StepArray, shape: Sequence[int], mesh: Mesh) -> steps.StepArray | None:
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
