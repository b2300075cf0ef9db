"""Which devices hold which part of an array: 2-D tables for an array of any rank.

The last split dimension goes across, the one before it down; every other split dimension makes a
table for each of its parts. One that is split alone goes down, where there is room.

Nothing here needs a device: the parts follow from the plan, and hosts and slices from the
placement of the mesh on its hardware.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import ActivationSharding, DimSharding, Sharding, ShardingPlan
from shardspec.ir.units import binary_bytes
from shardspec.topology.machine import Machine
from shardspec.topology.placement import Placement, place

Part = tuple[int, ...]
Devices = tuple[int, ...]

#: What lies between two neighbours: nothing, another host, another slice (GPUs: node).
SAME, HOST, SLICE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Homes:
    """Host and slice of every device, in mesh order."""

    hosts: tuple[tuple[int, ...], ...]
    slices: tuple[tuple[int, ...], ...]
    slice_word: str

    def level(self, one: Devices, other: Devices) -> int:
        """Return what lies between the devices of two neighbours."""
        if {self.slices[device] for device in one} != {self.slices[device] for device in other}:
            return SLICE
        return int({self.hosts[d] for d in one} != {self.hosts[d] for d in other})


@dataclass(frozen=True, slots=True)
class Side:
    """One dimension of an array as rows, columns or tables.

    Attributes:
      dim: its index; None where the array has no such dimension.
    """

    dim: int | None
    sharding: DimSharding | None

    @property
    def count(self) -> int:
        """Return the number of parts."""
        return 1 if self.sharding is None else self.sharding.ways

    def range_text(self, part: int) -> str:
        """Return the elements of a part: `0:1024`, `all` where it is whole."""
        dim = self.sharding
        if dim is None or dim.ways == 1:
            return "" if dim is None else "all" if dim.size is None else f"all {dim.size}"
        if dim.size is None or dim.shard_size is None:
            return f"{part + 1} of {dim.ways}"
        start, end = part * dim.shard_size, min((part + 1) * dim.shard_size, dim.size)
        return f"{start}:{end}" if start < end else "empty"

    def place_text(self, part: int, mesh: Mesh) -> str:
        """Return the mesh coordinates of a part: `data 0`, `replica 0 data 3`."""
        if self.sharding is None:
            return ""
        found = []
        for name in reversed(self.sharding.mesh_axes):
            part, digit = divmod(part, mesh.sizes.get(name, 1))
            found.append(f"{name} {digit}")
        return " ".join(reversed(found))

    def title(self) -> str:
        """Return `dim 0 embed=4096 over (replica, data)`."""
        if self.sharding is None:
            return ""
        size = "" if self.sharding.size is None else f"={self.sharding.size}"
        axes = self.sharding.mesh_axes
        over = f"({', '.join(axes)})" if len(axes) > 1 else "".join(axes)
        where = f" over {over}" if self.sharding.ways > 1 else " whole"
        return f"dim {self.dim} {self.sharding.logical_axis or '_'}{size}{where}"


@dataclass(frozen=True, slots=True)
class Table:
    """The parts of an array at one place of the dimensions that are neither rows nor columns.

    Attributes:
      outer: the part of each of those dimensions.
      cells: by row and column, the devices that hold the part.
    """

    outer: Part
    cells: tuple[tuple[Devices, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """One array, cut.

    Attributes:
      title: path, type and answer.
      outer: the split dimensions that are neither rows nor columns.
      homes: None where the target has no hardware.
      machine: `on tpu v5e 4x4`; empty without hardware.
    """

    title: str
    mesh: Mesh
    outer: tuple[Side, ...]
    down: Side
    across: Side
    tables: tuple[Table, ...]
    homes: Homes | None
    machine: str

    @property
    def copies(self) -> int:
        """Return how many devices hold each part."""
        return len(self.tables[0].cells[0][0])

    def gaps(self, cells: Sequence[Sequence[Devices]]) -> tuple[int, ...]:
        """Return what lies after each column of `cells` but the last."""
        homes = self.homes
        if homes is None:
            return (SAME,) * (len(cells[0]) - 1)
        return tuple(
            max(homes.level(row[index], row[index + 1]) for row in cells)
            for index in range(len(cells[0]) - 1)
        )


def grid(sharding: Sharding, plan: ShardingPlan) -> Grid:
    """Return an array or an activation of a plan, cut into its parts."""
    dims, mesh = sharding.dims, plan.mesh
    split = [index for index, dim in enumerate(dims) if dim.ways > 1]
    inner = _inner(split, len(dims))
    sides = [Side(index, dims[index]) for index in inner]
    down, across = (*sides, *[Side(None, None)] * (2 - len(sides)))
    outer = tuple(Side(index, dims[index]) for index in split if index not in inner)
    holders = _holders((*outer, down, across), mesh)
    tables = tuple(
        Table(
            part,
            tuple(
                tuple(holders[(*part, row, column)] for column in range(across.count))
                for row in range(down.count)
            ),
        )
        for part in itertools.product(*(range(side.count) for side in outer))
    )
    placement = _placement(plan)
    homes = None if placement is None else _homes(placement)
    machine = "" if plan.target.hardware is None else f"on {plan.target.hardware}"
    return Grid(_title(sharding), mesh, outer, down, across, tables, homes, machine)


def _inner(split: Sequence[int], rank: int) -> list[int]:
    """Return the dimensions that are rows and columns; fewer where the array has fewer."""
    if len(split) > 1:
        return list(split[-2:])
    whole = [index for index in range(rank) if index not in split]
    return [*split, *whole[len(split) - 2 :]]


def _holders(sides: Sequence[Side], mesh: Mesh) -> dict[Part, Devices]:
    """Return the devices, in mesh order, that hold each part."""
    found: dict[Part, list[int]] = {}
    sizes = mesh.sizes
    for number, place_ in enumerate(itertools.product(*map(range, sizes.values()))):
        at = dict(zip(sizes, place_, strict=True))
        part = []
        for side in sides:
            index = 0
            for name in side.sharding.mesh_axes if side.sharding else ():
                index = index * sizes.get(name, 1) + at.get(name, 0)
            part.append(index)
        found.setdefault(tuple(part), []).append(number)
    return {part: tuple(devices) for part, devices in found.items()}


def _placement(plan: ShardingPlan) -> Placement | None:
    if plan.target.hardware is None:
        return None
    found = place(plan.target, plan.spec.policy.order)
    return None if isinstance(found, Diagnostic) else found


def _homes(placement: Placement) -> Homes:
    machine: Machine = placement.machine
    far = [index for index, axis in enumerate(machine) if axis.link == "dcn"]
    coordinates = placement.coordinates()
    hosts = tuple(
        tuple(value // axis.host for value, axis in zip(each, machine, strict=True))
        for each in coordinates
    )
    slices = tuple(tuple(each[index] for index in far) for each in coordinates)
    return Homes(hosts, slices, machine[far[0]].name if far else "slice")


def _title(sharding: Sharding) -> str:
    if isinstance(sharding, ActivationSharding):
        return f"activation {sharding.activation.name}   {sharding.partition_spec}"
    size = binary_bytes(sharding.per_device_bytes)
    shard = f"shard {list(sharding.shard_shape)}, {size} per device"
    param = sharding.param
    return f"{param.path}   {param}   {sharding.partition_spec}   {shard}"
