"""A submesh does not tile the slice.

One copy of the model takes a tile of (x, y, z, core). Unless every number divides the slice in
that dimension, some chips belong to no tile, or a tile wraps around and its collectives cross
chips of another. The tiles of the same size that do fit are listed.

Bad:
    shardspec: 1
    hardware: tpu v4 4x4x8
    mesh: {data: rest, model: submesh 3x2x2x1}
    rules:
      - mlp -> model
    arrays:
      mlp/kernel: bf16[_=64 mlp=96]

Good:
    shardspec: 1
    hardware: tpu v4 4x4x8
    mesh: {data: rest, model: submesh 2x2x2x1}
    rules:
      - mlp -> model
    arrays:
      mlp/kernel: bf16[_=64 mlp=96]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import SUBMESH_TILING as CODE

__all__ = ["CODE"]
