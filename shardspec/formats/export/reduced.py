"""The flat list of rules, whole or reduced to what counts on one target.

Other tools have no word for a mesh axis that only another machine has, nor for a rule that is
passed over where it does not divide. On one mesh and for known arrays both can often be said
without: the absent axis is dropped from its tuple, and a rule that never fires is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from shardspec.formats.export.exported import Request
from shardspec.ir.plan import Attempt, Outcome, ShardingPlan
from shardspec.ir.spec import AxisRule


def rules_for(request: Request) -> tuple[AxisRule, ...]:
    """Return the rules in order: all as they stand, or those that count on the target.

    Invariants:
      same: the reduced list gives every array of the plan the same answer.
    """
    return reduced(request.plan) if request.is_resolved else request.spec.axis_rules


def reduced(plan: ShardingPlan) -> tuple[AxisRule, ...]:
    """Return the rules that count on the plan's target, without axes that it lacks."""
    here = plan.mesh.sizes
    known = plan.spec.mesh_axis_names
    idle = _never_fitting(plan)
    kept = []
    for rule in plan.spec.axis_rules:
        present = tuple(axis for axis in rule.mesh_axes if axis in here)
        is_dead = bool(rule.mesh_axes) and (not present or not set(rule.mesh_axes) <= known)
        if not is_dead and rule not in idle:
            kept.append(replace(rule, mesh_axes=present))
    return tuple(kept)


def _never_fitting(plan: ShardingPlan) -> frozenset[AxisRule]:
    """Return the rules that were passed over for a size, and fired nowhere."""
    by_outcome: dict[Outcome, set[AxisRule]] = defaultdict(set)
    for attempt in _attempts(plan):
        if attempt.rule is not None:
            by_outcome[attempt.outcome].add(attempt.rule)
    return frozenset(by_outcome[Outcome.INDIVISIBLE] - by_outcome[Outcome.TAKEN])


def _attempts(plan: ShardingPlan) -> Iterator[Attempt]:
    dims = [dim for sharding in plan.params for dim in sharding.dims]
    dims += [dim for sharding in plan.activations for dim in sharding.dims]
    for dim in dims:
        yield from dim.attempts
