"""Mesh axes do not divide a dimension.

JAX refuses uneven shards for inputs and outputs of `jit`, and names neither array nor rule.
Here the next alternative of the rule is tried; this finding is for what ends replicated for that
reason, or under `policy: {indivisible: keep}` would be refused. The product of the axes counts,
not one after the other. A final `none` (`kv_heads -> tensor | none`) says that replication is
meant where it does not divide.

Bad:
    shardspec: 1
    mesh: {tensor: 16}
    rules:
      - kv_heads -> tensor
    arrays:
      attn/k: bf16[kv_heads=8 _=128]

Good:
    shardspec: 1
    mesh: {tensor: 16}
    rules:
      - kv_heads -> tensor | none
    arrays:
      attn/k: bf16[kv_heads=8 _=128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import INDIVISIBLE as CODE
from shardspec.lints.context import Context
from shardspec.lints.uneven import Uneven, finding, uneven


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis, size and rule that do not go together."""
    for case in uneven(context):
        if not case.cuts_unit:
            yield finding(CODE, case, _message(case))


def _message(case: Uneven) -> str:
    return (
        f"`{case.axis}` = {case.size} does not divide over {case.mesh_text} on {case.targets_text}"
    )
