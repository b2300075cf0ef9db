"""Arrays that are laid out alike, taken together: ten thousand arrays are a few dozen groups."""

from __future__ import annotations

from shardspec.ir.plan import Alike as Alike
from shardspec.ir.plan import ShardingPlan


def alike(plan: ShardingPlan) -> tuple[Alike, ...]:
    """Return the arrays of a plan, in groups, in order of the first of each."""
    return plan.alike
