"""Live arrays from the layout of one resolver to that of another, and what that moves.

A device keeps the part of its new shard that it held before; the rest comes from another one. Which
devices are the same the meshes say, so the figures hold for the devices of this process's run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shardspec.analysis.layout_diff import Restore, TargetDiff, diff_layouts, reasons_of, restore
from shardspec.analysis.layouts import layout_of
from shardspec.ir.plan import ShardingPlan


@dataclass(frozen=True, slots=True)
class Moved:
    """What `Resolver.reshard` moved; `print` shows it as `shardspec diff --between` does.

    Attributes:
      diff: how each array lay, and how it lies now.
      restored: the arrays of which some device needed what it did not hold, and the bytes.
    """

    diff: TargetDiff = field(repr=False)
    restored: Restore = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the arrays of which something moved."""
        return self.restored.arrays

    @property
    def total_bytes(self) -> int:
        """Return the bytes that came from another device, of all devices together."""
        return self.restored.total_bytes

    @property
    def most_bytes(self) -> int:
        """Return the bytes that came to the device that received most."""
        return self.restored.most_bytes

    def __str__(self) -> str:
        """Return what moved, by the rules that say so; one line where nothing did."""
        from shardspec.lock.diff_forms import diff_lines, restore_text

        same = f"{restore_text(self.diff)}, of other devices" if self.paths else "nothing moved"
        return "\n".join(diff_lines((self.diff,), "reshard")) or same

    def __repr__(self) -> str:
        """Return `Moved(8 arrays, 1073741824 bytes)`."""
        return f"Moved({len(self.paths)} arrays, {self.total_bytes} bytes)"


def moved_between(before: ShardingPlan, here: Any, after: ShardingPlan, there: Any) -> Moved:
    """Return what moves from one plan to another of the same arrays.

    Args:
      here: the mesh of `before`, over devices; `there` is that of `after`.
    """
    old, new = (layout_of(plan.spec, [plan]) for plan in (before, after))
    (diff,) = diff_layouts(old, new, reasons_of([before]), reasons_of([after]))
    places = {device: at for at, device in enumerate(here.devices.flat)}
    held_by = tuple(places.get(device) for device in there.devices.flat)
    diff = replace(diff, held_by=held_by)
    return Moved(diff, restore(old.targets[0], new.targets[0], held_by))
