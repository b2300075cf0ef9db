"""Who uses a mesh axis, by bytes; or where a logical axis goes."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.ir.plan import ShardingPlan
from shardspec.ir.units import binary_bytes, percent
from shardspec.report.table import Row, rows, spec_text


def explain_mesh_axis(name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield the arrays that mesh axis `name` splits, the largest first, and those it does not."""
    axis = next(axis for axis in plan.mesh.axes if axis.name == name)
    network = " over DCN" if axis.network == "dcn" else ""
    network += f", {axis.axis_type}" if axis.axis_type != "auto" else ""
    yield f"mesh axis {name} = {axis.size}{network}   target {plan.target.name}: mesh {plan.mesh}"
    users = [row for row in rows(plan) if name in row.first.partition_spec.mesh_axes]
    others = [row for row in rows(plan) if name not in row.first.partition_spec.mesh_axes]
    total = sum(_bytes(row) for row in (*users, *others))
    yield f"splits {percent(sum(map(_bytes, users)), total)} of {binary_bytes(total)}"
    yield from _listed(users, name)
    if others:
        yield f"does not split {percent(sum(map(_bytes, others)), total)}"
        yield from _listed(others[:12], None)
        if len(others) > 12:
            yield f"  and {len(others) - 12} more rows"


def explain_logical_axis(name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield the rules for logical axis `name`, in order, and the arrays that have it."""
    yield f"logical axis {name}"
    for rule in plan.spec.axis_rules:
        if rule.logical_axis == name:
            place = rule.span.place if rule.span else ""
            yield f"  {rule}   {place}"
    having = [row for row in rows(plan) if name in row.first.logical_axes]
    yield from _listed(having, None)


def _bytes(row: Row) -> int:
    return sum(sharding.param.bytes for sharding in row.shardings)


def _listed(group: list[Row], mesh_axis: str | None) -> Iterator[str]:
    group = sorted(group, key=_bytes, reverse=True)
    width = max((len(row.name) for row in group), default=0)
    for row in group:
        dims = [
            f"dim {index} ({dim.logical_axis or '_'})"
            for index, dim in enumerate(row.first.dims)
            if mesh_axis in dim.mesh_axes
        ]
        said = ", ".join(dims) if dims else spec_text(row.first.partition_spec)
        yield f"  {row.name:<{width}}  {binary_bytes(_bytes(row)):>9}  {said}"
