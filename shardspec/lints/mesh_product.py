"""Mesh sizes do not multiply to the device count.

JAX refuses such a mesh when the job starts, on the machine that is paid for; where it is the
smaller one, the devices left over stand idle. The arithmetic is shown with the sizes that would
fit; `rest` takes what the other axes leave over. The axes `@ dcn`
must multiply to the number of slices, or on GPUs divide the number of nodes.

Bad:
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 8}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: rest, tensor: 8}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import MESH_PRODUCT as CODE

__all__ = ["CODE"]
