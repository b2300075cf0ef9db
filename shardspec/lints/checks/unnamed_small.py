"""The dimensions of small arrays, such as norms and biases, have no names.

They are replicated on every device, and together use less than 2 % of its memory. Larger arrays
without names are SHD205.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/scale: bf16[8]

Good:
       "**/wi/kernel": _ mlp
    +replicate:
    +  - {path: "**/scale", because: small}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.lints.checks.unnamed_array import is_little, large_and_small, of_small
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for all of them."""
    _, small = context.once(large_and_small)
    if small and is_little(context, small):
        yield of_small(context, small, codes.UNNAMED_SMALL)
