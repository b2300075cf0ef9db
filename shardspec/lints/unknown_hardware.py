"""The catalogue has no such hardware.

Mesh sizes are checked against the number of devices and their wiring, and neither is known. A
machine is a chip and a size: `tpu v4 4x8x8`, `2 * tpu v6e 8x8` (two slices), `4 * h100` (four
nodes), `8 cpu`, or an accelerator type such as `v4-512`.

Bad:
    shardspec: 1
    hardware: 2 * h1000
    mesh: {data: rest, tensor: 8}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    hardware: 2 * h100
    mesh: {data: rest, tensor: 8}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_HARDWARE as CODE

__all__ = ["CODE"]
