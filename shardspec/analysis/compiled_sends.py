"""What libtpu moves otherwise than the rings of a gather and a reduce-scatter do.

Figures are those of one version of the compiler, where no rule is public: they count bytes, and
nothing else goes by them.
"""

from __future__ import annotations

from typing import assert_never

from shardspec.ir.collectives import CollectiveKind
from shardspec.ir.spec import DTYPE_BITS, Hardware, Shape, Target

#: Sizes of an axis over which libtpu splits a product into turns of a ring: it does not for 2, 64,
#: 128 and 512; for 4 only where so many chips are in a row. Source: compiles of one decoder with
#: libtpu 0.0.52 for v4, v5e, v5p, v6e and v7x (`tests/data/final_programs.json`), and of two layers
#: of an MLP with 8 devices: in turns for v5e and v6e 2x4, not for v4 and v5p 2x2x2.
_WINDOWED_WAYS = range(8, 33)
SMALL_RING = 4
#: From how many devices on, and up to how many bytes on two dimensions, libtpu gathers over all
#: devices by summing; chips that scatter all the same. Source: compiles of one product and of one
#: decoder with libtpu 0.0.52 for v4 4x4x4, v5e 8x8, 8x16 and 16x16, v5p 4x4x4, 4x4x8, 4x8x8 and
#: 8x8x8, v6e 8x8 and v7x 4x4x4, with 8 to 112 MiB gathered.
_LEAST_WHOLE = 64
_SMALL_GATHER = 2**24
_SCATTER = ("v7x",)


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
    kind: CollectiveKind, ways: int, payload_bytes: int, hardware: Hardware | None
) -> bool:
    """Say whether a collective over all devices of a slice is moved as an all-reduce.

    A gather is then the sum of arrays that are zero but for each device's own shard, and a sum is
    sliced where it is whole. So it is on three dimensions; on two only with small gathers, and with
    sums on a square. The chips with cores for collectives scatter.
    """
    if hardware is None or hardware.slice_count > 1 or hardware.device_count < _LEAST_WHOLE:
        return False
    if ways < hardware.device_count:
        return False
    is_deep, is_square = len(hardware.topology) > 2, len(set(hardware.topology)) == 1
    match kind:
        case CollectiveKind.ALL_GATHER:
            return is_deep or payload_bytes <= _SMALL_GATHER
        case CollectiveKind.REDUCE_SCATTER:
            return hardware.chip.name not in _SCATTER and (is_deep or is_square)
        case (
            CollectiveKind.ALL_REDUCE
            | CollectiveKind.ALL_TO_ALL
            | CollectiveKind.COLLECTIVE_PERMUTE
        ):
            return False
        case _:
            assert_never(kind)
