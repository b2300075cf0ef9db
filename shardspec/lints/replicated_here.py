"""A target holds a large array whole that others split over the same mesh axes.

Its sizes do not divide there, and a `none` behind the rule says that this is meant. It may be; but
a `none` that was written for one machine also hides what it costs on the next. Where the mesh lacks
the axes, the rule says what it says; other reasons have findings of their own (SHD301, SHD401).

Bad:
    shardspec: 1
    targets:
      small: {mesh: {data: 4, tensor: 8}}
      large: {mesh: {data: 4, tensor: 16}}
    rules:
      - embed, kv -> none
      - kv_heads -> tensor | none
    arrays:
      attention/key: bf16[embed=16384 kv_heads=8 kv=128]

Good:
    shardspec: 1
    targets:
      small: {mesh: {data: 4, tensor: 8}}
      large: {mesh: {data: 4, tensor: 16}}
    rules:
      - embed, kv -> none
      - kv_heads -> tensor | data | none
    arrays:
      attention/key: bf16[embed=16384 kv_heads=8 kv=128]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardspec.analysis.alike import Alike, alike
from shardspec.analysis.large import held_bytes, is_large
from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import REPLICATED_HERE as CODE
from shardspec.ir.grouping import described
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import Attempt, DimSharding, Outcome, ShardingPlan, divides
from shardspec.ir.spec import target_text
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.context import Context


class _Elsewhere(NamedTuple):
    """An array's dimension on a target that splits it."""

    target: str
    group: Alike


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large array that is whole on this target, for its size alone."""
    plans = context.plans
    groups = {plan.target.name: alike(plan) for plan in plans}
    split = {
        group.first.param.path: _Elsewhere(plan.target.name, group)
        for plan in reversed(plans)
        for group in groups[plan.target.name]
        if not group.is_replicated
    }
    for plan in plans:
        total = sum(group.bytes * len(group.shardings) for group in groups[plan.target.name])
        held = held_bytes(plan)
        for group in groups[plan.target.name]:
            size = group.bytes * len(group.shardings)
            if group.is_replicated and is_large(size, held):
                yield from _compared(plan, group, split, total)


def _compared(
    plan: ShardingPlan, group: Alike, split: Mapping[str, _Elsewhere], total: int
) -> Iterator[Diagnostic]:
    other = split.get(group.first.param.path)
    if other is None:
        return
    for index, dim in enumerate(group.dims):
        refused = next((a for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE), None)
        taken = other.group.dims[index].taken
        if refused is not None and dim.taken is not None and taken is not None:
            same_axes = set(taken.mesh_axes) & set(refused.mesh_axes)
            if same_axes and dim.taken.is_none:
                yield _finding(plan, group, (dim, refused, dim.taken), other, total)
                return


def _finding(
    plan: ShardingPlan,
    group: Alike,
    why: tuple[DimSharding, Attempt, Attempt],
    other: _Elsewhere,
    total: int,
) -> Diagnostic:
    dim, refused, ended = why
    count = len(group.shardings)
    paths = [sharding.param.path for sharding in group.shardings]
    here, there = group.bytes * count, other.group.shard_bytes * count
    labels = [
        Label(attempt.span, text, primary=attempt is ended)
        for attempt, text in (
            (refused, f"{refused.ways} does not divide {dim.size}"),
            (ended, "so it is whole"),
        )
        if attempt.span is not None
    ]
    return Diagnostic(
        CODE,
        f"`{paths[0]}` {group.first.param} is whole on target `{plan.target.name}`, and split"
        f" {other.group.first.shard_count} times on `{other.target}`",
        tuple(labels) if any(label.primary for label in labels) else (),
        notes=(
            f"{described(paths)}; {binary_bytes(here)} per device, {percent(here, total)} of the"
            f" model, and {binary_bytes(there)} on `{other.target}`",
        ),
        help=_help(plan.mesh, dim, refused),
    )


def _help(mesh: Mesh, dim: DimSharding, refused: Attempt) -> str:
    fitting = [
        axis.name
        for axis in mesh.axes
        if axis.size > 1 and divides(axis.size, dim.size or 0, dim.unit)
    ]
    if not fitting:
        return "if that is meant, `lints: {replicated-here: allow}`"
    wider = f"{target_text(refused.mesh_axes)} | {fitting[0]} | none"
    return f"`{dim.logical_axis} -> {wider}` splits it here as well"
