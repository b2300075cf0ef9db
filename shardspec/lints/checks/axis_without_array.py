"""A rule is for a logical axis that nothing has: no array, no pattern, no activation.

Remove the rule, or fix its name. If only code has this axis, give it a size under `axes` or list an
activation with it. Rules of presets may name axes that this model does not have. If the name is a
typo of an axis that arrays have and no rule places, SHD202 reports it.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
      - joined_kv -> tensor
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    -  - joined_kv -> tensor
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import did_you_mean
from shardspec.lints.context import Context
from shardspec.lints.evidence.entries import lone_axes, respelling


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of rules that nothing has."""
    known = context.axes_heard_of
    for lone in lone_axes(context):
        if lone.meant is None:
            added = quote.added("axes", lone.name, "SIZE")
            out = f"take the rule out; or, if code has it, add {added}"
            near = did_you_mean(lone.name, known)
            yield point(
                codes.AXIS_WITHOUT_ARRAY,
                f"nothing has the logical axis `{lone.name}` of this rule",
                lone.places[0],
                f"no array, activation or {quote.entry_of('axes')} has it",
                help=f"{near} else {out}" if near else out,
                fix=respelling(context, lone),
                subject=lone.name,
            )
