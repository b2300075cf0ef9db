"""An activation's `batch` is whole, because another dimension's rule came first.

The classic of FSDP: `embed -> fsdp` splits the weights, `batch -> fsdp` the examples, and in an
activation that has both, the rule that stands first wins. If that is `embed`, every device works
on all examples of its group, on a part of their width. Put the rules of `batch` above it: then
weights keep the axis for `embed`, and activations for `batch`.

Looked at are dimensions called `batch` that lose to a dimension behind them. One before it is
meant to win: `expert batch embed` is tokens among their experts. Where mesh axes of the rule for
`batch` stand idle then, SHD220 says so.

Bad:
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - embed -> fsdp
      - batch -> fsdp
    activations:
      tokens: batch _
      residual: batch _ embed

Good:
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - batch -> fsdp
      - embed -> fsdp
    activations:
      tokens: batch _
      residual: batch _ embed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import WHOLE_BATCH as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.plan import ActivationSharding, DimSharding, Outcome, ShardingPlan
from shardspec.ir.spec import AxisRule
from shardspec.lints.context import Context

#: What T5X, MaxText and the presets call the dimension of examples.
_BATCH = "batch"


@dataclass(slots=True)
class _Loss:
    """Two rules of which the wrong one wins, with all that it happens to."""

    rule: AxisRule
    winner: AxisRule
    activations: dict[str, None] = field(default_factory=dict)
    targets: dict[str, None] = field(default_factory=dict)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that takes the mesh axes of `batch` before it."""
    losses: dict[object, _Loss] = {}
    for plan in context.plans:
        for name, rule, winner in _lost(plan):
            key = (rule.span, winner.span, winner.logical_axis)
            loss = losses.setdefault(key, _Loss(rule, winner))
            loss.activations.setdefault(name)
            loss.targets.setdefault(plan.target.name)
    for loss in losses.values():
        yield _finding(context, loss)


def _lost(plan: ShardingPlan) -> Iterator[tuple[str, AxisRule, AxisRule]]:
    for sharding in plan.activations:
        found = _winner(sharding)
        if found is not None:
            yield sharding.activation.name, *found


def lost_batch(sharding: ActivationSharding) -> DimSharding | None:
    """Return the dimension of an activation that this finding is about; None for no such one."""
    found = _lost_at(sharding)
    return None if found is None else sharding.dims[found[0]]


def _winner(sharding: ActivationSharding) -> tuple[AxisRule, AxisRule] | None:
    """Return the rule of `batch` that came too late, and the one before it."""
    found = _lost_at(sharding)
    return None if found is None else found[1:]


def _lost_at(sharding: ActivationSharding) -> tuple[int, AxisRule, AxisRule] | None:
    """Return the index of the dimension, the rule that came too late, and the one before it."""
    for index, dim in enumerate(sharding.dims):
        if dim.logical_axis != _BATCH or dim.taken is not None:
            continue
        for attempt in dim.attempts:
            if attempt.outcome is Outcome.BUSY and (attempt.blocked_by or 0) > index:
                won = sharding.dims[attempt.blocked_by or 0]
                if won.ways > 1 and won.rule is not None and attempt.rule is not None:
                    return index, attempt.rule, won.rule
    return None


def _finding(context: Context, loss: _Loss) -> Diagnostic:
    rule, winner = loss.rule, loss.winner
    sides = [
        (winner.span, f"`{winner.logical_axis}` takes it first"),
        (rule.span, f"and `{_BATCH}` finds it taken"),
    ]
    sides.sort(key=lambda side: not context.is_own(side[0]))
    labels = [
        Label(span, text, primary=index == 0)
        for index, (span, text) in enumerate((s, t) for s, t in sides if s is not None)
    ]
    plural = "s" if len(loss.activations) > 1 else ""
    first = next(iter(loss.activations))
    spans = {each.name: each.span for each in context.spec.activations}
    place = spans.get(first)
    if place is not None:
        labels.append(Label(place, "every device has the whole batch", primary=not labels))
    targets = f"target{'s' if len(loss.targets) > 1 else ''} {listed(loss.targets)}"
    return Diagnostic(
        CODE,
        f"`{_BATCH}` is whole in activation{plural} {listed(loss.activations)} on {targets}:"
        f" `{winner}` comes first",
        tuple(labels),
        help=f"put `{rule}` above `{winner}`",
    )
