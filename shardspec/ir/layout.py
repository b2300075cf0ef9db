"""What every device holds, and no more: a plan without its reasons, as a lock keeps it.

Two layouts can be compared whatever made them: two specs, two versions of one, a lock file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.ir.spec import LogicalAxes, Mesh, MeshAxis, Param, PartitionSpec, Shape


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array on one target.

    Attributes:
      logical_axes: one per dimension; None for a dimension without a name.
    """

    path: str
    shape: Shape
    dtype: str
    logical_axes: LogicalAxes
    partition: PartitionSpec

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole array."""
        return Param(self.path, self.shape, self.dtype).bytes

    def shard_shape(self, mesh: Mesh) -> Shape:
        """Return the shape of the largest shard."""
        ways = mesh.ways
        return tuple(
            -(-size // ways(axes))
            for size, axes in zip(self.shape, self.partition.dims, strict=True)
        )

    def per_device_bytes(self, mesh: Mesh) -> int:
        """Return the bytes of the largest shard."""
        return Param(self.path, self.shard_shape(mesh), self.dtype).bytes


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """One named activation; a size is None where the spec does not state it."""

    name: str
    logical_axes: LogicalAxes
    sizes: tuple[int | None, ...]
    partition: PartitionSpec


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """One mesh axis.

    Attributes:
      runs: the stretches of the machine that it takes, for people; empty without hardware.
    """

    axis: MeshAxis
    runs: str = ""


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """Everything on one target.

    Attributes:
      hardware: as a spec writes it; empty where a mesh alone is given.
      order: `t5x` or `ring`; empty without hardware.
      devices: digest of the coordinates of all devices in mesh order; empty without hardware.
    """

    name: str
    hardware: str
    axes: tuple[AxisLayout, ...]
    order: str
    devices: str
    arrays: tuple[ArrayLayout, ...] = field(repr=False)
    activations: tuple[ActivationLayout, ...] = ()

    @property
    def mesh(self) -> Mesh:
        """Return the mesh."""
        return Mesh(tuple(placed.axis for placed in self.axes))

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes one device holds of all arrays."""
        return sum(self.array_bytes())

    def array_bytes(self) -> Iterator[int]:
        """Yield the bytes one device holds of each array; arrays that are alike count once."""
        mesh = self.mesh
        known: dict[tuple[object, ...], int] = {}
        for array in self.arrays:
            key = (array.shape, array.dtype, array.partition.dims)
            if key not in known:
                known[key] = array.per_device_bytes(mesh)
            yield known[key]


@dataclass(frozen=True, slots=True)
class Input:
    """A file that the layout was made from, relative to the spec, and its digest."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Every target of a spec.

    Attributes:
      arrays_digest: of all paths, shapes, dtypes and names that were placed.
    """

    language: int
    inputs: tuple[Input, ...]
    arrays_digest: str
    targets: tuple[TargetLayout, ...]
