"""A logical axis is declared and in use, and no rule says where it goes.

It is replicated, which may be meant; say so with `kv -> none`, and the next reader knows.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    axes: {embed: 64, kv: 16}
    rules:
      - embed -> fsdp
    arrays:
      key/kernel: bf16[embed kv]

Good:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    axes: {embed: 64, kv: 16}
    rules:
      - embed -> fsdp
      - kv -> none
    arrays:
      key/kernel: bf16[embed kv]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import AXIS_WITHOUT_RULE as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each declared axis that is in use and that no rule names."""
    ruled = context.axes_in_rules()
    if not ruled:
        return
    for axis in context.spec.logical_axes:
        if axis.name in ruled:
            continue
        notes = tuple(_users(context, axis.name))
        if notes:
            yield point(
                CODE,
                f"no rule names `{axis.name}`, so it is replicated",
                axis.span,
                "declared here",
                notes=notes,
                help=f"if that is meant, say so: `{axis.name} -> none`",
                subject=axis.name,
            )


def _users(context: Context, axis: str) -> Iterator[str]:
    """Yield a note on the arrays that have the axis, and one on the activations."""
    paths = [s.param.path for s in context.first if axis in s.logical_axes]
    if paths:
        yield described(paths)
    names = [each.name for each in context.spec.activations if axis in each.logical_axes]
    if names:
        yield f"activation{'s' if len(names) > 1 else ''} {listed(names)}"
