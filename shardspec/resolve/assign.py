"""The heart: logical axes and rules to mesh axes, for one array.

The rules are one flat list in order of priority, walked once. A rule fires on a dimension
that has its logical axis and is still undecided, if every mesh axis of it is in the mesh,
none is used by another dimension of the same array, and their product divides the dimension
in whole units. Tuples are all or nothing, but for `(a, b)?`, which goes without each mesh axis that
does not fit, major to minor; `none` always fires and is final. So *rule* order decides a contest,
never dimension order: Flax Linen's reading, and T5X's.

The walk is total. What did not fire leaves an attempt behind that says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics.budget import spend
from shardspec.ir.plan import Attempt, Dims, DimSharding, Kind, LeftOut, Outcome, divides
from shardspec.ir.spec import Activation, AxisRule, LogicalAxes, LogicalAxis, Mesh, Override, Policy

#: What may state a partition itself.
Stating = Override | Activation


class RuleTable(NamedTuple):
    """Rules made ready for one mesh: looked up by logical axis, absent mesh axes dropped.

    Attributes:
      by_axis: for each logical axis what its rules come to, in order, on an array that uses no
        mesh axis yet.
      sizes: mesh axis -> size on this target.
      known: mesh axes that some other target has; here they drop out of their tuples.
      units: logical axis -> elements that must stay together.
      segments: logical axis -> what the number of its shards is a multiple of.
      mesh: whose wholes stand for their parts.
      any: what the rules for arrays that nothing names come to, in order.
      uneven: logical axes that any number of shards may split, one of them larger than another.
    """

    by_axis: Mapping[str, tuple[Attempt, ...]]
    sizes: Mapping[str, int]
    known: frozenset[str]
    units: Mapping[str, int]
    segments: Mapping[str, int]
    policy: Policy
    mesh: Mesh
    any: tuple[Attempt, ...] = ()
    uneven: frozenset[str] = frozenset()

    def grain(self, axis: str | None) -> tuple[int, int]:
        """Return the unit and the segments of a logical axis."""
        return self.units.get(axis or "", 1), self.segments.get(axis or "", 1)


def rule_table(
    rules: Sequence[AxisRule],
    mesh: Mesh,
    *,
    known_mesh_axes: frozenset[str] = frozenset(),
    axes: Iterable[LogicalAxis] = (),
    policy: Policy | None = None,
    any_rules: Sequence[AxisRule] = (),
    uneven: frozenset[str] = frozenset(),
) -> RuleTable:
    """Return `rules` made ready for `assign_axes`, and `any_rules` for `assign_any`."""
    by_axis: dict[str, tuple[Attempt, ...]] = {}
    axes = tuple(axes)
    units = {axis.name: axis.unit for axis in axes if axis.unit > 1}
    segments = {axis.name: axis.parts.segments for axis in axes if axis.parts is not None}
    table = RuleTable(
        *(by_axis, mesh.sizes, known_mesh_axes, units, segments, policy or Policy(), mesh),
        uneven=uneven,
    )
    found: dict[str, list[Attempt]] = defaultdict(list)
    for position, rule in enumerate(rules):
        found[rule.logical_axis].append(_if_free(rule, position, rule.mesh_axes, table))
    by_axis.update((axis, tuple(attempts)) for axis, attempts in found.items())
    if not any_rules:
        return table
    tried = (_if_free(rule, at, rule.mesh_axes, table) for at, rule in enumerate(any_rules))
    return table._replace(any=tuple(replace(attempt, kind=Kind.ANY) for attempt in tried))


def _if_free(
    source: AxisRule | Stating,
    position: int,
    asked: tuple[str, ...],
    table: RuleTable,
) -> Attempt:
    """Return how what is asked ends on an array that uses no mesh axis yet."""
    rule = source if isinstance(source, AxisRule) else None
    kind = Kind.STATED if rule is None else Kind.RULE if rule.is_read else Kind.UNREAD
    sizes, ways = table.sizes, 1
    wanted = table.mesh.in_parts(asked) if table.mesh.wholes else asked
    mesh_axes = tuple(axis for axis in wanted if axis in sizes)
    if any(axis not in sizes and axis not in table.known for axis in wanted):
        mesh_axes, outcome = asked, Outcome.UNKNOWN
    elif asked and not mesh_axes:
        mesh_axes, outcome = asked, Outcome.ABSENT
    else:
        outcome = Outcome.TAKEN if len(set(mesh_axes)) == len(mesh_axes) else Outcome.BUSY
        ways = math.prod(sizes[axis] for axis in mesh_axes)
    absent: tuple[LeftOut, ...] = ()
    if rule is not None and rule.in_part:
        absent = tuple(LeftOut(axis, Outcome.ABSENT) for axis in wanted if axis not in mesh_axes)
    return Attempt(kind, position, asked, mesh_axes, outcome, ways, None, rule, source.span, absent)


def assign_axes(shape: Sequence[int | None], logical_axes: LogicalAxes, table: RuleTable) -> Dims:
    """Return the sharding of each dimension of one array, with every rule tried.

    Args:
      shape: sizes; None for one that is not known, which every mesh axis divides.
      logical_axes: one name per dimension; None is replicated and asks no rule. A name that
        is given twice is served in order of dimension.

    Invariants:
      once, divides, complete, unit, append, rename, factor: see tests/properties.
    """
    return _assigned(shape, logical_axes, _candidates(logical_axes, table), table)


def _candidates(logical_axes: LogicalAxes, table: RuleTable) -> list[_Candidate]:
    """Return the rules for the axes of an array, in turn."""
    candidates = [
        (attempt.position, dim, attempt)
        for dim, axis in enumerate(logical_axes)
        if axis is not None
        for attempt in table.by_axis.get(axis, ())
    ]
    candidates.sort(key=lambda candidate: candidate[:2])
    spend(10 + 5 * len(candidates))
    return candidates


def assign_stated(
    shape: Sequence[int | None], stating: Stating, position: int, table: RuleTable
) -> Dims:
    """Return each dimension of an array whose partition an override or an activation states.

    What is stated is held against the mesh as rules are, in order of dimension; no rule is asked.

    Args:
      position: of what states it in its spec.
    """
    stated = enumerate(stating.partition or ())
    candidates = [(dim, dim, _if_free(stating, position, axes, table)) for dim, axes in stated]
    return _assigned(shape, (None,) * len(shape), candidates, table)


def assign_any(shape: Sequence[int], table: RuleTable) -> Dims:
    """Return each dimension of an array that nothing names, by the rules for `*`.

    Each rule in turn looks for the largest dimension that its mesh axes divide, the first of
    equals; the first that finds one is the last that is asked. `none` leaves all of them whole.

    Invariants:
      one: at most one dimension is split, and none that is smaller than another that divides.
    """
    attempts: list[list[Attempt]] = [[] for _ in shape]
    by_size = sorted(range(len(shape)), key=lambda dim: -shape[dim])
    exact = table._replace(policy=replace(table.policy, indivisible="next"))
    for attempt in table.any:
        turn = _try_in_part if attempt.in_part else _try
        for dim in by_size:
            result = turn(attempt, shape[dim], (1, 1), {}, exact)
            attempts[dim].append(result)
            if result.outcome is not Outcome.INDIVISIBLE and not attempt.is_none:
                break
        if any(tried and tried[-1].outcome is Outcome.TAKEN for tried in attempts):
            break
    pairs = zip(shape, attempts, strict=True)
    return Dims(DimSharding(size, None, tuple(tried)) for size, tried in pairs)


def kept_whole(shape: Sequence[int], logical_axes: LogicalAxes, table: RuleTable) -> Dims:
    """Return each dimension of an array that the policy keeps whole; no rule is asked."""
    span = table.policy.whole_below_span
    small = Attempt(Kind.SMALL, 0, (), (), Outcome.TAKEN, span=span)
    return Dims(
        DimSharding(size, axis, (small,), *table.grain(axis))
        for size, axis in zip(shape, logical_axes, strict=True)
    )


def assign_beside(
    placed: Sequence[DimSharding | None],
    shape: Sequence[int],
    logical_axes: LogicalAxes,
    table: RuleTable,
) -> Dims:
    """Return the dimensions of an array some of which are placed, by what it derives from.

    Rules are asked about the others, and find the mesh axes of those in use.

    Args:
      placed: one for each dimension, None for one that rules are asked about.
    """
    used = {axis: at for at, dim in enumerate(placed) if dim for axis in dim.mesh_axes}
    names = tuple(None if dim else name for dim, name in zip(placed, logical_axes, strict=True))
    found = _assigned(shape, names, _candidates(names, table), table, used)
    return Dims(dim or other for dim, other in zip(placed, found, strict=True))


_Candidate = tuple[int, int, Attempt]

#: Unit and segments of a dimension.
_Grain = tuple[int, int]


def _assigned(
    shape: Sequence[int | None],
    logical_axes: LogicalAxes,
    candidates: Iterable[_Candidate],
    table: RuleTable,
    in_use: Mapping[str, int] | None = None,
) -> Dims:
    """Return each dimension with those of the candidates, which come in turn, that it tried.

    Args:
      in_use: mesh axes that a dimension has already.
    """
    grains = [table.grain(axis) for axis in logical_axes]
    attempts: list[list[Attempt]] = [[] for _ in logical_axes]
    decided: set[int] = set()
    used: dict[str, int] = dict(in_use or {})
    kept = table
    if table.uneven:
        kept = table._replace(policy=replace(table.policy, indivisible="keep"))
    for _, dim, attempt in candidates:
        if dim in decided:
            continue
        turn = _try_in_part if attempt.in_part else _try
        own = kept if logical_axes[dim] in table.uneven else table
        result = turn(attempt, shape[dim], grains[dim], used, own)
        attempts[dim].append(result)
        if result.outcome is Outcome.TAKEN:
            decided.add(dim)
            used.update(dict.fromkeys(result.mesh_axes, dim))
    return Dims(
        DimSharding(size, axis, tuple(tried), *grain)
        for size, axis, tried, grain in zip(shape, logical_axes, attempts, grains, strict=True)
    )


def _try(
    attempt: Attempt, size: int | None, grain: _Grain, used: Mapping[str, int], table: RuleTable
) -> Attempt:
    """Return `attempt` as it goes on a dimension, with the mesh axes in `used` gone."""
    if attempt.outcome is not Outcome.TAKEN:
        return attempt
    for axis in attempt.mesh_axes:
        if axis in used:
            return replace(attempt, outcome=Outcome.BUSY, blocked_by=used[axis])
    if not _fits(attempt.ways, size, grain, table.policy):
        return replace(attempt, outcome=Outcome.INDIVISIBLE)
    return attempt


def _fits(ways: int, size: int | None, grain: _Grain, policy: Policy) -> bool:
    """Say whether a dimension may be split so many times: any times, where `keep` says so."""
    return policy.indivisible == "keep" or size is None or divides(ways, size, *grain)


def _try_in_part(
    attempt: Attempt, size: int | None, grain: _Grain, used: Mapping[str, int], table: RuleTable
) -> Attempt:
    """Return `attempt` with those of its mesh axes that fit; refused where none does.

    Invariants:
      part: each axis that is left out does not fit beside those that are taken before it, and the
        order of those that are taken is that of the rule.
    """
    if attempt.outcome is not Outcome.TAKEN:
        return attempt
    kept: list[str] = []
    gone = list(attempt.left_out)
    ways = 1
    for axis in attempt.mesh_axes:
        grown = ways * table.sizes[axis]
        if axis in used:
            gone.append(LeftOut(axis, Outcome.BUSY, blocked_by=used[axis]))
        elif not _fits(grown, size, grain, table.policy):
            gone.append(LeftOut(axis, Outcome.INDIVISIBLE, grown))
        else:
            kept.append(axis)
            ways = grown
    left_out = tuple(gone)
    if kept:
        return replace(attempt, mesh_axes=tuple(kept), ways=ways, left_out=left_out)
    refused = [each for each in left_out if each.outcome is not Outcome.ABSENT]
    why = next((each for each in refused if each.outcome is Outcome.INDIVISIBLE), refused[0])
    axes = (why.mesh_axis,) if why.outcome is Outcome.INDIVISIBLE else attempt.mesh_axes
    return replace(
        attempt,
        mesh_axes=axes,
        outcome=why.outcome,
        ways=table.sizes[why.mesh_axis],
        blocked_by=why.blocked_by,
        left_out=left_out,
    )
