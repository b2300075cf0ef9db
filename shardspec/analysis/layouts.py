"""What every device holds, and no more: a plan without its reasons, as a lock keeps it.

Two layouts can be compared whatever made them: two specs, two versions of one, a lock file.
"""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir import spec as ir
from shardspec.ir.plan import ShardingPlan
from shardspec.topology.explanation import explain_axes
from shardspec.topology.placement import Placement, place
from shardspec.versions import LANGUAGE


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array on one target.

    Attributes:
      logical_axes: one per dimension; None for a dimension without a name.
      memory: of its host; None for that of the device.
    """

    path: str
    shape: ir.Shape
    dtype: str
    logical_axes: ir.LogicalAxes
    partition: ir.PartitionSpec
    memory: ir.HostMemory | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole array."""
        return ir.Param(self.path, self.shape, self.dtype).bytes

    def shard_shape(self, mesh: ir.Mesh) -> ir.Shape:
        """Return the shape of the largest shard."""
        ways = mesh.ways
        return tuple(
            -(-size // ways(axes))
            for size, axes in zip(self.shape, self.partition.dims, strict=True)
        )

    def per_device_bytes(self, mesh: ir.Mesh) -> int:
        """Return the bytes of the largest shard."""
        return ir.Param(self.path, self.shard_shape(mesh), self.dtype).bytes


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """One named activation; a size is None where the spec does not state it.

    Attributes:
      memory: where it is moved to; None where it stays.
    """

    name: str
    logical_axes: ir.LogicalAxes
    sizes: tuple[int | None, ...]
    partition: ir.PartitionSpec
    memory: ir.MemoryKind | None = None


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """One mesh axis.

    Attributes:
      runs: the stretches of the machine that it takes, for people; empty without hardware.
    """

    axis: ir.MeshAxis
    runs: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """A file that something was made from, relative to the spec, and its digest."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class ProvedBytes:
    """Bytes of one device in a step: what was predicted, and what the compiler made of it.

    Attributes:
      mesh_axes: that they are sent over; none of what is held in memory.
      compiled: None where it is not known.
    """

    mesh_axes: tuple[str, ...]
    predicted: int
    compiled: int | None


@dataclass(frozen=True, slots=True)
class ProofLayout:
    """What the real compiler made of a step on a target, and what that belongs to.

    Attributes:
      step: as `--step` names it.
      made_from: digest of the files and arrays of the spec, `made_from` of that day.
      made_by: names and versions of what it depends on beside the code: jax, the compiler.
      code: the files of the project that were imported for the step.
      sent: by mesh axes.
      room: bytes that a device has for a program; None where that is not known.
      flags: that the compiler had, by the variable that they are in.
    """

    step: str
    made_from: str
    made_by: tuple[tuple[str, str], ...]
    code: tuple[Input, ...]
    sent: tuple[ProvedBytes, ...]
    held: ProvedBytes
    room: int | None = None
    flags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """Everything on one target.

    Attributes:
      hardware: as a spec writes it; empty where a mesh alone is given.
      order: `t5x`, `ring` or `listed`; empty without hardware.
      devices: digest of the coordinates of all devices in mesh order; empty without hardware.
      proof: of a step, where one is kept; it is no part of what a diff compares.
    """

    name: str
    hardware: str
    axes: tuple[AxisLayout, ...]
    order: str
    devices: str
    arrays: tuple[ArrayLayout, ...] = field(repr=False)
    activations: tuple[ActivationLayout, ...] = ()
    proof: ProofLayout | None = None

    @property
    def mesh(self) -> ir.Mesh:
        """Return the mesh."""
        return ir.Mesh(tuple(placed.axis for placed in self.axes))

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes one device holds of all arrays in its own memory."""
        sized = zip(self.arrays, self.array_bytes(), strict=True)
        return sum(size for array, size in sized if array.memory is None)

    @property
    def host_bytes(self) -> int:
        """Return the bytes of all arrays that lie in host memory, for one device."""
        return sum(self.array_bytes()) - self.per_device_bytes

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
class Layout:
    """Every target of a spec.

    Attributes:
      arrays_digest: of all paths, shapes, dtypes and names that were placed.
    """

    language: int
    inputs: tuple[Input, ...]
    arrays_digest: str
    targets: tuple[TargetLayout, ...]


_BUNDLED = ("preset:", "arrays:")


def layout_of(spec: ir.Spec, plans: Sequence[ShardingPlan]) -> Layout:
    """Return what the plans of a spec say, all of them over the same arrays."""
    params = [sharding.param for sharding in plans[0].arrays] if plans else []
    targets = tuple(target_layout(plan) for plan in plans)
    return Layout(LANGUAGE, inputs(spec), arrays_digest(params), targets)


def made_from(layout: Layout) -> str:
    """Return a digest of all that a layout was made from: files of the spec, and arrays."""
    lines = (f"{each.name}\t{each.digest}" for each in layout.inputs)
    return _digest("\n".join((str(layout.language), *lines, layout.arrays_digest)))


def inputs(spec: ir.Spec) -> tuple[Input, ...]:
    """Return every file that was read for the spec, itself first, by names relative to it."""
    folder = os.path.dirname(spec.source.name) or "."
    found = {_relative(source, folder): source for source in (spec.source, *spec.sources)}
    own, *rest = found.items()
    return tuple(Input(name, text_digest(source.text)) for name, source in (own, *sorted(rest)))


def target_layout(plan: ShardingPlan) -> TargetLayout:
    """Return what one plan says."""
    target = plan.target
    placement = None if target.hardware is None else place(target, plan.spec.policy.order)
    placed = None if isinstance(placement, Diagnostic) else placement
    return TargetLayout(
        name=plan.name,
        hardware="" if target.hardware is None else target.hardware.machine,
        axes=_axes(plan, placed),
        order="listed" if target.devices else "" if placed is None else placed.order,
        devices=_devices_digest(placed, target.devices),
        arrays=tuple(
            ArrayLayout(
                sharding.param.path,
                sharding.param.shape,
                sharding.param.dtype,
                sharding.logical_axes,
                sharding.partition_spec,
                sharding.memory_kind,
            )
            for sharding in plan.arrays
        ),
        activations=tuple(
            ActivationLayout(
                sharding.activation.name,
                sharding.activation.logical_axes,
                tuple(dim.size for dim in sharding.dims),
                sharding.partition_spec,
                sharding.memory_kind,
            )
            for sharding in plan.activations
        ),
    )


def held_by(before: ShardingPlan, after: ShardingPlan) -> tuple[int | None, ...] | None:
    """Return which device of one plan each of another is, in mesh order, where chips are alike.

    Slices have numbers: of fewer, the last are gone. None where nothing tells, as between machines
    of other chips or without hardware.
    """
    places = []
    for plan in (before, after):
        machine = plan.target.hardware
        placed = None if machine is None else place(plan.target, plan.spec.policy.order)
        if machine is None or placed is None or isinstance(placed, Diagnostic):
            return None
        places.append((machine.chip, machine.topology, placed.coordinates()))
    (*one, earlier), (*other, later) = places
    if one != other:
        return None
    known = {coordinate: at for at, coordinate in enumerate(earlier)}
    return tuple(map(known.get, later))


def text_digest(text: str) -> str:
    """Return a digest of `text` that line endings do not change."""
    return _digest(text.replace("\r\n", "\n"))


def arrays_digest(params: Iterable[ir.Param]) -> str:
    """Return a digest of what is placed: paths, shapes, dtypes and names, in any order."""
    lines = (f"{param.path}\t{param}\t{param.logical_axes}" for param in params)
    return _digest("\n".join(sorted(lines)))


def _axes(plan: ShardingPlan, placement: Placement | None) -> tuple[AxisLayout, ...]:
    if placement is None:
        return tuple(AxisLayout(axis) for axis in plan.mesh.axes)
    explained = {found.name: found for found in explain_axes(placement)}
    return tuple(
        AxisLayout(axis, "; ".join(map(str, explained[axis.name].runs))) for axis in plan.mesh.axes
    )


def _devices_digest(placement: Placement | None, listed: tuple[int, ...]) -> str:
    """Return a digest of which device stands where; of a list's numbers where there is no machine.

    Empty where nothing says it.
    """
    if placement is None:
        return _digest(" ".join(map(str, listed))) if listed else ""
    return _digest("\n".join(" ".join(map(str, each)) for each in placement.coordinates()))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _relative(source: SourceFile, folder: str) -> str:
    """Return the name of a file as seen from `folder`; a bundled one keeps its own."""
    if source.name.startswith(_BUNDLED) or source.name in {"-", "<string>"}:
        return source.name
    return os.path.relpath(source.name, folder).replace(os.sep, "/")
