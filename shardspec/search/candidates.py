"""Which meshes there are to choose from, and what else of a spec may be chosen beside them.

A mesh is sizes for the axes that the spec has, which multiply to the devices; where it lies is a
choice of its own: which axis crosses DCN, which tile of the torus the axis that talks most takes,
and in what order chips are counted. What a spec says beside its mesh makes a variant of it.

There may be more of them than anybody waits for: those most like the mesh of today come first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Spec, Target, divisors, shape_text
from shardspec.topology.assignment import factorings
from shardspec.topology.machine import slice_extents, slice_host
from shardspec.topology.placement import Order
from shardspec.topology.submesh import Tile, Tiling, tile_slice

#: Sizes that are looked at before the nearest are chosen; a hostile mesh has no end of them.
MOST_SIZES = 200_000
#: Tiles of one size that are tried, the most compact first.
_MOST_TILES = 12
#: Devices beyond which a placement is no longer worked out.
MOST_DEVICES = 1 << 17


@dataclass(frozen=True, slots=True)
class Variant:
    """A spec as it might be, but for its mesh.

    Attributes:
      changes: what differs from the spec, by word: `remat` -> `full`.
    """

    spec: Spec = field(repr=False)
    changes: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return `remat=full microbatches=4`; empty for the spec as it is."""
        return " ".join(f"{word}={value}" for word, value in self.changes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout of a model on a machine."""

    target: Target
    order: Order
    variant: Variant

    @property
    def hardware(self) -> Hardware:
        """Return the machine."""
        assert self.target.hardware is not None, "only meshes on machines are candidates"
        return self.target.hardware

    @property
    def mesh(self) -> Mesh:
        """Return the mesh."""
        return self.target.mesh

    @property
    def spec(self) -> Spec:
        """Return the spec with this layout as its only target."""
        spec = self.variant.spec
        policy = replace(spec.policy, order=self.order)
        return replace(spec, policy=policy, targets=(self.target,), phases=())

    @property
    def mesh_text(self) -> str:
        """Return `data=2 @ dcn fsdp=16 tensor=submesh 2x2x1x1`, as a mesh is written."""
        return " ".join(f"{axis.name}={size_text(axis)}" for axis in self.mesh.axes)

    def __str__(self) -> str:
        """Return the mesh with all that is chosen beside it."""
        order = () if self.order == self.variant.spec.policy.order else (f"order={self.order}",)
        return " ".join(filter(None, (self.mesh_text, *order, str(self.variant))))


def size_text(axis: MeshAxis) -> str:
    """Return the size of an axis as a spec has it: `4`, `2 @ dcn`, `submesh 2x2x1x1`, `over x`."""
    if axis.submesh is not None:
        return f"submesh {shape_text(axis.submesh)}"
    if axis.over:
        return f"over {' '.join(map(str, axis.over))}"
    return f"{axis.size} @ dcn" if axis.network == "dcn" else str(axis.size)


class Sizes(NamedTuple):
    """The sizes that a mesh may have.

    Attributes:
      found: by mesh axis in order, those nearest to today's first.
      is_cut: whether there are more.
    """

    found: tuple[tuple[int, ...], ...]
    is_cut: bool = False


def sizes_of(today: Mesh, devices: int, keep: Mapping[str, Sequence[int]]) -> Sizes:
    """Return every way to write the devices as sizes of the axes.

    Args:
      keep: what the size of an axis may be, where that is stated.

    Invariants:
      product: the sizes of each multiply to the devices.
      distinct: no two are equal.
    """
    axes = today.names
    found = list(itertools.islice(_factored(devices, axes, keep), MOST_SIZES + 1))
    now = tuple(today.sizes.values())
    found.sort(key=lambda sizes: (_distance(sizes, now), sizes))
    return Sizes(tuple(found[:MOST_SIZES]), len(found) > MOST_SIZES)


def _factored(
    left: int, axes: Sequence[str], keep: Mapping[str, Sequence[int]]
) -> Iterator[tuple[int, ...]]:
    if not axes:
        if left == 1:
            yield ()
        return
    first, *rest = axes
    options = keep.get(first)
    if options is None:
        options = divisors(left) if rest else (left,)
    for size in options:
        if size > 0 and left % size == 0:
            yield from ((size, *others) for others in _factored(left // size, rest, keep))


def _distance(sizes: Sequence[int], others: Sequence[int]) -> float:
    """Return how many doublings lie between two meshes of the same axes."""
    pairs = zip(sizes, others, strict=True)
    return round(sum(abs(math.log2(one / other)) for one, other in pairs), 6)


class Freedom(NamedTuple):
    """What is chosen, and from what.

    Attributes:
      mesh: whether sizes are, and where the axes lie.
      order: whether the order of chips is.
      keep: sizes of axes that are stated.
    """

    mesh: bool = True
    order: bool = True
    keep: Mapping[str, Sequence[int]] = {}


def candidates(
    today: Target, hardware: Hardware, variants: Sequence[Variant], freedom: Freedom
) -> Iterator[Candidate]:
    """Yield the layouts on one machine: those of the same sizes and variant side by side."""
    for sizes in mesh_sizes(today, hardware, freedom).found:
        meshes = list(_placed(today.mesh, sizes, hardware, freedom))
        for variant in variants:
            own = variant.spec.policy.order
            for mesh in meshes:
                is_today = mesh == today.mesh and hardware == today.hardware
                listed = today.devices if is_today else ()
                target = replace(today, mesh=mesh, hardware=hardware, is_sound=True, devices=listed)
                for order in _orders(own, hardware, freedom):
                    yield Candidate(target, order, variant)


def mesh_sizes(today: Target, hardware: Hardware, freedom: Freedom) -> Sizes:
    """Return the sizes that are tried on a machine."""
    devices, now = hardware.device_count, tuple(today.mesh.sizes.values())
    if not freedom.mesh and math.prod(now) == devices:
        return Sizes((now,))
    return sizes_of(today.mesh, devices, freedom.keep)


def _orders(own: Order, hardware: Hardware, freedom: Freedom) -> tuple[Order, ...]:
    if not freedom.order or hardware.chip.torus_rank < 2:
        return (own,)
    return (own, "ring" if own == "t5x" else "t5x")


def _placed(
    today: Mesh, sizes: Sequence[int], hardware: Hardware, freedom: Freedom
) -> Iterator[Mesh]:
    """Yield meshes of the same sizes: as placement chooses, over DCN by name, on tiles."""
    if sizes == tuple(today.sizes.values()) and hardware.device_count == today.device_count:
        if _lies(today, hardware):
            yield today
        if not freedom.mesh:
            return
    for crossing in _crossings(today, sizes, hardware):
        axes = [
            MeshAxis(
                axis.name,
                size,
                "dcn" if axis.name in crossing else "ici",
                axis_type=axis.axis_type,
                span=axis.span,
            )
            for axis, size in zip(today.axes, sizes, strict=True)
        ]
        for mesh in (Mesh(tuple(axes), today.wholes), *_tiled(today, axes, hardware)):
            if mesh != today:
                yield mesh


def _lies(mesh: Mesh, hardware: Hardware) -> bool:
    """Say whether a mesh made for one machine can lie on another of as many devices."""
    from shardspec.topology.placement import Placement, place

    return isinstance(place(Target("", mesh, hardware)), Placement)


def _crossings(today: Mesh, sizes: Sequence[int], hardware: Hardware) -> Iterator[tuple[str, ...]]:
    """Yield the axes that may be said to cross slices or nodes, the fewest first."""
    count, is_gpu = hardware.slice_count, hardware.chip.platform == "gpu"
    named = [(name, size) for name, size in zip(today.names, sizes, strict=True) if size > 1]
    found = 0
    for number in (1, 2):
        for axes in itertools.combinations(named, number):
            across = math.prod(size for _, size in axes)
            if count > 1 and (count % across == 0 if is_gpu else across == count):
                found += across == count
                yield tuple(name for name, _ in axes)
    if not found:  # an axis that is partly inside of a slice
        yield ()


def _tiled(today: Mesh, axes: Sequence[MeshAxis], hardware: Hardware) -> Iterator[Mesh]:
    """Yield meshes in which the last axis, or the one that has a tile today, takes a tile."""
    if hardware.chip.torus_rank < 2:
        return
    own = next((at for at, axis in enumerate(today.axes) if axis.submesh or axis.auto), None)
    inner = [at for at, axis in enumerate(axes) if axis.size > 1 and axis.network == "ici"]
    at = own if own in inner else next(reversed(inner), None)
    if at is None or axes[at].size in (1, hardware.devices_per_slice):
        return
    for tile in _tiles(axes[at].size, hardware):
        placed = replace(axes[at], submesh=tile)
        yield Mesh((*axes[:at], placed, *axes[at + 1 :]), today.wholes)


def _tiles(size: int, hardware: Hardware) -> list[Tile]:
    extents, host = slice_extents(hardware), slice_host(hardware)
    tiles = [
        tile
        for tile in factorings(size, extents)
        if isinstance(tile_slice(extents, tile, host), Tiling)
    ]
    return sorted(tiles, key=lambda tile: (sum(tile), tile))[:_MOST_TILES]
