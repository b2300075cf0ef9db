"""A logical axis is declared and used, but no rule places it.

Add a rule for it. Its dimensions are replicated; if that is intended, write `kv -> none`.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    axes: {embed: 64, kv: 16}
    rules:
      - embed -> fsdp
    arrays:
      key/kernel: bf16[embed kv]

Good:
       - embed -> fsdp
    +  - kv -> none
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import named
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each declared axis that is in use and that no rule names."""
    ruled = context.axes_in_rules
    if not ruled:
        return
    for axis in context.spec.logical_axes:
        if axis.name in ruled:
            continue
        paths = context.paths_with(axis.name)
        activations = context.activations_with(axis.name)
        if paths or activations:
            finding = point(
                codes.AXIS_WITHOUT_RULE,
                f"no rule names `{axis.name}`, so it is replicated",
                axis.span,
                "declared here",
                help=f"if that is intended, write: `{axis.name} -> none`",
                subject=axis.name,
            )
            finding = with_cost(finding, context, paths)
            more = (named("activation", activations),) if activations else ()
            yield replace(finding, notes=(*finding.notes, *more))
