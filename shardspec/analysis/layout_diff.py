"""Two layouts -> what moved: array by array, with the bytes a device holds before and after.

A layout is what every device holds: a plan without its reasons, as a lock keeps it. So two can be
compared whatever made them: two specs, two versions of one, a lock file.

Only answers count, never how they are spelt: an array has moved where a dimension is split over
other mesh axes or into another number of shards. Mesh axes of size 1 split nothing. Where plans are
at hand, each side says which rule decided, and an array with the same answer by another rule is
told apart.

Restoring a checkpoint of one layout into another: a device keeps the part of its new shard that it
held before; the rest comes from elsewhere. That can be counted where both layouts are over the same
devices in one order; elsewhere every shard that is not whole on both sides may come from elsewhere,
and the sum is a bound.
"""

from __future__ import annotations

import hashlib
import json
import math
import os.path
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from shardspec.diagnostics import SourceFile, Span
from shardspec.ir import spec as ir
from shardspec.ir.plan import Dims, DimSharding, Kind, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import Mesh, array_bytes
from shardspec.kept import kept
from shardspec.topology.placement import Placement, explain_axes, placed
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
      why: of each dimension; empty in a lock.
    """

    name: str
    logical_axes: ir.LogicalAxes
    sizes: tuple[int | None, ...]
    partition: ir.PartitionSpec
    memory: ir.MemoryKind | None = None
    why: tuple[Reason, ...] = field(default=(), compare=False, repr=False)


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


def inputs(
    spec: ir.Spec, *, has_lines: bool = False, locked: Iterable[Input] = ()
) -> tuple[Input, ...]:
    """Return every file that was read for the spec, itself first, by names relative to it.

    Args:
      has_lines: whether the digests are of the texts, for what names lines of them.
      locked: those of a lock; versions before 0.3 have digests of the text there, which hold.
    """
    folder = os.path.dirname(spec.source.name) or "."
    found = {_relative(source, folder): source for source in (spec.source, *spec.sources)}
    own, *rest = found.items()
    then, made = set(locked), []
    for name, source in (own, *sorted(rest)):
        of_text = Input(name, text_digest(source.text))
        is_text = has_lines or of_text in then
        made.append(of_text if is_text else Input(name, said_digest(source)))
    return tuple(made)


def target_layout(plan: ShardingPlan) -> TargetLayout:
    """Return what one plan says."""
    target = plan.target
    placement = placed(target, plan.spec.policy.order)
    return TargetLayout(
        name=plan.name,
        hardware="" if target.hardware is None else target.hardware.machine,
        axes=_axes(plan, placement),
        order="listed" if target.devices else "" if placement is None else placement.order,
        devices=_devices_digest(placement, target.devices),
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
                tuple(map(_reason_of_rule, sharding.dims)),
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
        machine, placement = plan.target.hardware, placed(plan.target, plan.spec.policy.order)
        if machine is None or placement is None:
            return None
        places.append((machine.chip, machine.topology, placement.coordinates()))
    (*one, earlier), (*other, later) = places
    if one != other:
        return None
    known = {coordinate: at for at, coordinate in enumerate(earlier)}
    return tuple(map(known.get, later))


@lru_cache(maxsize=16)
def said_digest(source: SourceFile) -> str:
    """Return a digest of what a spec says: comments, line breaks and spelling do not change it.

    Of another file, such as a manifest, and of a spec that cannot be read: the digest of its text.
    """
    from shardspec.language.grammar.print_expressions import canonical
    from shardspec.language.loader import File, read
    from shardspec.language.reading import is_dsl

    found, _ = read(File(source, "", source.name, is_dsl(source)))
    data = None if found is None else canonical(found.data)
    return text_digest(source.text) if data is None else _digest(json.dumps(data, default=str))


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


class Mark(StrEnum):
    """How an array has changed."""

    MORE = "+"
    LESS = "-"
    OTHER = "~"
    SAME = ">"
    NEW = "new"
    GONE = "gone"
    RESIZED = "resized"
    MEMORY = "memory"
    SUMS = "sums"


class Reason(NamedTuple):
    """Why a dimension is as it is.

    Attributes:
      text: the rule, or what kept every rule from firing.
      place: `spec.yaml:31`, with the line that an import made it of; empty where no line says it.
      line: the text of that line, without a comment.
    """

    text: str
    place: str
    line: str = ""


#: What `import` writes behind a line, as a comment.
_IMPORTED = re.compile(r"from (\S+:[0-9]+)")

#: Target -> path -> the reason of each dimension. Empty where a side is a lock.
Reasons = Mapping[str, Mapping[str, tuple[Reason, ...]]]


@dataclass(frozen=True, slots=True)
class DimMove:
    """One dimension that is split otherwise, or by another rule.

    Attributes:
      before: mesh axes, major to minor.
      has_moved: False where another rule gives the same shards.
    """

    logical_axis: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    ways_before: int
    ways_after: int
    has_moved: bool
    why_before: Reason | None = None
    why_after: Reason | None = None


@dataclass(frozen=True, slots=True)
class ArrayMove:
    """One array that is not as it was.

    Attributes:
      dims: those that changed; empty for arrays that are new, gone or of another size.
      bytes_before: on one device.
    """

    path: str
    mark: Mark
    before: ArrayLayout | None
    after: ArrayLayout | None
    dims: tuple[DimMove, ...]
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class TargetDiff:
    """What changed on one target; one side is None where the other alone has it.

    Attributes:
      held_by: for each device of `after`, in mesh order, which one of `before` it is; None for one
        that was not there. Left out, devices are told by hardware and order alone.
    """

    name: str
    before: TargetLayout | None
    after: TargetLayout | None
    moves: tuple[ArrayMove, ...] = ()
    activations: tuple[tuple[ActivationLayout | None, ActivationLayout | None], ...] = ()
    held_by: Sequence[int | None] | None = field(default=None, compare=False, repr=False)

    @property
    def present(self) -> TargetLayout:
        """Return the new side, or the old one of a target that is gone."""
        found = self.after or self.before
        assert found is not None, "a target is on one side at least"
        return found

    @property
    def machine_changed(self) -> bool:
        """Say whether mesh, hardware or device order are others."""
        return (
            self.before is None
            or self.after is None
            or _machine(self.before) != _machine(self.after)
        )

    @property
    def is_same(self) -> bool:
        """Say whether nothing changed."""
        return not (self.machine_changed or self.moves or self.activations)


def diff_layouts(
    before: Layout,
    after: Layout,
    why_before: Reasons | None = None,
    why_after: Reasons | None = None,
) -> tuple[TargetDiff, ...]:
    """Return what changed on each target that either side has, in the order of the new one.

    Two targets that are the only ones of their sides are compared whatever their names.
    """
    old = {target.name: target for target in before.targets}
    new = {target.name: target for target in after.targets}
    names = [(name, name) for name in dict.fromkeys((*new, *old))]
    if len(old) == len(new) == 1:
        names = [(before.targets[0].name, after.targets[0].name)]
    return tuple(
        _diff_target(
            old.get(earlier),
            new.get(later),
            (why_before or {}).get(earlier, {}),
            (why_after or {}).get(later, {}),
        )
        for earlier, later in names
    )


def reasons_of(plans: Sequence[ShardingPlan]) -> Reasons:
    """Return why every dimension of every array is as it is."""
    found: dict[str, dict[str, tuple[Reason, ...]]] = {}
    for plan in plans:
        known: dict[Dims, tuple[Reason, ...]] = {}
        by_path = found.setdefault(plan.name, {})
        for sharding in plan.arrays:
            if sharding.dims not in known:
                known[sharding.dims] = tuple(_reason(dim, sharding) for dim in sharding.dims)
            by_path[sharding.param.path] = known[sharding.dims]
    return found


_FAILED = {
    Outcome.BUSY: "the mesh axes are busy",
    Outcome.INDIVISIBLE: "does not divide",
    Outcome.ABSENT: "this target lacks the mesh axes",
    Outcome.UNKNOWN: "no target has the mesh axes",
}


def _reason(dim: DimSharding, sharding: ParamSharding) -> Reason:
    attempt = dim.taken or (dim.attempts[-1] if dim.attempts else None)
    if attempt is None and sharding.derivation is not None and sharding.matched is not None:
        return Reason(f"derive {sharding.matched.pattern}", *_place_and_line(sharding.named_at))
    section = attempt and {Kind.STATED: "override", Kind.PARENT: "derive"}.get(attempt.kind)
    if section and sharding.matched is not None:
        text = f"{section} {sharding.matched.pattern}{_failed(dim)}"
        return Reason(text, *_place_and_line(sharding.named_at))
    return _reason_of_rule(dim)


def _reason_of_rule(dim: DimSharding) -> Reason:
    """Return which rule decided a dimension, or kept it from being sharded."""
    attempt = dim.taken or (dim.attempts[-1] if dim.attempts else None)
    if attempt is None:
        name = dim.logical_axis
        return Reason("no name" if name is None else f"no rule for `{name}`", "")
    return Reason(f"{attempt}{_failed(dim)}", *_place_and_line(attempt.span))


def _failed(dim: DimSharding) -> str:
    """Return why the last rule of a dimension did not fire; nothing where one did."""
    outcome = dim.attempts[-1].outcome if dim.attempts and not dim.taken else None
    return "" if outcome is None else f": {_FAILED.get(outcome, outcome)}"


def _place_and_line(span: Span | None) -> tuple[str, str]:
    """Return `spec.yaml:31, from base.yml:601`, and the text of that line."""
    if span is None:
        return "", ""
    text = span.source.text
    start, end = text.rfind("\n", 0, span.start) + 1, text.find("\n", span.start)
    line, _, comment = text[start : end if end >= 0 else None].partition(" # ")
    made_of = _IMPORTED.match(comment)
    place = f"{span.place}, from {made_of[1]}" if made_of else span.place
    return place, line.strip()


def _diff_target(
    before: TargetLayout | None,
    after: TargetLayout | None,
    why_before: Mapping[str, tuple[Reason, ...]],
    why_after: Mapping[str, tuple[Reason, ...]],
) -> TargetDiff:
    if before is None or after is None:
        present = before or after
        assert present is not None, "a target is on one side at least"
        return TargetDiff(present.name, before, after)
    old = {array.path: (array, size) for array, size in _sized(before)}
    new = {array.path: (array, size) for array, size in _sized(after)}
    ways = (_MeshIndex(before.mesh), _MeshIndex(after.mesh))
    moves = []
    for path in dict.fromkeys((*new, *old)):
        sides = (old.get(path, (None, 0)), new.get(path, (None, 0)))
        pair = (sides[0][0], sides[1][0])
        dims = tuple(_dim_moves(pair, ways, why_before.get(path), why_after.get(path)))
        mark = _mark(pair, dims)
        if mark is not None:
            moves.append(ArrayMove(path, mark, *pair, dims, sides[0][1], sides[1][1]))
    return TargetDiff(after.name, before, after, tuple(moves), tuple(_activations(before, after)))


def _dim_moves(
    pair: tuple[ArrayLayout | None, ArrayLayout | None],
    ways: tuple[_MeshIndex, _MeshIndex],
    why_before: tuple[Reason, ...] | None,
    why_after: tuple[Reason, ...] | None,
) -> Iterator[DimMove]:
    """Yield the dimensions that changed, of an array that both sides have in one size."""
    old, new = pair
    if old is None or new is None or old.shape != new.shape:
        return
    for index, name in enumerate(new.logical_axes):
        axes = (old.partition.dims[index], new.partition.dims[index])
        counts = (ways[0].ways(axes[0]), ways[1].ways(axes[1]))
        names = (ways[0].mesh.splitting(axes[0]), ways[1].mesh.splitting(axes[1]))
        move = DimMove(
            name,
            *axes,
            *counts,
            counts[0] != counts[1] or names[0] != names[1],
            why_before[index] if why_before else None,
            why_after[index] if why_after else None,
        )
        if move.has_moved or _by_another_rule(move):
            yield move


def _by_another_rule(move: DimMove) -> bool:
    before, after = move.why_before, move.why_after
    return before is not None and after is not None and before.text != after.text


def _mark(
    pair: tuple[ArrayLayout | None, ArrayLayout | None], dims: Sequence[DimMove]
) -> Mark | None:
    old, new = pair
    if old is None or new is None:
        return Mark.NEW if old is None else Mark.GONE
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        return Mark.RESIZED
    if old.memory != new.memory:
        return Mark.MEMORY
    if old.partition.sums != new.partition.sums:
        return Mark.SUMS
    if not dims:
        return None
    if not any(dim.has_moved for dim in dims):
        return Mark.SAME
    before = after = 1
    for dim in dims:
        before, after = before * dim.ways_before, after * dim.ways_after
    return Mark.OTHER if before == after else Mark.MORE if after > before else Mark.LESS


def _sized(target: TargetLayout) -> Iterator[tuple[ArrayLayout, int]]:
    return zip(target.arrays, target.array_bytes(), strict=True)


def _activations(
    before: TargetLayout, after: TargetLayout
) -> Iterator[tuple[ActivationLayout | None, ActivationLayout | None]]:
    old = {each.name: each for each in before.activations}
    new = {each.name: each for each in after.activations}
    splitting = {axis.name for side in (before, after) for axis in side.mesh.axes if axis.size != 1}
    for name in dict.fromkeys((*new, *old)):
        pair = (old.get(name), new.get(name))
        if _only_over(splitting, pair[0]) != _only_over(splitting, pair[1]):
            yield pair


def _only_over(axes: Container[str], layout: ActivationLayout | None) -> ActivationLayout | None:
    if layout is None:
        return None
    dims = tuple(tuple(axis for axis in dim if axis in axes) for dim in layout.partition.dims)
    return replace(layout, partition=replace(layout.partition, dims=dims))


def _machine(target: TargetLayout) -> tuple[object, ...]:
    axes = tuple(
        (placed.axis.name, placed.axis.size, placed.axis.network, placed.axis.axis_type)
        for placed in target.axes
    )
    return (target.hardware, axes, target.devices)


Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore moves on one target.

    Attributes:
      arrays: those of which some device needs what it did not hold.
      total_bytes: over all devices.
      most_bytes: on the device that receives most.
      is_exact: False where the devices are others, and the figures a bound from above.
      compared: how many arrays both sides have, in one shape and dtype; of others nothing is known.
    """

    arrays: tuple[str, ...]
    total_bytes: int
    most_bytes: int
    is_exact: bool
    compared: int


def restore(
    before: TargetLayout, after: TargetLayout, held_by: Sequence[int | None] | None = None
) -> Restore:
    """Return what moves when arrays laid out as `before` are restored as `after`.

    Arrays that only one side has, or in another size, are left out.

    Args:
      held_by: as in `TargetDiff`.

    Invariants:
      none: from a layout to itself nothing moves.
      elsewhere: to devices that were not there, all that they hold does.
    """
    if held_by is None and _same_devices(before, after):
        held_by = range(after.mesh.device_count)
    exact = held_by is not None
    devices = after.mesh.device_count
    received = [0] * devices
    paths = []
    alike: dict[tuple[object, ...], list[int]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    compared = 0
    old = {array.path: array for array in before.arrays}
    meshes = (_MeshIndex(before.mesh), _MeshIndex(after.mesh))
    for array in after.arrays:
        earlier = old.get(array.path)
        if earlier is None or (earlier.shape, earlier.dtype) != (array.shape, array.dtype):
            continue
        compared += 1
        key: tuple[object, ...] = (array.shape, array.dtype, earlier.partition, array.partition)
        if key not in alike:
            alike[key] = (
                _all(array, after) if held_by is None else _missing(earlier, array, meshes, held_by)
            )
        if any(alike[key]):
            paths.append(array.path)
            counts[key] += 1
    for key, count in counts.items():
        received = [sum_ + count * one for sum_, one in zip(received, alike[key], strict=True)]
    return Restore(tuple(paths), sum(received), max(received, default=0), exact, compared)


def _same_devices(before: TargetLayout, after: TargetLayout) -> bool:
    same_count = before.mesh.device_count == after.mesh.device_count
    return same_count and (before.hardware, before.devices) == (after.hardware, after.devices)


def _all(array: ArrayLayout, target: TargetLayout) -> list[int]:
    return [array.per_device_bytes(target.mesh)] * target.mesh.device_count


class _MeshIndex:
    """Which shard each device of a mesh has, for the mesh axes of a dimension."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._sizes = mesh.sizes
        self._strides: dict[str, int] = {}
        self.count = stride = mesh.device_count
        for name, size in self._sizes.items():
            stride //= max(size, 1)
            self._strides[name] = stride
        self._kept: dict[object, object] = {}

    @kept
    def shards(self, axes: tuple[str, ...]) -> list[int]:
        """Return the number of the shard that each device has, in mesh order."""
        return [self._shard(device, axes) for device in range(self.count)]

    @kept
    def ways(self, axes: tuple[str, ...]) -> int:
        """Return into how many shards the axes split."""
        return self.mesh.ways(axes)

    def _shard(self, device: int, axes: tuple[str, ...]) -> int:
        number = 0
        for axis in axes:
            size = self._sizes.get(axis, 1)
            number = number * size + device // self._strides.get(axis, 1) % size
        return number


def _missing(
    before: ArrayLayout,
    after: ArrayLayout,
    meshes: tuple[_MeshIndex, _MeshIndex],
    held_by: Sequence[int | None],
) -> list[int]:
    """Return, for each device, the bytes of its new shard that it did not hold."""
    old = list(_intervals(before, meshes[0]))
    new = list(_intervals(after, meshes[1]))
    found = []
    known: dict[tuple[object, ...], int] = {}
    for device in range(meshes[1].count):
        wanted = tuple(dim[device] for dim in new)
        place = held_by[device]
        held = None if place is None else tuple(dim[place] for dim in old)
        if (wanted, held) not in known:
            elements = math.prod(end - start for start, end in wanted)
            kept = 0 if held is None else math.prod(map(_overlap, wanted, held))
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
