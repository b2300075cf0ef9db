"""An array's type needs a size that no axis states.

`bf16[embed mlp]` is an array only when both sizes are known, from `axes:` or in the type itself:
`bf16[embed mlp=128]`. The array is left out of the plan, and its bytes out of every total. A size
may be a product of others (`heads * kv`), in a chain of any length, but not of itself. A product of
2^63 or more is no size of an array: it counts as 2^63, and its arrays stay in the plan.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64}
    rules:
      - embed -> data
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[embed mlp=128]
      mlp/wo/kernel: bf16[mlp embed]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - embed -> data
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[embed mlp]
      mlp/wo/kernel: bf16[mlp embed]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_SIZE as CODE

__all__ = ["CODE"]
