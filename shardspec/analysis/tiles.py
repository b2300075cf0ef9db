"""What an array takes in the memory of a TPU, which is handed out in tiles.

A tile has 8 rows (sublanes) of 128 elements (lanes). The compiler chooses which dimension runs
along the lanes and which along the sublanes, takes the two that waste least, fills them up to
whole tiles, and takes a lower tile (4, 2, 1 rows; as many as fill 32 bits of a column) for fewer
rows. So a short dimension costs nothing while two others fill the tiles.

Source: Cloud TPU performance guide (cloud.google.com/tpu/docs/performance-guide), padding to
8 x 128; XLA, tiled layout (openxla.org/xla/tiled_layout); the layouts and argument sizes that
libtpu 0.0.52 compiles for v5e and v5p, to which tests/differential/test_libtpu_tiles.py holds it.
"""

from __future__ import annotations

import math

from shardspec.ir.param import DTYPE_BITS, Shape, array_bytes

LANES = 128
SUBLANES = 8


def tiled_bytes(shape: Shape, dtype: str) -> int | None:
    """Return the bytes of an array with its tiles filled up; None for dtypes not known here.

    >>> tiled_bytes((4096, 16), "bf16"), tiled_bytes((8, 64), "bf16"), tiled_bytes((16,), "f32")
    (131072, 2048, 512)
    """
    bits = DTYPE_BITS.get(dtype, 0)
    if bits not in {8, 16, 32}:
        return None
    if not shape or 0 in shape:
        return array_bytes(shape, dtype)
    packing = 32 // bits
    if len(shape) == 1:
        return _up(shape[0], LANES * packing) * bits // 8
    rest = math.prod(shape)
    least = min(
        rest // (lanes * rows) * _up(lanes, LANES) * _up(rows, _tile_rows(rows, packing))
        for lanes, rows in _pairs(shape)
    )
    return least * bits // 8


def _pairs(shape: Shape) -> set[tuple[int, int]]:
    """Return every choice of two dimensions, as sizes."""
    return {
        (one, other)
        for at, one in enumerate(shape)
        for beside, other in enumerate(shape)
        if at != beside
    }


def _tile_rows(rows: int, packing: int) -> int:
    """Return the rows of the tile: a power of two, 8 at most."""
    return min(SUBLANES, max(packing, 1 << (rows - 1).bit_length()))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
