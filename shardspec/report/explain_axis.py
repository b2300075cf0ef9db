"""Who uses a mesh axis: arrays by bytes, and activations; or where a logical axis goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.ir.grouping import counted
from shardspec.ir.plan import ActivationSharding, DimSharding, ShardingPlan
from shardspec.ir.units import binary_bytes, percent
from shardspec.report.table import Row, rows, spec_text

#: Rows shown of what a mesh axis does not split.
_MOST = 12


def explain_mesh_axis(name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield what mesh axis `name` splits and what it does not: arrays by size, then activations."""
    axis = next(axis for axis in plan.mesh.axes if axis.name == name)
    network = " over DCN" if axis.network == "dcn" else ""
    network += f", {axis.axis_type}" if axis.axis_type != "auto" else ""
    yield f"mesh axis {name} = {axis.size}{network}   target {plan.target.name}: mesh {plan.mesh}"
    users = [row for row in rows(plan) if name in row.first.partition_spec.mesh_axes]
    others = [row for row in rows(plan) if name not in row.first.partition_spec.mesh_axes]
    total = sum(_bytes(row) for row in (*users, *others))
    if plan.params or not plan.activations:
        yield f"splits {percent(sum(map(_bytes, users)), total)} of {binary_bytes(total)} of arrays"
    yield from _listed(users, name)
    if others:
        yield f"does not split {percent(sum(map(_bytes, others)), total)}"
        yield from _listed(others[:_MOST], None)
        if len(others) > _MOST:
            yield f"  and {len(others) - _MOST} more rows"
    yield from _activations(name, plan)


def _activations(mesh_axis: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield the activations that a mesh axis splits, then those it does not."""
    users = [each for each in plan.activations if mesh_axis in each.partition_spec.mesh_axes]
    others = [each for each in plan.activations if mesh_axis not in each.partition_spec.mesh_axes]
    if plan.activations:
        count = counted(len(plan.activations), "activation")
        yield f"splits {'none' if not users else len(users)} of {count}"
        yield from _listed_activations(users, mesh_axis)
    if users and others:
        yield f"does not split {len(others)}"
    if others:
        yield from _listed_activations(others[:_MOST], None)
        if len(others) > _MOST:
            yield f"  and {len(others) - _MOST} more"


def _listed_activations(
    group: Sequence[ActivationSharding], mesh_axis: str | None
) -> Iterator[str]:
    width = max((len(each.activation.name) for each in group), default=0)
    for each in group:
        said = _dims_of(each.dims, mesh_axis) or spec_text(each.partition_spec)
        yield f"  {each.activation.name:<{width}}  {said}"


def _dims_of(dims: Sequence[DimSharding], mesh_axis: str | None) -> str:
    """Return `dim 1 (batch)` for each of the dimensions that a mesh axis splits."""
    return ", ".join(
        f"dim {index} ({dim.logical_axis or '_'})"
        for index, dim in enumerate(dims)
        if mesh_axis in dim.mesh_axes
    )


def explain_logical_axis(name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield the rules for logical axis `name`, in order, and what has it."""
    yield f"logical axis {name}"
    for rule in plan.spec.axis_rules:
        if rule.logical_axis == name:
            place = rule.span.place if rule.span else ""
            yield f"  {rule}   {place}"
    having = [row for row in rows(plan) if name in row.first.logical_axes]
    yield from _listed(having, None)
    named = [each for each in plan.activations if name in each.logical_axes]
    if named:
        yield counted(len(named), "activation")
        yield from _listed_activations(named, None)


def _bytes(row: Row) -> int:
    return sum(sharding.param.bytes for sharding in row.shardings)


def _listed(group: list[Row], mesh_axis: str | None) -> Iterator[str]:
    group = sorted(group, key=_bytes, reverse=True)
    width = max((len(row.name) for row in group), default=0)
    for row in group:
        said = _dims_of(row.first.dims, mesh_axis) or spec_text(row.first.partition_spec)
        yield f"  {row.name:<{width}}  {binary_bytes(_bytes(row)):>9}  {said}"
