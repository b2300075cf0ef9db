"""One path stands for two arrays.

Two entries expand to the same path, or an inline entry repeats one of a manifest. A tree has one
array at a path; the first counts, and every total is without the second.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      "layers_{0..3}/wi/kernel": bf16[_=64 mlp=128]
      layers_3/wi/kernel: bf16[_=64 mlp=256]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      "layers_{0..2}/wi/kernel": bf16[_=64 mlp=128]
      layers_3/wi/kernel: bf16[_=64 mlp=256]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import DUPLICATE_ARRAY as CODE

__all__ = ["CODE"]
