"""No finding has this name.

The finding that was meant stays as loud as it was. Findings go by name or code: `indivisible` or
`SHD301`, and `lints:` and `[tool.shardspec.lints]` take the start of a code too, for all of a
family: `SHD3`. `shardspec explain --list` shows them all.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    lints: {indivisable: warn}
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    lints: {indivisible: warn}
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_LINT as CODE

__all__ = ["CODE"]
