"""A rule shards no array and no activation on any target, although some have its axis.

Move the rule up, or use another mesh axis. Whenever the rule is tried, its mesh axes are taken by
an earlier rule or do not divide, so it has no effect. A rule for an axis that nothing has is
SHD230. A rule that loses to others may be for activations. If the spec lists no activations, it is
reported only if its arrays are large and no `none` follows it. A list of axes counts as one rule.
Where the loss leaves a mesh axis idle and costs memory, SHD226 says so.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - batch -> data
      - heads -> model
      - kv -> model
    arrays:
      attention/query: bf16[_=64 heads=8 _=64]
    activations:
      query: batch _ heads kv

Good:
    -  - kv -> model
    +  - kv -> none
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import Outcome
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import cost
from shardspec.lints.evidence.rules import RuleUse, idle_rules, on_targets


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that is tried, and always loses or does not divide."""
    for use in idle_rules(context):
        busy, refused = use.outcomes[Outcome.BUSY], use.outcomes[Outcome.INDIVISIBLE]
        if refused and use.is_settled:
            continue
        is_loss = use.is_open and _is_for_large(use, context)
        if refused or (busy and use.contended and (context.spec.activations or is_loss)):
            yield _finding(use, context)


def _is_for_large(use: RuleUse, context: Context) -> bool:
    """Say whether the arrays that it is for are large, where they are most."""
    most = cost(context, use.affected.arrays)
    return most is not None and is_large(most.bytes, most.held)


def _finding(use: RuleUse, context: Context) -> Diagnostic:
    finding = Diagnostic(
        codes.RULE_WITHOUT_ARRAY,
        f"`{use}` shards nothing{on_targets(len(context.plans))}: {_why(use)}",
        use.labels("never fires"),
        notes=(use.note(),),
        help=_help(use, context),
    )
    paths = tuple(use.affected.arrays)
    most = cost(context, paths)
    if most is None:
        return finding
    return replace(finding, notes=(f"{use.note()}; {most}",), arrays=paths, bytes=most.bytes)


def _why(use: RuleUse) -> str:
    reasons = []
    axes = use.rule.right
    if use.outcomes[Outcome.BUSY]:
        holders = dict.fromkeys(rule.logical_axis for rule in use.winners if rule.mesh_axes)
        verb = "has" if len(holders) == 1 else "have"
        reasons.append(
            f"{listed(holders, limit=3)} always {verb} {listed(use.contended)} before it"
        )
    if use.refused is not None:
        reasons.append(
            f"`{axes}` does not divide `{use.refused.logical_axis}` = {use.refused.size}"
        )
    return "; ".join(reasons)


def _help(use: RuleUse, context: Context) -> str:
    rules = context.spec.axis_rules
    spans = {rule.span for rule in rules if rule in use.rules}
    axes = {rule.logical_axis for rule in use.rules}
    others = {r.logical_axis for r in rules if r.logical_axis in axes and r.span not in spans}
    names = ", ".join(rule.logical_axis for rule in use.rules)
    out = "remove it: no sharding changes"
    way_out = out if others == axes else f"`{names} -> none` says what happens"
    higher = "; or put it before what fires first" if use.outcomes[Outcome.BUSY] else ""
    return way_out + higher
