"""Padding makes an axis 10 % longer or more.

Devices hold, compute and send the padding as well. Use fewer devices for the axis, or another mesh
axis. With a `none` behind the last alternative the axis is not padded, and is replicated where it
does not divide. Padded heads or experts also change what the model computes, unless their weights
stay zero.

Bad:
    shardspec: 1
    mesh: {tensor: 8}
    policy: {indivisible: pad}
    rules:
      - heads -> tensor
      - embed, kv -> none
    arrays:
      attention/query: bf16[embed=768 heads=12 kv=64]

Good:
    -  - heads -> tensor
    +  - heads -> tensor | none
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Padding, finding, paddings


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis that is padded by a tenth or more."""
    for found in paddings(context):
        if found.is_much:
            yield finding(context, codes.MUCH_PADDING, found, _help(found))


def _help(found: Padding) -> str:
    rule = found.dim.rule
    if rule is None:
        return "split it over fewer devices"
    last = target_text(rule.mesh_axes)
    return f"split it over fewer devices; or `{found.axis} -> {last} | none` does not pad it"
