"""What libtpu moves otherwise than the rings of a gather and a reduce-scatter do.

Figures are those of one version of the compiler, where no rule is public: they count bytes, and
nothing else goes by them.
"""

from __future__ import annotations

from shardspec.ir.spec import Hardware
from shardspec.ir.step import CollectiveKind

#: Sizes of an axis over which libtpu splits a product into turns of a ring: it does not for 2, 64,
#: 128 and 512; for 4 only where there are 16 devices. Source: compiles of one decoder with
#: libtpu 0.0.52 for v4, v5e, v5p, v6e and v7x (`tests/data/final_programs.json`).
_WINDOWED_WAYS = range(8, 33)
SMALL_RING = 4
_LEAST_DEVICES = 16
#: From how many devices on, and up to how many bytes on two dimensions, libtpu gathers over all
#: devices by summing; chips that scatter all the same. Source: compiles of one product and of one
#: decoder with libtpu 0.0.52 for v4 4x4x4, v5e 8x8, 8x16 and 16x16, v5p 4x4x4, 4x4x8, 4x8x8 and
#: 8x8x8, v6e 8x8 and v7x 4x4x4, with 8 to 112 MiB gathered.
_LEAST_WHOLE = 64
_SMALL_GATHER = 2**24
_SCATTER = ("v7x",)


def has_ring(axes: int, ways: int, devices: int) -> bool:
    """Say whether a product may be split into turns of a ring.

    Args:
      axes: how many mesh axes a collective goes over.
      devices: how many there are in all; 0 where no product is computed so, as on GPUs.
    """
    if not devices or axes != 1:
        return False
    return (ways == SMALL_RING and devices >= _LEAST_DEVICES) or ways in _WINDOWED_WAYS


def windowed_bytes(payload_bytes: int, ways: int) -> int:
    """Return what a device sends where a product is computed in turns of a ring.

    Shards go around in both directions: over n devices that moves n + 1 of them, where a gather or
    a reduce-scatter moves n - 1.
    """
    return payload_bytes * (ways + 1) // ways


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
    if kind is CollectiveKind.ALL_GATHER:
        return is_deep or payload_bytes <= _SMALL_GATHER
    is_sum = kind is CollectiveKind.REDUCE_SCATTER and hardware.chip.name not in _SCATTER
    return is_sum and (is_deep or is_square)
