"""Every device holds a large array whole, and no rule asked for that.

Whoever writes `vocab -> none` means
it, and so does whoever names the array under `replicate:` with a reason; neither is bothered.
This is for arrays that are whole because no rule was left that fits, because this target lacks
the mesh axes, or because their dimensions have no names.

Bad:
    shardspec: 1
    targets:
      pod: {mesh: {data: 4, model: 2}}
      laptop: {mesh: {data: 8}}
    rules:
      - embed -> none
      - vocab -> model
    arrays:
      embedding: bf16[vocab=32128 embed=4096]

Good:
    shardspec: 1
    targets:
      pod: {mesh: {data: 4, model: 2}}
      laptop: {mesh: {data: 8}}
    rules:
      - embed -> none
      - vocab -> model | data
    arrays:
      embedding: bf16[vocab=32128 embed=4096]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.coverage import coverage
from shardspec.analysis.large import held_bytes, is_large
from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.codes import REPLICATED_LARGE as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import collapsed, counted, natural, template
from shardspec.ir.plan import DimSharding, Origin, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.context import Context

#: Outcomes that have a finding of their own.
_SPOKEN_OF = {Outcome.INDIVISIBLE, Outcome.UNKNOWN}


class _Whole(NamedTuple):
    """Arrays of one layer that a target holds whole.

    Attributes:
      size: their bytes.
      total: bytes of the model.
    """

    plan: ShardingPlan
    paths: tuple[str, ...]
    first: ParamSharding
    size: int
    total: int


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large array that is whole on a target without being meant to."""
    found: dict[tuple[str, ...], list[_Whole]] = {}
    for plan in context.plans:
        if plan.mesh.device_count > 1:
            for whole in _on_target(plan):
                found.setdefault(whole.paths, []).append(whole)
    for targets in found.values():
        yield _finding(targets)


def _on_target(plan: ShardingPlan) -> Iterator[_Whole]:
    whole = coverage(plan)
    total, held = whole.total_bytes, held_bytes(plan)
    groups: dict[tuple[object, ...], list[ParamSharding]] = {}
    for sharding in whole.counted:
        if not is_meant(sharding):
            key = (template(sharding.param.path), id(sharding.dims), sharding.param.dtype)
            groups.setdefault(key, []).append(sharding)
    for group in groups.values():
        size = sum(sharding.param.bytes for sharding in group)
        if is_large(size, held):
            paths = tuple(sorted((s.param.path for s in group), key=natural))
            yield _Whole(plan, paths, group[0], size, total)


def has_own_finding(sharding: ParamSharding) -> bool:
    """Say whether another finding tells already why an array is not split."""
    if sharding.origin is Origin.NONE or sharding.mismatch is not None:
        return True
    if any(_is_without_rule(dim) for dim in sharding.dims):
        return True
    return any(attempt.outcome in _SPOKEN_OF for dim in sharding.dims for attempt in dim.attempts)


def is_meant(sharding: ParamSharding) -> bool:
    """Say whether the spec asks for a whole array, or another finding speaks of it already."""
    if has_own_finding(sharding):
        return True
    return all(_is_settled(dim) for dim in sharding.dims if dim.size != 1)


def _is_settled(dim: DimSharding) -> bool:
    """Say whether a dimension is whole by `none`, or for a reason that has its own finding."""
    return dim.taken is not None or _is_without_rule(dim)


def _is_without_rule(dim: DimSharding) -> bool:
    return dim.logical_axis is not None and dim.taken is None and not dim.attempts


def _finding(targets: Sequence[_Whole]) -> Diagnostic:
    plan, paths, first, size, total = targets[0]
    names = [whole.plan.target.name for whole in targets]
    where = "this target" if len(names) == 1 else "these targets"
    axes = dict.fromkeys(axis for whole in targets for axis in whole.plan.mesh.names)
    place: Span | None = first.matched.span if first.matched else first.param.span
    return point(
        CODE,
        f"`{collapsed(paths) or paths[0]}` {first.param} is whole on every device of"
        f" {'target' if len(names) == 1 else 'targets'} {listed(names)}",
        place,
        "named here" if first.matched else "this array",
        notes=(
            f"{counted(len(paths), 'array')}, {binary_bytes(size)} per device,"
            f" {percent(size, total)} of the model",
            *(_why(index, dim) for index, dim in enumerate(first.dims)),
        ),
        help=f"add an alternative for mesh axes of {where} ({', '.join(axes)}),"
        " or say that it is meant: `AXIS -> none`, or `replicate:` with a reason",
        target=plan.target.name if len(names) == 1 else None,
    )


def _why(index: int, dim: DimSharding) -> str:
    name = f"dim {index} ({dim.logical_axis or '_'}={dim.size})"
    if dim.taken is not None:
        return f"{name}: a rule says `{target_text(dim.mesh_axes)}`"
    if dim.logical_axis is None:
        return f"{name} has no name"
    tried = ", ".join(f"`{target_text(attempt.mesh_axes)}`" for attempt in dim.attempts)
    return f"{name}: {tried} is not on this target"
