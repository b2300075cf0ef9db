"""A shard would hold part of a unit, such as half a head.

The size divides, the units do not: 512 over 16 is 32, which is half of a 64-wide head. Code
that reshapes to heads then moves data between devices on every step, or is refused. A rule does
not fire where it would cut a unit; under `policy: {indivisible: keep}` it does.

Query, key and value in one array are `parts` of one axis (SHD313). Where those are interleaved, a
shard holds whole groups, each with its share of all of them.

Bad:
    shardspec: 1
    mesh: {model: 16}
    axes:
      joined_kv: {size: 512, unit: 64}
    rules:
      - joined_kv -> model
    arrays:
      attn/key/kernel: bf16[_=64 joined_kv]

Good:
    -mesh: {model: 16}
    +mesh: {model: 8}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import AxisCase, finding, uneven


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis whose units a rule would cut."""
    for found in uneven(context):
        if found.cuts_unit and not found.cuts_parts:
            yield finding(context, codes.CUT_UNIT, found, _message(found.case))


def _message(case: AxisCase) -> str:
    shard = case.size // case.ways
    return (
        f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard},"
        f" {_share(shard, case)} of {case.unit}, on {case.targets_text}"
    )


def _share(shard: int, case: AxisCase) -> str:
    """Return "half a unit", or "1.5 units"."""
    if shard * 2 == case.unit:
        return f"half a {case.grain}"
    share = shard / case.unit
    return f"{share:.3g} {case.grain}s" if share > 1 else f"{share:.3g} of a {case.grain}"
