"""What is wrong with the arrays of a live tree, raised once for all of them.

New answers are checked a few at a time, one per distinct pair of shape and names. Only when
one is at fault is the whole tree planned, so that the message can say how many arrays it
touches, which is the first, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics import codes as c
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.jax_backend.arrays import params_of
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
    )
)


def plan_of(arrays: ArrayResolver, tree: Any) -> ShardingPlan:
    """Return the plan for the arrays of a pytree."""
    resolved = tuple(arrays.resolve(param) for param in params_of(tree))
    return ShardingPlan(arrays.spec, arrays.target, resolved)


def raise_faults(arrays: ArrayResolver, fresh: Sequence[ParamSharding], tree: Any) -> None:
    """Raise every finding about `tree` if one of `fresh` is an error.

    Args:
      fresh: one array for each answer that was not seen before; paths do not matter.
    """
    sample = ShardingPlan(arrays.spec, arrays.target, tuple(fresh))
    unknown = {name for sharding in fresh for name in sharding.logical_axes if name}
    unknown -= declared_axes(arrays)
    suspects = _OF_ONE_ARRAY | ({c.UNKNOWN_LOGICAL_AXIS} if unknown else set())
    found = pipeline.findings(arrays.spec, [sample])
    if any(diagnostic.is_error and diagnostic.code in suspects for diagnostic in found):
        raise_errors(pipeline.findings(arrays.spec, [plan_of(arrays, tree)]))


def declared_axes(arrays: ArrayResolver) -> set[str]:
    """Return the logical axes that a rule or an entry of `axes` knows."""
    declared = {axis.name for axis in arrays.spec.logical_axes}
    return declared.union(arrays.table.by_axis)


def raise_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Raise all of `diagnostics` if one of them is an error."""
    found = tuple(diagnostics)
    if any(diagnostic.is_error for diagnostic in found):
        raise ShardspecError(found)
