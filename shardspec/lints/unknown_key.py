"""A key means nothing here.

A misspelt key does nothing, so what it was for does not happen: `rule:` instead of `rules:`
would leave every array whole on every device. `shardspec schema` prints the keys for an editor,
and `shardspec explain rules` says what one of them is.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    polcy: {indivisible: keep}
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    policy: {indivisible: keep}
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_KEY as CODE

__all__ = ["CODE"]
