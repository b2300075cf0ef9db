"""An array or a mesh of 2^63 elements or more.

XLA, like every machine, counts elements and devices in 64 bits with a sign. What is larger is a
slip of the fingers: a size with a digit too many, or one that stands for a product and is taken
once more. The array is left out, and nothing is shown of a target with such a mesh.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      wi/kernel: bf16[_=4096 mlp=16384]
      wo/kernel: bf16[mlp=400000000000000 _=400000000000000]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      wi/kernel: bf16[_=4096 mlp=16384]
      wo/kernel: bf16[mlp=16384 _=4096]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BEYOND_COUNT as CODE

__all__ = ["CODE"]
