"""Every device holds a large array whole, and nothing asked for that.

Because no rule was left that fits, because this target lacks the mesh axes, because an axis has no
rule, or because nothing names the dimensions. Whoever names the array under `replicate:` with a
reason is not bothered. Where rules say `none` for all of it, that is SHD410. Where a finding of the
same arrays is shown that says why (SHD201, SHD202, SHD204, SHD206, SHD301), that one is enough.

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
from shardspec.ir.plan import Attempt, DimSharding, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.context import Context


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
        if not is_settled(sharding):
            key = (template(sharding.param.path), sharding.dims, sharding.param.dtype)
            groups.setdefault(key, []).append(sharding)
    for group in groups.values():
        size = sum(sharding.param.bytes for sharding in group)
        if is_large(size, held):
            paths = tuple(sorted((s.param.path for s in group), key=natural))
            yield _Whole(plan, paths, group[0], size, total)


def is_settled(sharding: ParamSharding) -> bool:
    """Say whether rules that fired left the array whole: by `none`, or a mesh axis of size 1."""
    return all(dim.taken is not None for dim in sharding.dims if dim.size != 1)


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
        arrays=paths,
        bytes=size,
    )


def _why(index: int, dim: DimSharding) -> str:
    name = f"dim {index} ({dim.logical_axis or '_'}={dim.size})"
    if dim.taken is not None:
        return f"{name}: a rule says `{target_text(dim.mesh_axes)}`"
    if dim.logical_axis is None:
        return f"{name} has no name"
    reasons = ", ".join(map(_outcome, dim.attempts))
    return f"{name}: {reasons or 'no rule is for it'}"


def _outcome(attempt: Attempt) -> str:
    axes = f"`{target_text(attempt.mesh_axes or attempt.asked)}`"
    if attempt.outcome is Outcome.INDIVISIBLE:
        return f"{axes} = {attempt.ways} does not divide it"
    where = "no target" if attempt.outcome is Outcome.UNKNOWN else "other targets only"
    return f"{axes} is on {where}"
