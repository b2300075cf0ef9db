"""A rule fires for nothing it is for: no array and no activation, on any target.

Whenever it is tried, its mesh axes are taken by a rule above it, or do not divide, and another rule
is taken instead. The rule has no effect; most often it was meant to stand higher, or for another
mesh axis. A rule for an axis that nothing here has is SHD230. One that loses to others may be for
activations; where the spec lists none, it is told if the arrays that it is for are large, and no
`none` behind it says that they are meant to be whole there. A list of axes counts as one rule.
Where the loss leaves a mesh axis idle and costs memory, SHD226 says so.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - batch -> data
      - heads -> model
      - kv -> model
    arrays:
      attention/query: bf16[_=64 heads=8 kv=64]
    activations:
      query: batch _ heads kv

Good:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - batch -> data
      - heads -> model
      - kv -> none
    arrays:
      attention/query: bf16[_=64 heads=8 kv=64]
    activations:
      query: batch _ heads kv
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardspec.analysis.large import is_large
from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import RULE_WITHOUT_ARRAY as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.plan import Outcome
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.damage import damage
from shardspec.lints.rule_fates import Fate, idle_rules


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that is tried, and always loses or does not divide."""
    for fate in idle_rules(context):
        busy = fate.outcomes[Outcome.BUSY]
        refused = fate.outcomes[Outcome.INDIVISIBLE]
        if refused and fate.is_settled:
            continue
        is_loss = fate.is_open and _is_for_large(fate, context)
        if refused or (busy and (context.spec.activations or is_loss)):
            yield _finding(fate, context)


def _is_for_large(fate: Fate, context: Context) -> bool:
    """Say whether the arrays that it is for are large, where they are most."""
    cost = damage(context, fate.paths)
    return cost is not None and is_large(cost.bytes, cost.held)


def _finding(fate: Fate, context: Context) -> Diagnostic:
    labels = [] if fate.rule.span is None else [Label(fate.rule.span, "never fires")]
    for span in dict.fromkeys(rule.span for rule in fate.winners):
        if span is not None and span != fate.rule.span:
            labels.append(Label(span, "fires first", primary=False))
    finding = Diagnostic(
        CODE,
        f"`{fate.text}` fires for nothing{_where(len(context.plans))}: {_why(fate)}",
        tuple(labels[:4]),
        notes=(fate.subjects(),),
        help=_help(fate, context),
    )
    cost = damage(context, fate.paths)
    if cost is None:
        return finding
    notes = (f"{fate.subjects()}; {cost}",)
    return replace(finding, notes=notes, arrays=tuple(fate.paths), bytes=cost.bytes)


def _where(count: int) -> str:
    return f" on any of {count} targets" if count > 1 else ""


def _why(fate: Fate) -> str:
    reasons = []
    axes = target_text(fate.rule.mesh_axes)
    if fate.outcomes[Outcome.BUSY]:
        holders = dict.fromkeys(rule.logical_axis for rule in fate.winners if rule.mesh_axes)
        verb = "has" if len(holders) == 1 else "have"
        reasons.append(f"{listed(holders, limit=3)} always {verb} `{axes}` before it")
    if fate.refused is not None:
        reasons.append(
            f"`{axes}` does not divide `{fate.refused.logical_axis}` = {fate.refused.size}"
        )
    return "; ".join(reasons)


def _help(fate: Fate, context: Context) -> str:
    spans = {rule.span for rule in context.spec.axis_rules if rule in fate.rules}
    axes = {rule.logical_axis for rule in fate.rules}
    others = {
        rule.logical_axis
        for rule in context.spec.axis_rules
        if rule.logical_axis in axes and rule.span not in spans
    }
    names = ", ".join(rule.logical_axis for rule in fate.rules)
    out = "take it out: every answer stays as it is"
    way_out = out if others == axes else f"`{names} -> none` says what happens"
    higher = "; or put it before what fires first" if fate.outcomes[Outcome.BUSY] else ""
    return way_out + higher
