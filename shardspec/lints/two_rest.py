"""More than one mesh axis takes the rest.

What is left over can be shared out in many ways, and each is another layout. One axis may say
`rest`; the others need a number.

Bad:
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: rest, tensor: rest}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: rest, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import TWO_REST as CODE

__all__ = ["CODE"]
