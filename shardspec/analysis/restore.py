"""What restoring a checkpoint of one layout into another would move.

A device keeps the part of its new shard that it held before; the rest comes from elsewhere. That
can be counted where both layouts are over the same devices in one order; elsewhere every shard
that is not whole on both sides may come from elsewhere, and the sum is a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.ir.layout import ArrayLayout, TargetLayout
from shardspec.ir.spec import Mesh, array_bytes

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore moves on one target.

    Attributes:
      arrays: those of which some device needs what it did not hold.
      total_bytes: over all devices.
      most_bytes: on the device that receives most.
      is_exact: False where the devices are others, and the figures a bound from above.
    """

    arrays: tuple[str, ...]
    total_bytes: int
    most_bytes: int
    is_exact: bool


def restore(before: TargetLayout, after: TargetLayout) -> Restore:
    """Return what moves when arrays laid out as `before` are restored as `after`.

    Arrays that only one side has, or in another size, are left out.

    Invariants:
      none: from a layout to itself nothing moves.
    """
    exact = _same_devices(before, after)
    devices = after.mesh.device_count
    received = [0] * devices
    paths = []
    alike: dict[tuple[object, ...], list[int]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    old = {array.path: array for array in before.arrays}
    meshes = (_MeshIndex(before.mesh), _MeshIndex(after.mesh))
    for array in after.arrays:
        earlier = old.get(array.path)
        if earlier is None or (earlier.shape, earlier.dtype) != (array.shape, array.dtype):
            continue
        key: tuple[object, ...] = (array.shape, array.dtype, earlier.partition, array.partition)
        if key not in alike:
            alike[key] = _missing(earlier, array, meshes) if exact else _all(array, after)
        if any(alike[key]):
            paths.append(array.path)
            counts[key] += 1
    for key, count in counts.items():
        received = [sum_ + count * one for sum_, one in zip(received, alike[key], strict=True)]
    return Restore(tuple(paths), sum(received), max(received, default=0), exact)


def _same_devices(before: TargetLayout, after: TargetLayout) -> bool:
    same_count = before.mesh.device_count == after.mesh.device_count
    return same_count and (before.hardware, before.devices) == (after.hardware, after.devices)


def _all(array: ArrayLayout, target: TargetLayout) -> list[int]:
    return [array.per_device_bytes(target.mesh)] * target.mesh.device_count


class _MeshIndex:
    """Which shard each device of a mesh has, for the mesh axes of a dimension."""

    def __init__(self, mesh: Mesh) -> None:
        self._sizes = mesh.sizes
        self._strides: dict[str, int] = {}
        self.count = stride = mesh.device_count
        for name, size in self._sizes.items():
            stride //= max(size, 1)
            self._strides[name] = stride
        self._known: dict[tuple[str, ...], list[int]] = {}

    def shards(self, axes: tuple[str, ...]) -> list[int]:
        """Return the number of the shard that each device has, in mesh order."""
        found = self._known.get(axes)
        if found is None:
            found = self._known[axes] = [self._shard(device, axes) for device in range(self.count)]
        return found

    def ways(self, axes: tuple[str, ...]) -> int:
        """Return into how many shards the axes split."""
        return math.prod(self._sizes.get(axis, 1) for axis in axes)

    def _shard(self, device: int, axes: tuple[str, ...]) -> int:
        number = 0
        for axis in axes:
            size = self._sizes.get(axis, 1)
            number = number * size + device // self._strides.get(axis, 1) % size
        return number


def _missing(
    before: ArrayLayout, after: ArrayLayout, meshes: tuple[_MeshIndex, _MeshIndex]
) -> list[int]:
    """Return, for each device, the bytes of its new shard that it did not hold."""
    old = list(_intervals(before, meshes[0]))
    new = list(_intervals(after, meshes[1]))
    found = []
    known: dict[tuple[object, ...], int] = {}
    for device in range(meshes[1].count):
        wanted = tuple(dim[device] for dim in new)
        held = tuple(dim[device] for dim in old)
        if (wanted, held) not in known:
            elements = math.prod(end - start for start, end in wanted)
            kept = math.prod(map(_overlap, wanted, held))
            known[wanted, held] = array_bytes((elements - kept,), after.dtype)
        found.append(known[wanted, held])
    return found


def _intervals(array: ArrayLayout, mesh: _MeshIndex) -> Iterator[Sequence[Interval]]:
    """Yield, for each dimension, what every device holds of it."""
    for size, axes in zip(array.shape, array.partition.dims, strict=True):
        length = -(-size // mesh.ways(axes))
        yield [
            (min(shard * length, size), min((shard + 1) * length, size))
            for shard in mesh.shards(axes)
        ]


def _overlap(one: Interval, other: Interval) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
