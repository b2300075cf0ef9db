"""What a mistake costs: the bytes that a device holds of arrays that it leaves whole.

Said of the target where it is most, with what one more mesh axis would make of it. A device of a
mesh of one has to hold everything, so nothing is said of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from shardspec.diagnostics import Diagnostic
from shardspec.ir.grouping import described
from shardspec.ir.param import array_bytes
from shardspec.ir.plan import Dims, DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.context import Context
from shardspec.resolve.zero import split_further


class Damage(NamedTuple):
    """What the devices of one target hold of some arrays.

    Attributes:
      bytes: on one device.
      held: of all arrays, on one device.
      is_whole: whether every device holds all of each.
      axis: the mesh axis that would split them best, and has no part in them; None without one.
      then: bytes on one device if it did.
    """

    plan: ShardingPlan
    bytes: int
    held: int
    is_whole: bool
    axis: str | None
    then: int

    def __str__(self) -> str:
        """Return "whole: 250 MiB on every device, 40 % of all it holds; `tensor` ..."."""
        where = f" of target `{self.plan.target.name}`" if len(self.plan.spec.targets) > 1 else ""
        share = f"{percent(self.bytes, self.held)} of all it holds"
        size = f"{binary_bytes(self.bytes)} on every device{where}, {share}"
        after = (
            f"; split over `{self.axis}`, it would be {binary_bytes(self.then)}"
            if self.axis
            else ""
        )
        return f"{'whole: ' if self.is_whole else ''}{size}{after}"


def damage(context: Context, paths: Iterable[str]) -> Damage | None:
    """Return what arrays cost on the target where that is most; None without devices to share."""
    paths = tuple(dict.fromkeys(paths))
    found = (
        _on_target(context, plan, paths) for plan in context.plans if plan.mesh.device_count > 1
    )
    return max((each for each in found if each.bytes), key=lambda each: each.bytes, default=None)


def told(
    finding: Diagnostic, context: Context, paths: Iterable[str], before: str = ""
) -> Diagnostic:
    """Return a finding with a note on its arrays: how many, the first of them, what they cost.

    Args:
      before: what to say first in the note.
    """
    asked = paths if isinstance(paths, tuple) else tuple(paths)
    if not asked:
        return finding
    known = context.worked_out.get((told, asked))
    if known is None:
        known = context.worked_out[told, asked] = _concern(context, asked)
    arrays, words, size = cast(_Concern, known)
    notes = (*finding.notes, f"{before}{words}")
    return replace(finding, notes=notes, arrays=arrays, bytes=size or finding.bytes)


class _Concern(NamedTuple):
    """Some arrays, in words with what they cost; made once for all findings about them."""

    arrays: tuple[str, ...]
    words: str
    bytes: int | None


def _concern(context: Context, paths: Iterable[str]) -> _Concern:
    arrays = tuple(dict.fromkeys(paths))
    cost = damage(context, arrays)
    words = described(arrays)
    return (
        _Concern(arrays, words, None)
        if cost is None
        else _Concern(arrays, f"{words}; {cost}", cost.bytes)
    )


def _on_target(context: Context, plan: ShardingPlan, paths: Sequence[str]) -> Damage:
    counts: Counter[tuple[Dims, str]] = Counter()
    firsts: dict[tuple[Dims, str], ParamSharding] = {}
    for path in paths:
        sharding = plan[path]
        key = (sharding.dims, sharding.param.dtype)
        counts[key] += 1
        firsts.setdefault(key, sharding)
    groups = [(firsts[key].dims, key[1], count) for key, count in counts.items()]
    size = sum(_bytes(*group) for group in groups)
    options = ((_bytes_over(plan, axis.name, groups), axis.name) for axis in plan.mesh.axes)
    then, axis = min(options, default=(size, ""))
    whole = all(sharding.is_replicated for sharding in firsts.values())
    return Damage(
        plan, size, context.held[plan.target.name], whole, axis if then < size else None, then
    )


def _bytes_over(plan: ShardingPlan, axis: str, groups: Iterable[tuple[Dims, str, int]]) -> int:
    """Return what a device would hold of the arrays, each split over one more mesh axis."""
    return sum(
        _bytes(split_further(dims, plan.mesh, (axis,)).dims, dtype, count)
        for dims, dtype, count in groups
    )


def _bytes(dims: Iterable[DimSharding], dtype: str, count: int) -> int:
    return array_bytes(tuple(dim.shard_size or 0 for dim in dims), dtype) * count
