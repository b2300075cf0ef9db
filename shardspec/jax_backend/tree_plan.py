"""The plan of a live tree, and what is wrong with its arrays, raised once for all of them.

New answers are checked a few at a time, one per distinct pair of shape and names. Only when one is
at fault is the whole tree planned, so that the message can say how many arrays it touches, which is
the first, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, sort_key
from shardspec.diagnostics import codes as c
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.jax_backend.trees import params_of
from shardspec.report.plan import Plan
from shardspec.resolve.resolver import ArrayResolver

#: Findings about one array; the others are about the spec, or a tree as a whole.
_OF_ONE_ARRAY = frozenset(
    (
        c.UNNAMED_ARRAY,
        c.RANK_MISMATCH,
        c.REPEATED_AXIS,
        c.INDIVISIBLE,
        c.SIZE_MISMATCH,
        c.CUT_UNIT,
        c.CUT_PART,
        c.MISSING_PARENT,
        c.DERIVED_MISFIT,
    )
)


def plan_of(arrays: ArrayResolver, tree: Any) -> Plan:
    """Return the plan for the arrays of a pytree."""
    resolved = arrays.resolve_all(params_of(tree))
    return Plan(arrays.spec, arrays.target, resolved, is_checked=False)


def raise_faults(arrays: ArrayResolver, fresh: Sequence[ParamSharding], tree: Any) -> None:
    """Raise every finding about `tree` if one of `fresh` is an error.

    Args:
      fresh: one array for each answer that was not seen before; paths do not matter.
    """
    if _is_at_fault(arrays, fresh):
        raise_errors(pipeline.tree_findings(plan_of(arrays, tree)))


def plan_faults(arrays: ArrayResolver, plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return the errors about arrays that `shardings` of the tree would raise."""
    # The resolver keeps equal dims as one object, which lives as long as it does.
    distinct = {kind_of(each): each for each in plan.arrays}
    if not distinct or not _is_at_fault(arrays, tuple(distinct.values())):
        return ()
    kept = {*_OF_ONE_ARRAY, c.UNKNOWN_LOGICAL_AXIS}
    plan = pipeline.with_lone_named(plan)
    found = pipeline.findings(pipeline.with_axes_of_code(plan), [plan]).loud
    errors = (each for each in found if each.is_error and each.code in kept)
    return tuple(dict.fromkeys(map(pipeline.for_trees, sorted(errors, key=sort_key))))


def kind_of(sharding: ParamSharding) -> tuple[object, ...]:
    """Return what arrays of one answer have in common, as far as findings about one go."""
    derivation = sharding.derivation
    fits = derivation is None or (derivation.parent is not None and not derivation.fault)
    return sharding.dims, sharding.origin, sharding.mismatch, fits


def _is_at_fault(arrays: ArrayResolver, sample: Sequence[ParamSharding]) -> bool:
    plan = ShardingPlan(arrays.spec, arrays.target, tuple(sample))
    unknown = {name for sharding in sample for name in sharding.logical_axes if name}
    unknown -= declared_axes(arrays)
    suspects = _OF_ONE_ARRAY | ({c.UNKNOWN_LOGICAL_AXIS} if unknown else set())
    found = pipeline.findings(arrays.spec, [plan]).loud
    return any(diagnostic.is_error and diagnostic.code in suspects for diagnostic in found)


def declared_axes(arrays: ArrayResolver) -> set[str]:
    """Return the logical axes that a rule or an entry of `axes` knows."""
    declared = {axis.name for axis in arrays.spec.logical_axes}
    return declared.union(arrays.table.by_axis)


def raise_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Raise all of `diagnostics` if one of them is an error."""
    found = tuple(diagnostics)
    if any(diagnostic.is_error for diagnostic in found):
        raise ShardspecError(found)
