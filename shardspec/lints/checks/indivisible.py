"""Mesh axes do not divide a dimension.

JAX refuses uneven shards for inputs and outputs of `jit`, and names neither array nor rule.
Here the next alternative of the rule is tried; this finding is for what ends replicated for that
reason, or under `policy: {indivisible: keep}` would be refused. The product of the axes counts,
not one after the other. A final `none` (`kv_heads -> tensor | none`) says that replication is
meant where it does not divide.

The notes say what replication costs, what padding would cost, where the dimension divides, and,
where the units are fewer than the devices (8 heads of keys over 16), how each device could hold
one of them all the same.

Bad:
    shardspec: 1
    mesh: {tensor: 16}
    rules:
      - kv_heads -> tensor
    arrays:
      attn/k: bf16[kv_heads=8 _=128]

Good:
    -  - kv_heads -> tensor
    +  - kv_heads -> tensor | none
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.plan import uneven_axes
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import AxisCase, finding, uneven


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis, size and rule that do not go together."""
    for found in uneven(context):
        is_of_stages = found.case.axis in uneven_axes(context.spec)
        if not found.cuts_unit and not is_of_stages:
            yield finding(context, codes.INDIVISIBLE, found, _message(found.case))


def _message(case: AxisCase) -> str:
    of_units = f" in whole {case.grain}s of {case.unit}" if case.unit > 1 else ""
    return (
        f"`{case.axis}` = {case.size} does not divide over {case.mesh_text}{of_units} on"
        f" {case.targets_text}"
    )
