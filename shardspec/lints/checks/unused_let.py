"""A number that `let` names is never used.

Use the name in place of the number in a mesh, an axis or an array, or remove it. Changing an unused
number has no effect.

Bad:
    shardspec: 1
    let: {tp: 4}
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
      - embed -> data
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    -mesh: {data: 2, tensor: 4}
    +mesh: {data: 2, tensor: tp}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each name of the spec's own `let` that nothing uses."""
    for let in context.spec.lets:
        if not let.is_used and context.is_own(let.span):
            yield point(
                codes.UNUSED_LET,
                f"nothing uses `{let.name}`",
                let.span,
                "no mesh, axis or array names it",
                help=f"write `{let.name}` in place of its number, or remove it",
                subject=let.name,
            )
