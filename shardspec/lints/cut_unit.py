"""A shard would hold part of a unit, such as half a head.

The size divides, the units do not: 512 over 16 is 32, which is half of a 64-wide head. Code
that reshapes to heads then moves data between devices on every step, or is refused. A rule does
not fire where it would cut a unit; under `policy: {indivisible: keep}` it does.

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
    shardspec: 1
    mesh: {model: 8}
    axes:
      joined_kv: {size: 512, unit: 64}
    rules:
      - joined_kv -> model
    arrays:
      attn/key/kernel: bf16[_=64 joined_kv]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import CUT_UNIT as CODE
from shardspec.lints.context import Context
from shardspec.lints.uneven import Uneven, finding, uneven


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis whose units a rule would cut."""
    for case in uneven(context):
        if case.cuts_unit:
            yield finding(CODE, case, _message(case))


def _message(case: Uneven) -> str:
    shard = case.size // case.ways
    share = shard / case.unit
    return (
        f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard}, which is {share:.3g} of a"
        f" unit of {case.unit}, on {case.targets_text}"
    )
