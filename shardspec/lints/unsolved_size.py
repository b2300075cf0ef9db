"""A mesh size needs hardware to be known.

`rest` is what the other axes leave of the machine's devices, and a submesh is a tile of its
torus. Without `hardware` there is neither. The size counts as 1 until then.

Bad:
    shardspec: 1
    mesh: {data: rest, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    hardware: 8 cpu
    mesh: {data: rest, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNSOLVED_SIZE as CODE

__all__ = ["CODE"]
