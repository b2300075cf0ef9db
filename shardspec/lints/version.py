"""The document asks for another language version.

A later version may give the same words another meaning, so the answer would be a guess. This
shardspec reads version 1.

Bad:
    shardspec: 2
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import VERSION as CODE

__all__ = ["CODE"]
