"""What a traced step knows of the collectives of its program: who asked for each, and what moves.

XLA's partitioner and compilers say what is sent, and at which line. Shardy's propagation says why:
which argument or constraint has the mesh axis, and which reshard a collective belongs to. A
collective of the program is like one of the propagation at the same line, over the same axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics.words import by_key
from shardspec.ir.step import Carried, Cause, CauseKind, Collective, CollectiveKind, Place, Step

#: Returns why a mesh axis is on what is computed at a line; None where nothing there has it.
CauseAt = Callable[[Place, str], Cause | None]
#: Returns why a mesh axis is on the array that is carried; None where that is not known.
CauseOf = Callable[[Carried, str], Cause | None]


def _nothing(of: object, axis: str) -> None:
    """Know no cause."""


class Known:
    """The collectives of a propagated step, by line, by size and by array."""

    def __init__(
        self, step: Step, of_array: CauseOf = _nothing, at_line: CauseAt = _nothing
    ) -> None:
        """Sort the collectives.

        Args:
          of_array: asked where no collective at the line has the axis.
          at_line: asked last.
        """
        self.step, self.of_array, self.at_line = step, of_array, at_line
        pairs = [(axis, each) for each in step.collectives for axis in each.mesh_axes]
        self._at = by_key(((axis, each.place.file, each.place.line), each) for axis, each in pairs)
        self._of_size = by_key(
            ((axis, each.place.file, each.wire_bytes), each) for axis, each in pairs
        )
        named = (pair for pair in pairs if pair[1].carries.name)
        self._of_array = by_key(((axis, each.kind, each.carries), each) for axis, each in named)
        self._taken: Counter[int] = Counter()

    def explained(self, sent: Collective) -> Collective:
        """Return a collective with a cause for each mesh axis, and the reshard it belongs to."""
        like = self._like(sent, sent.mesh_axes[0])
        if like is not None:
            self._taken[id(like)] += 1
        if like is not None and sent.carries.kind in ("einsum", "unknown"):
            sent = replace(sent, carries=like.carries)
        causes = [self._cause(sent, axis) for axis in sent.mesh_axes]
        known = next((each for each in causes if each.kind is not CauseKind.UNKNOWN), None)
        because = tuple(
            replace(known, mesh_axis=axis) if known and each.kind is CauseKind.UNKNOWN else each
            for axis, each in zip(sent.mesh_axes, causes, strict=True)
        )
        sent = replace(sent, because=because)
        if like is not None and sent.kind is like.kind is CollectiveKind.ALL_REDUCE:
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

    def with_forced(self, sent: Sequence[Collective]) -> list[Collective]:
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

    def _unmet(self) -> Iterator[Collective]:
        """Yield what constraints ask for and no collective does, at the product before it."""
        ops = [op for op in self.step.ops if op.kind == "einsum"]
        for each in self.step.collectives:
            if each.forced_by is not None and each.reshard and not self._taken[id(each)]:
                before = (op for op in ops if op.at < each.reshard.at)
                last = max(before, key=lambda op: op.at, default=None)
                if last is not None and last.result.split == each.reshard.before:
                    yield replace(each, place=last.place, phase=last.phase)

    def tick(self, sent: Collective) -> int | None:
        """Return when the propagated step starts what a collective does; None where it does not."""
        like = self._like(sent, sent.mesh_axes[0])
        return None if like is None else like.at

    def _cause(self, sent: Collective, axis: str) -> Cause:
        like = self._like(sent, axis)
        known = () if like is None else like.because
        cause = next((each for each in known if each.mesh_axis == axis), None)
        if cause is None or cause.kind is CauseKind.UNKNOWN:
            cause = self.of_array(sent.carries, axis) or cause
        if cause is None or cause.kind is CauseKind.UNKNOWN:
            cause = self.at_line(sent.place, axis) or cause
        return cause or Cause(axis, CauseKind.UNKNOWN)

    def _like(self, sent: Collective, axis: str) -> Collective | None:
        """Return the collective at the same line that is most like another.

        Where none is at the line, as when XLA moves one out of a loop, it is one that does the same
        to the same array. Of several alike, as with the gradients of one line, each is taken in
        turn.
        """
        file, line = sent.place.file, sent.place.line
        found = (
            self._at.get((axis, file, line))
            or self._of_size.get((axis, file, sent.wire_bytes))
            or self._of_array.get((axis, sent.kind, sent.carries))
        )
        if not found:
            return None
        return max(found, key=lambda each: (*_likeness(each, sent), -self._taken[id(each)]))


def _are_same(one: Collective, other: Collective) -> bool:
    """Say whether two collectives do the same to an array, over the same mesh axes."""
    return one.axes == other.axes and one.kind.traits.sums == other.kind.traits.sums


def _likeness(one: Collective, other: Collective) -> tuple[bool, ...]:
    """Return in what a propagated collective is like one of the program, the most telling first."""
    shards = sorted(one.array.shard_shape), sorted(other.array.shape)
    return (
        _are_same(one, other),
        bool(one.carries.name) and one.carries == other.carries,
        one.kind is other.kind,
        one.phase == other.phase,
        shards[0] == shards[1],
        one.array.shard_shape == other.array.shape,
    )
