"""Nothing uses a number that `let` names.

It was meant for a mesh, an axis or an array that still has its number written out, so that changing
the name changes nothing there; or what used it is gone.

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
                help=f"write `{let.name}` where its number stands, or take it out",
                subject=let.name,
            )
