"""The rules of a spec for its examples: what all mesh axes but those do is for the model."""

from __future__ import annotations

from shardspec.ir.spec import AxisRule, Spec

#: Part of the name: `batch`, `microbatch`, `activation_batch`.
_BATCH = "batch"


def batch_rules(spec: Spec) -> tuple[AxisRule, ...]:
    """Return the rules for logical axes that say batch; none where code splits the examples."""
    return tuple(rule for rule in spec.axis_rules if is_batch(rule.logical_axis))


def is_batch(logical_axis: str) -> bool:
    """Say whether the name of a logical axis says batch."""
    return _BATCH in logical_axis.lower()
