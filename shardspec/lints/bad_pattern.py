"""A glob or regex cannot be read.

The pattern is left out, so the arrays that it was for have no names. A glob knows `*` within one
component, `**` for any number of components, `{a,b}` and `{0..23}`; behind `re:`, and in `match:`,
stands a Python regular expression.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
      "re:.*/w[oi/kernel": mlp _
    arrays:
      mlp/wi/kernel: bf16[64, 128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "re:.*/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_PATTERN as CODE

__all__ = ["CODE"]
