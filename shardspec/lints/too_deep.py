"""Nesting or aliases go too deep, or in a circle.

A spec is never more than a few levels deep. Thousands of brackets make some readers crash, an
alias inside its own anchor never ends, and a few lines of aliases of aliases stand for more
text than there is memory.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules: &all
      - mlp -> tensor
      - *all
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

from shardspec.diagnostics.codes import TOO_DEEP as CODE

__all__ = ["CODE"]
