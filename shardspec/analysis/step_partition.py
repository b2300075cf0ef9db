"""One operation on a mesh: along which index each mesh axis shares its work, and what that costs.

Operands lie as rules place them, and so must the result. For each mesh axis an operation may be
shared along one of its indices, or not at all. An operand that the axis splits along another index
has to be gathered or moved by an all-to-all; where the index is summed over, partial sums are
reduced; where the result is to lie otherwise, it is moved. Where the operands that an axis splits
agree on the index, it is that one; where one of them agrees with the result, it is theirs, as in
XLA's partitioner; else the cheapest in bytes is taken, axis by axis. Rows are looked up where their
table lies.
That is what makes FSDP gather its weights, and what makes a batch of one move its activations:
neither is a rule here.

What libtpu moves otherwise than the rings of a gather and a reduce-scatter do.

Figures are those of one version of the compiler, where no rule is public: they count bytes, and
nothing else goes by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from shardspec.analysis.step_values import View
from shardspec.ir.plan import Attempt, DimSharding
from shardspec.ir.spec import DTYPE_BITS, Hardware, Mesh, Shape, Target
from shardspec.ir.step import CollectiveKind, ring_bytes

#: Sizes of an axis over which libtpu splits a product into turns of a ring: it does not for 2, 64,
#: 128 and 512; for 4 only where so many chips are in a row. Source: compiles of one decoder with
#: libtpu 0.0.52 for v4, v5e, v5p, v6e and v7x (`tests/data/final_programs.json`), and of two layers
#: of an MLP with 8 devices: in turns for v5e and v6e 2x4, not for v4 and v5p 2x2x2.
_WINDOWED_WAYS = range(8, 33)
SMALL_RING = 4
#: From how many devices on, and up to how many bytes on two dimensions, libtpu gathers over all
#: devices of a slice by summing; from how many on it sums whole what each keeps a slice of; chips
#: that scatter all the same. Source: compiles of one product and of one decoder with libtpu 0.0.52
#: for v4 4x4x4, v5e 8x8, 8x16 and 16x16, v5p 4x4x4, 4x4x8, 4x8x8 and 8x8x8, v6e 8x8 and v7x 4x4x4,
#: with 8 to 112 MiB gathered; and of single sums of 1 to 32 MiB for v5e 2x2, 2x4, 4x4, 4x8 and 8x8,
#: v5p 2x2x1, 2x2x2 and 2x2x4, v6e 2x4 and 4x4, and two slices of v5e 2x4 and 4x4 and v5p 2x2x2.
_LEAST_WHOLE = 64
_LEAST_SUMMED = 8
_SMALL_GATHER = 2**24
_SCATTER = ("v7x",)


#: By how much one device has to take longer for all of a product than for passing all of it on.
_LEAST_HIDDEN = 0.945
_LANES = 128
#: A part of a collective: its kind, its mesh axes, and its payload as `ring_bytes` takes that.
Leg = tuple[CollectiveKind, tuple[str, ...], int]


def across_slices(
    kind: CollectiveKind, axes: tuple[str, ...], payload_bytes: int, target: Target
) -> list[Leg]:
    """Return what a collective within slices and between them is made of; itself, where it is not.

    libtpu sends between slices what one device of each has: a sum goes over the slice first, and a
    gather last. In all, that is as many bytes as one ring over all devices moves.

    Source: compiles of sums, gathers and exchanges with libtpu 0.0.52 for two and four v6e slices.
    """
    hardware = target.hardware
    crossing = {axis.name for axis in target.mesh.axes if axis.network == "dcn"}
    between = tuple(axis for axis in axes if axis in crossing)
    within = tuple(axis for axis in axes if axis not in crossing)
    if hardware is None or hardware.chip.platform != "tpu" or not (between and within):
        return [(kind, axes, payload_bytes)]
    inner: Leg = (kind, within, payload_bytes)
    outer: Leg = (kind, between, payload_bytes // target.mesh.ways(within))
    match kind:
        case CollectiveKind.ALL_REDUCE | CollectiveKind.REDUCE_SCATTER:
            return [inner, outer]
        case CollectiveKind.ALL_GATHER:
            return [outer, inner]
        case CollectiveKind.ALL_TO_ALL | CollectiveKind.COLLECTIVE_PERMUTE:
            return [(kind, axes, payload_bytes)]
        case _:
            assert_never(kind)


def has_ring(axes: int, ways: int, longest: int) -> bool:
    """Say whether a product may be split into turns of a ring.

    Args:
      axes: how many mesh axes a collective goes over.
      longest: as `longest_row` gives it.
    """
    if not longest or axes != 1:
        return False
    return (ways == SMALL_RING and longest >= SMALL_RING) or ways in _WINDOWED_WAYS


def longest_row(hardware: Hardware | None) -> int:
    """Return how many chips of a TPU are in a row; 0 where no product is computed in turns."""
    is_tpu = hardware is not None and hardware.chip.platform == "tpu"
    return max(hardware.topology) if hardware is not None and is_tpu else 0


def windowed_bytes(payload_bytes: int, ways: int) -> int:
    """Return what a device sends where a product is computed in turns of a ring.

    Shards go around in both directions: over n devices that moves n + 1 of them, where a gather or
    a reduce-scatter moves n - 1.
    """
    return payload_bytes * (ways + 1) // ways


def hides_ring(flops: int, payload_bytes: int, ways: int, target: Target) -> bool:
    """Say whether a product takes long enough to be computed while a ring passes what it sums.

    XLA compares both as of one device, before the product is split over the ring.

    Source: libtpu 0.0.52. It computes in turns sums over rings of 8 and 16 on v5e, v5p and v6e of
    1.01 to 1.2 times the time and more, and whole those of 0.9 and less; over rings of 32, those of
    0.96 and 0.93.

    Args:
      flops: of the part of one device.
    """
    chip = None if target.hardware is None else target.hardware.chip
    if chip is None or not chip.bf16_flops_per_s or not chip.link_bytes_per_s:
        return False
    seconds = flops * ways * chip.devices_per_chip / chip.bf16_flops_per_s
    return seconds > _LEAST_HIDDEN * payload_bytes / chip.link_bytes_per_s


def is_turned(move: Move, flops: int, target: Target) -> bool:
    """Say whether libtpu passes a sum of activations around a ring while it computes the product.

    Args:
      flops: of one product on one device.
    """
    ways = target.mesh.ways(move.mesh_axes)
    return (
        move.kind is CollectiveKind.REDUCE_SCATTER
        and target.is_tpu
        and has_ring(len(move.mesh_axes), ways, longest_row(target.hardware))
        and hides_ring(flops, move.payload_bytes, ways, target)
    )


def is_sliced_whole(shard: Shape, dtype: str) -> bool:
    """Say whether libtpu sums whole what it scatters along the last dimension, and slices the sum.

    In memory the last dimension is that of the lanes, unless the one before it fills most of them:
    so it is with the gradient of an output projection [heads kv embed] of few lanes, with heads of
    64, and in 16 bits with an odd number of whole lanes. What has one dimension is always summed.

    Source: compiles with libtpu 0.0.52 of the gradients of [heads, kv, embed] for v5e 8x8 and
    16x16 and v5p 4x4x4: whole with kv of 32 and 64 and up to 128 lanes, scattered with 256 and
    more, and with kv of 80, 96 and 128; of [mlp, embed] for v4, v5e, v5p and v6e, with 64 to 1,024
    lanes: in bf16 whole with 128, 384, 640 and 896, in f32 never; of [n] for v5e 2x2 and
    2x4 and v5p 2x2x1, with 256 to 16,384 lanes: always whole.

    Args:
      shard: what each device keeps of the sum.
    """
    if len(shard) < 2:
        return True
    is_few = shard[-1] <= _LANES and 2 * shard[-2] <= _LANES
    return is_few or (DTYPE_BITS.get(dtype) == 16 and shard[-1] % (2 * _LANES) == _LANES)


def is_summed_whole(
    kind: CollectiveKind, axes: tuple[str, ...], payload_bytes: int, target: Target
) -> bool:
    """Say whether a collective over all devices of a slice is moved as an all-reduce.

    A gather is then the sum of arrays that are zero but for each device's own shard, and a sum is
    sliced where it is whole. So it is on three dimensions; on two only with small gathers, and with
    sums on a square. The chips with cores for collectives scatter.
    """
    hardware, ways = target.hardware, target.mesh.ways(axes)
    if hardware is None or ways != hardware.device_count // hardware.slice_count:
        return False
    if any(axis.network == "dcn" for axis in target.mesh.axes if axis.name in axes):
        return False
    is_deep, is_square = len(hardware.topology) > 2, len(set(hardware.topology)) == 1
    match kind:
        case CollectiveKind.ALL_GATHER:
            is_large = ways >= _LEAST_WHOLE and hardware.slice_count == 1
            return is_large and (is_deep or payload_bytes <= _SMALL_GATHER)
        case CollectiveKind.REDUCE_SCATTER:
            is_large = ways >= _LEAST_SUMMED and hardware.chip.name not in _SCATTER
            return is_large and (is_deep or is_square)
        case (
            CollectiveKind.ALL_REDUCE
            | CollectiveKind.ALL_TO_ALL
            | CollectiveKind.COLLECTIVE_PERMUTE
        ):
            return False
        case _:
            assert_never(kind)


class Seat(NamedTuple):
    """Where a mesh axis is in an array.

    Attributes:
      name: of the index that it splits.
      dim: of the array.
      logical_axis: the name of that.
      attempt: what put it there.
      path: of the array; empty for a value.
    """

    name: str
    dim: int
    logical_axis: str | None
    attempt: Attempt | None
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """An array as it lies, by the indices of one operation.

    Attributes:
      elements: with what fills up parts that are not equally large.
      seats: of the mesh axes that split it.
    """

    indices: frozenset[str]
    elements: int
    bits: int
    seats: dict[str, Seat]

    def bytes(self, ways: int) -> int:
        """Return the bytes of one of so many parts."""
        return max(1, self.elements // ways) * self.bits // 8


def laid(view: View, dims: Sequence[DimSharding], dtype: str, mesh: Mesh, path: str = "") -> Laid:
    """Return an array by the indices of an operation.

    A dimension of several indices is split from the first on, which is the major one.
    """
    seats: dict[str, Seat] = {}
    sizes, elements = mesh.sizes, 1
    for at, (inner, dim) in enumerate(zip(view, dims, strict=True)):
        whole = math.prod([index.size for index in inner])
        axes = dim.mesh_axes
        elements *= filled(whole, mesh.ways(axes)) if axes else whole
        taken, left = 0, inner[0].size
        for axis in axes:
            ways = sizes[axis]
            while taken + 1 < len(inner) and (left == 1 or left % ways):
                taken, left = taken + 1, inner[taken + 1].size
            left = max(1, left // ways)
            if ways > 1:
                asked = _asked(dim, axis)
                seats[axis] = Seat(inner[taken].name, at, dim.logical_axis, asked, path)
    indices = frozenset([index.name for inner in view for index in inner])
    return Laid(indices, elements, DTYPE_BITS.get(dtype, 32), seats)


def filled(size: int, ways: int) -> int:
    """Return a size with what makes its parts equally large.

    >>> filled(56, 32)
    64
    """
    return -(-size // ways) * ways


def _asked(dim: DimSharding, axis: str) -> Attempt | None:
    added = dim.added
    return added if added is not None and axis in added.mesh_axes else dim.taken


class Move(NamedTuple):
    """A collective that makes an array lie otherwise, or that sums it up.

    Attributes:
      payload_bytes: as `ring_bytes` takes it.
      of: the operand; None for the result.
    """

    kind: CollectiveKind
    mesh_axes: tuple[str, ...]
    payload_bytes: int
    seats: tuple[Seat | None, ...]
    of: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """How the work of an operation is shared.

    Attributes:
      along: the index of each mesh axis that shares it.
      moves: of operands, before it runs; and of a result that lies otherwise, after.
      sums: axes over which the result is a sum of parts, with who put them there.
      held: the bytes of a device that each operand has once it is gathered.
    """

    along: dict[str, str]
    moves: tuple[Move, ...]
    sums: dict[str, Seat]
    held: tuple[int, ...]

    def ways(self, mesh: Mesh) -> int:
        """Return how many devices share the work."""
        return mesh.ways(self.along)

    def padding(self, mesh: Mesh, sizes: Mapping[str, int]) -> float:
        """Return the work of all devices by what there is: parts of one index are equally large.

        Args:
          sizes: of the indices that are shared.

        Invariants:
          padding: it is 1 where sizes divide.
        """
        share = 1.0
        for name in dict.fromkeys(self.along.values()):
            ways = mesh.ways(axis for axis, index in self.along.items() if index == name)
            size = sizes.get(name, ways)
            share *= filled(size, ways) / size
        return share


def partition(
    operands: Sequence[Laid],
    result: Laid,
    mesh: Mesh,
    whole: frozenset[str] = frozenset(),
    *,
    table: Laid | None = None,
) -> Partition:
    """Return how an operation is shared over a mesh.

    Args:
      result: as it is to lie.
      whole: indices that no axis may share.
      table: what rows are looked up in, or added to: its own split is gone by.
    """
    along: dict[str, str] = {}
    for axis in dict.fromkeys(axis for each in (*operands, result) for axis in each.seats):
        ways = mesh.sizes[axis]
        found = _options(axis, operands) - whole
        made = _options(axis, [result]) - whole
        if table is not None and axis in table.seats:
            found = {table.seats[axis].name}
        elif len(found) > 1:
            found = found & made or found | made
        options = sorted(found or made)
        if len(options) == 1:
            along[axis] = options[0]
        elif options:
            prices = {name: _price(name, axis, ways, operands, result, mesh) for name in options}
            along[axis] = min(options, key=lambda name: prices[name])
    return shared(along, operands, result, mesh)


def _options(axis: str, arrays: Sequence[Laid]) -> set[str]:
    return {each.seats[axis].name for each in arrays if axis in each.seats}


def _price(
    index: str, axis: str, ways: int, operands: Sequence[Laid], result: Laid, mesh: Mesh
) -> float:
    """Return the bytes that a device sends if a mesh axis shares the work along an index."""
    price = 0.0
    for each in operands:
        seat = each.seats.get(axis)
        if seat is None or seat.name == index:
            continue
        here = each.bytes(mesh.ways(each.seats))
        price += here * (ways - 1) / (ways if index in each.indices else 1)
    seat = result.seats.get(axis)
    others = mesh.ways(name for name in result.seats if name != axis)
    whole = result.bytes(others)
    share = (ways - 1) / ways
    if index not in result.indices:
        return price + whole * share * (1 if seat is not None else 2)
    if seat is None:
        return price + whole * share
    return price + (0 if seat.name == index else whole * share / ways)


def shared(along: dict[str, str], operands: Sequence[Laid], result: Laid, mesh: Mesh) -> Partition:
    """Return what sharing the work so asks for."""
    moves: list[Move] = []
    held = []
    for at, each in enumerate(operands):
        found, size = _operand(at, each, along, mesh)
        moves += found
        held.append(size)
    parts = (axis for axis, name in along.items() if name not in result.indices)
    sums = {axis: _blame(axis, operands) for axis in parts}
    moves += _result(along, operands, result, mesh)
    return Partition(along, tuple(moves), sums, tuple(held))


def _operand(at: int, each: Laid, along: dict[str, str], mesh: Mesh) -> tuple[list[Move], int]:
    """Return what makes an operand lie as the work is shared, and its bytes then."""
    kept = {axis for axis, name in along.items() if name in each.indices}
    gathered = tuple(axis for axis in each.seats if axis not in kept)
    moved = tuple(a for a, seat in each.seats.items() if a in kept and along[a] != seat.name)
    size = each.bytes(mesh.ways(kept))
    moves = []
    if moved:
        payload = each.bytes(mesh.ways({*kept, *gathered}))
        moves.append(_move(CollectiveKind.ALL_TO_ALL, moved, payload, each, at))
    if gathered:
        moves.append(_move(CollectiveKind.ALL_GATHER, gathered, size, each, at))
    return moves, size


def _result(
    along: dict[str, str], operands: Sequence[Laid], result: Laid, mesh: Mesh
) -> list[Move]:
    """Return what makes a result lie as it is to, its sums left out."""
    made = {axis: name for axis, name in along.items() if name in result.indices}
    seats = result.seats
    wrong = [axis for axis, name in made.items() if axis in seats and seats[axis].name != name]
    extra = tuple(axis for axis in made if axis not in seats)
    moves = []
    if wrong:
        payload = result.bytes(mesh.ways({*made}))
        moves.append(_move(CollectiveKind.ALL_TO_ALL, tuple(wrong), payload, result))
    if extra:
        payload = result.bytes(mesh.ways(set(made) - set(extra)))
        blame = tuple(_blame(axis, operands) for axis in extra)
        moves.append(Move(CollectiveKind.ALL_GATHER, extra, payload, blame))
    return moves


def _move(
    kind: CollectiveKind, axes: tuple[str, ...], payload: int, whose: Laid, of: int | None = None
) -> Move:
    return Move(kind, axes, payload, tuple(whose.seats.get(axis) for axis in axes), of)


def _blame(axis: str, operands: Sequence[Laid]) -> Seat:
    """Return who put a mesh axis on what is read."""
    return next(each.seats[axis] for each in operands if axis in each.seats)


def summed(result: Laid, sums: dict[str, Seat], along: Iterable[str], mesh: Mesh) -> list[Move]:
    """Return what adds up the parts of a result: to where it is to lie, or to everywhere.

    Args:
      along: the mesh axes that split the parts.
    """
    if not sums:
        return []
    scattered = {axis: seat for axis, seat in sums.items() if axis in result.seats}
    rest = {axis: seat for axis, seat in sums.items() if axis not in scattered}
    ways = mesh.ways({*along, *result.seats} - set(sums))
    moves = []
    if scattered:
        payload = result.bytes(ways)
        seats = tuple(scattered.values())
        moves.append(Move(CollectiveKind.REDUCE_SCATTER, tuple(scattered), payload, seats))
    if rest:
        payload, seats = result.bytes(ways * mesh.ways(scattered)), tuple(rest.values())
        moves.append(Move(CollectiveKind.ALL_REDUCE, tuple(rest), payload, seats))
    return moves


def legs_of(move: Move, target: Target) -> list[Move]:
    """Return a move as what goes within slices of TPUs, and what goes between them."""
    legs = across_slices(move.kind, move.mesh_axes, move.payload_bytes, target)
    if len(legs) == 1:
        return [move]
    seats = dict(zip(move.mesh_axes, move.seats, strict=True))
    return [
        Move(kind, axes, payload, tuple(seats[axis] for axis in axes), move.of)
        for kind, axes, payload in legs
    ]


def slices_lanes(move: Move, own: Laid, shape: Shape, dtype: str, target: Target) -> bool:
    """Say whether a TPU sums whole what a move scatters.

    Args:
      own: the array that is summed, as it is to lie; its indices are its dimensions.
      shape: of all of it.
    """
    sizes = target.mesh.sizes
    ways = [
        math.prod(sizes[a] for a, s in own.seats.items() if s.dim == at) for at in range(len(shape))
    ]
    shard = tuple(filled(size, way) // way for size, way in zip(shape, ways, strict=True))
    is_last = all(own.seats[axis].dim == len(shard) - 1 for axis in move.mesh_axes)
    return is_last and is_sliced_whole(shard, dtype)


def sent_bytes(move: Move, target: Target, *, is_turned: bool, is_whole: bool = False) -> int:
    """Return what a device sends in a move, as the compiler of the target carries it out.

    Args:
      is_turned: whether one product alone reads or makes it, which a TPU may do in turns.
      is_whole: whether a TPU that does not sums it whole, and slices the sum.
    """
    ways, hardware = target.mesh.ways(move.mesh_axes), target.hardware
    if target.is_tpu:
        is_small = move.kind is CollectiveKind.ALL_GATHER and ways == SMALL_RING
        axes, longest = len(move.mesh_axes), longest_row(hardware)
        if is_turned and not is_small and has_ring(axes, ways, longest):
            return windowed_bytes(move.payload_bytes, ways)
        if is_whole or is_summed_whole(move.kind, move.mesh_axes, move.payload_bytes, target):
            return ring_bytes(CollectiveKind.ALL_REDUCE, move.payload_bytes, ways)
    return ring_bytes(move.kind, move.payload_bytes, ways)
