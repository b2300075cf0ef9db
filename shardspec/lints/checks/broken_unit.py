"""The size of an axis is not a multiple of its unit.

A `unit` is what must stay together: one head of 64, so that 4096 is 64 heads. An axis of 4096 with
a unit of 65 ends in a part of one; either the size or the unit is wrong, and no mesh axis divides
it in whole units.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    axes:
      joined_kv: {size: 4096, unit: 65}
    rules:
      - joined_kv -> none
    arrays:
      query/kernel: bf16[_=64 joined_kv]

Good:
    -  joined_kv: {size: 4096, unit: 65}
    +  joined_kv: {size: 4096, unit: 64}
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.ir.spec import axis_of, divisors
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import near_multiples


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis whose size its unit does not divide."""
    for axis in context.spec.logical_axes:
        whole = context.axes.get(axis_of(axis.name), axis)
        if whole is not axis and whole.span == axis.span:
            continue
        parts = axis.parts
        broken = [each for each in parts.sizes if each[1] % parts.unit] if parts else []
        if parts is not None and broken:
            name, size = broken[0]
            yield point(
                codes.BROKEN_UNIT,
                f"the part `{name}` of `{axis.name}` is {size}: {size / parts.unit:.4g} units of"
                f" {parts.unit}",
                axis.span,
                "declared here",
                help=f"a unit that divides {math.gcd(*(each for _, each in parts.sizes))}, as every"
                " part is a multiple of it",
            )
            continue
        if axis.size and axis.size % axis.unit:
            units = sorted(divisors(axis.size), key=lambda unit: abs(unit - axis.unit))
            sizes = near_multiples(axis.size, axis.unit)
            yield point(
                codes.BROKEN_UNIT,
                f"`{axis.name}` = {axis.size} is {axis.size / axis.unit:.4g} units of {axis.unit}",
                axis.span,
                "declared here",
                help=f"a unit of {units[0]}, or {axis.name} = {' or '.join(map(str, sizes))}",
            )
