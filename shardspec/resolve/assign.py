"""The heart: logical axes and rules to mesh axes, for one array.

The rules are one flat list in order of priority, walked once. A rule fires on a dimension
that has its logical axis and is still undecided, if every mesh axis of it is in the mesh,
none is used by another dimension of the same array, and their product divides the dimension
in whole units. Tuples are all or nothing; `none` always fires and is final. So *rule* order
decides a contest, never dimension order: Flax Linen's reading, and T5X's.

The walk is total. What did not fire leaves an attempt behind that says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardspec.ir.mesh import Mesh
from shardspec.ir.param import LogicalAxes
from shardspec.ir.plan import Attempt, DimSharding, Outcome, divides
from shardspec.ir.spec import AxisRule, Policy


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Rules made ready for one mesh: looked up by logical axis, absent mesh axes dropped.

    Attributes:
      by_axis: for each logical axis, its rules with their position in the flat list.
      sizes: mesh axis -> size on this target.
    """

    by_axis: Mapping[str, tuple[tuple[int, AxisRule, Attempt], ...]]
    sizes: Mapping[str, int]
    units: Mapping[str, int]
    policy: Policy


def rule_table(
    rules: Sequence[AxisRule],
    mesh: Mesh,
    *,
    known_mesh_axes: frozenset[str] = frozenset(),
    units: Mapping[str, int] | None = None,
    policy: Policy | None = None,
) -> RuleTable:
    """Return `rules` made ready for `assign_axes`.

    Args:
      known_mesh_axes: axes that some other target has; here they drop out of their tuples.
      units: logical axis -> elements that must stay together.
    """
    sizes = mesh.sizes
    by_axis: dict[str, list[tuple[int, AxisRule, Attempt]]] = defaultdict(list)
    for position, rule in enumerate(rules):
        attempt = _attempt_if_free(rule, sizes, known_mesh_axes)
        by_axis[rule.logical_axis].append((position, rule, attempt))
    frozen = {axis: tuple(entries) for axis, entries in by_axis.items()}
    return RuleTable(frozen, sizes, units or {}, policy or Policy())


def _attempt_if_free(rule: AxisRule, sizes: Mapping[str, int], known: frozenset[str]) -> Attempt:
    """Return what becomes of `rule` on an array that uses no mesh axis yet."""
    if rule.is_none:
        return Attempt(rule, (), Outcome.TAKEN)
    present = tuple(axis for axis in rule.mesh_axes if axis in sizes)
    if any(axis not in sizes and axis not in known for axis in rule.mesh_axes):
        return Attempt(rule, rule.mesh_axes, Outcome.UNKNOWN)
    if not present:
        return Attempt(rule, rule.mesh_axes, Outcome.ABSENT)
    ways = math.prod(sizes[axis] for axis in present)
    outcome = Outcome.TAKEN if len(set(present)) == len(present) else Outcome.BUSY
    return Attempt(rule, present, outcome, ways)


def assign_axes(
    shape: Sequence[int | None], logical_axes: LogicalAxes, table: RuleTable
) -> tuple[DimSharding, ...]:
    """Return the sharding of each dimension of one array, with every rule tried.

    Args:
      shape: sizes; None for one that is not known, which every mesh axis divides.
      logical_axes: one name per dimension; None is replicated and asks no rule. A name that
        stands twice is served in order of dimension.

    Invariants:
      once, divides, complete, append, rename, factor: see tests/properties.
    """
    candidates = [
        (position, dim, attempt)
        for dim, axis in enumerate(logical_axes)
        if axis is not None
        for position, _, attempt in table.by_axis.get(axis, ())
    ]
    candidates.sort(key=lambda candidate: candidate[:2])
    units = [table.units.get(axis, 1) if axis is not None else 1 for axis in logical_axes]
    attempts: list[list[Attempt]] = [[] for _ in logical_axes]
    decided: set[int] = set()
    used: dict[str, int] = {}
    for _, dim, attempt in candidates:
        if dim in decided:
            continue
        result = _try(attempt, shape[dim], units[dim], used, table.policy)
        attempts[dim].append(result)
        if result.outcome is Outcome.TAKEN:
            decided.add(dim)
            used.update(dict.fromkeys(result.mesh_axes, dim))
    return tuple(
        DimSharding(size, axis, tuple(tried), unit)
        for size, axis, tried, unit in zip(shape, logical_axes, attempts, units, strict=True)
    )


def _try(
    attempt: Attempt, size: int | None, unit: int, used: Mapping[str, int], policy: Policy
) -> Attempt:
    """Return `attempt` as it goes on a dimension, with the mesh axes in `used` gone."""
    if attempt.outcome is not Outcome.TAKEN:
        return attempt
    for axis in attempt.mesh_axes:
        if axis in used:
            return Attempt(attempt.rule, attempt.mesh_axes, Outcome.BUSY, attempt.ways, used[axis])
    if policy.indivisible == "next" and size is not None and not divides(attempt.ways, size, unit):
        return Attempt(attempt.rule, attempt.mesh_axes, Outcome.INDIVISIBLE, attempt.ways)
    return attempt
