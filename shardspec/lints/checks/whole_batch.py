"""An activation's `batch` is replicated, because another dimension's rule came first.

Put the rules of `batch` first: then weights use the axis for `embed`, and activations for `batch`.
This is a common mistake with FSDP. `embed -> fsdp` shards the weights and `batch -> fsdp` the
examples, and in an activation with both dimensions the first rule wins. If that is `embed`, every
device computes a part of the width of all examples.

Reported if `batch` loses to a later dimension. An earlier one may win on purpose: `expert batch
embed` is tokens grouped by expert. If this leaves mesh axes of the rule for `batch` unused, SHD220
reports it.

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
     rules:
    +  - batch -> fsdp
    -  - batch -> fsdp
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import named
from shardspec.ir.plan import ActivationSharding, DimSharding, Outcome
from shardspec.ir.spec import AxisRule
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected

#: What T5X, MaxText and the presets call the dimension of examples.
_BATCH = "batch"


class _Loss(NamedTuple):
    """Two rules of which the wrong one wins, with all that it happens to."""

    rule: AxisRule
    winner: AxisRule
    affected: Affected


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that takes the mesh axes of `batch` before it."""
    losses: dict[object, _Loss] = {}
    for plan in context.plans:
        for sharding in plan.activations:
            found = _lost_at(sharding)
            if found is not None:
                _, rule, winner = found
                key = (rule.span, winner.span, winner.logical_axis)
                loss = losses.setdefault(key, _Loss(rule, winner, Affected()))
                loss.affected.add(sharding, plan)
    for loss in losses.values():
        yield _finding(context, loss)


def lost_batch(sharding: ActivationSharding) -> DimSharding | None:
    """Return the dimension of an activation that this finding is about; None for no such one."""
    found = _lost_at(sharding)
    return None if found is None else sharding.dims[found[0]]


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
    rule, winner, affected = loss
    first = next(iter(affected.activations))
    spans = {each.name: each.span for each in context.spec.activations}
    return Diagnostic(
        codes.WHOLE_BATCH,
        f"`{_BATCH}` is replicated in {named('activation', affected.activations)} on"
        f" {named('target', affected.targets)}: `{winner}` comes first",
        labels_at(
            *context.own_first(
                (winner.span, f"`{winner.logical_axis}` takes it first"),
                (rule.span, f"and `{_BATCH}` finds it taken"),
            ),
            (spans.get(first), "every device has the full batch"),
        ),
        help=f"put `{rule}` above `{winner}`",
    )
