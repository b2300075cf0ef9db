"""Nothing is sharded over a mesh axis of a target, so its devices hold copies and compute the same.

An axis is used where it splits an array or an activation, or where `state` splits optimizer state
over it; with `--step`, also where the code itself shards arguments or work over it. A rule that
names the axis counts as well, if it is for dimensions that only activations have (`batch -> data`),
or if the spec lists no activations: code may have some. Not reported: a spec that mentions no batch
in any rule or activation, because code then shards the batch, and a spec with a rule for an unknown
mesh axis (SHD201), because one of the two may be misspelt.

Bad:
    shardspec: 1
    mesh: {data: 4, model: 8}
    axes: {batch: 64}
    rules:
      - batch -> data
      - embed -> data
      - mlp -> none
    arrays:
      mlp/wi/kernel: bf16[embed=1024 mlp=4096]

Good:
    -  - mlp -> none
    +  - mlp -> model
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, described, did_you_mean
from shardspec.ir.plan import Alike, ShardingPlan, divides
from shardspec.ir.spec import Mesh, MeshAxis, target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import subjects, would_divide
from shardspec.lints.evidence.rules import batch_rules, crossing_axes, is_stacked, stacked_axes


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis of a target that nothing is split over."""
    spec = context.spec
    if not batch_rules(spec) and not spec.activations:
        return
    named = {axis for rule in spec.axis_rules for axis in rule.mesh_axes}
    if named - spec.mesh_axis_names:
        return
    for plan in context.plans:
        groups = plan.alike
        split = {axis for each in subjects(plan) for axis in each.mesh_axes}
        used = split | _meant_for_others(plan) | _in_steps(context, plan)
        for axis in plan.mesh.axes:
            if axis.size > 1 and axis.name not in used:
                yield _finding(axis, plan, groups)


def _meant_for_others(plan: ShardingPlan) -> set[str]:
    """Return the mesh axes that are named for what the plan does not show."""
    shown = {name for each in subjects(plan) for name in each.logical_axes}
    named = {
        axis
        for rule in plan.spec.axis_rules
        if not plan.activations or rule.logical_axis not in shown
        for axis in plan.mesh.in_parts(rule.mesh_axes)
    }
    return named | set(plan.mesh.in_parts(plan.spec.state.over) if plan.spec.state else ())


def _in_steps(context: Context, plan: ShardingPlan) -> set[str]:
    """Return the mesh axes that arguments or operations of the target's step are split over."""
    steps = [step for cost, step in context.steps if cost.target == plan.target]
    arrays = [each.array.split for step in steps for each in step.arguments]
    named = [each.mesh_axes for each in arrays] + [op.mesh_axes for s in steps for op in s.ops]
    return set(chain.from_iterable(named))


def _finding(axis: MeshAxis, plan: ShardingPlan, groups: Sequence[Alike]) -> Diagnostic:
    target, notes = plan.target, []
    held = sum(group.device_bytes for group in groups)
    if held:
        notes.append(
            f"{axis.size} copies of everything: {binary_bytes(held)} on each device, and"
            f" {binary_bytes(held / axis.size)} if every array were split over it"
        )
    said = f"groups of {axis.size} devices do the same"
    return point(
        codes.UNUSED_MESH_AXIS,
        f"nothing is split over mesh axis `{axis.name}` = {axis.size} of target `{target.name}`",
        axis.span or target.span,
        said if axis.span is not None else f"`{axis.name}` = {axis.size} in its mesh",
        notes=tuple(notes),
        help=_way_out(axis, plan, groups),
        target=target.name,
    )


def _misspelt(axis: MeshAxis, plan: ShardingPlan) -> str | None:
    """Return what rules or other targets call an axis that only this target has, or nearly so."""
    spec, own = plan.spec, set(plan.mesh.names)
    elsewhere = {
        name for other in spec.targets if other is not plan.target for name in other.mesh.names
    }
    in_rules = {name for rule in spec.axis_rules for name in rule.mesh_axes}
    if axis.name in elsewhere | in_rules:
        return None
    return did_you_mean(axis.name, (elsewhere | in_rules) - own)


def _way_out(axis: MeshAxis, plan: ShardingPlan, groups: Sequence[Alike]) -> str:
    misspelt = _misspelt(axis, plan)
    if misspelt is not None:
        return f"{misspelt} else write a rule for `{axis.name}`"
    by_size = sorted(groups, key=lambda group: -group.device_bytes)
    offers = _for_the_batch(axis, plan)
    if all(found.axis.name != axis.name for found in crossing_axes(plan.target)):
        stacked = stacked_axes(plan.spec)
        arrays = (offer for group in by_size for offer in _offers(axis, group, plan, stacked))
        offers = chain(arrays, offers)
    return "; or ".join((*islice(offers, 1), "give its devices to another mesh axis"))


def _for_the_batch(axis: MeshAxis, plan: ShardingPlan) -> Iterator[str]:
    """Yield a rule that would split the batch over the axis as well, where that divides."""
    sizes = {each.name: each.size for each in plan.spec.logical_axes}
    for rule in batch_rules(plan.spec):
        wanted = plan.mesh.in_parts(rule.mesh_axes)
        own = tuple(name for name in wanted if name in plan.mesh.names)
        wider = _with(axis, own, plan.mesh)
        if divides(plan.mesh.ways(wider), sizes.get(rule.logical_axis) or 0):
            yield f"`{rule.logical_axis} -> {target_text(wider)}` would split the batch over it"


def _with(axis: MeshAxis, others: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Return mesh axes with one more, major where the mesh has it before them all."""
    order = mesh.names.index(axis.name)
    is_major = all(order < mesh.names.index(name) for name in others)
    return (axis.name, *others) if is_major else (*others, axis.name)


def _offers(
    axis: MeshAxis, group: Alike, plan: ShardingPlan, stacked: frozenset[str]
) -> Iterator[str]:
    """Yield rules that would split these arrays over the axis; dimensions still whole first.

    Stacked layers are no offer: a loop over them would fetch each from another device.
    """
    for dim in sorted(group.dims, key=lambda dim: dim.ways):
        if dim.logical_axis is None or is_stacked(dim.logical_axis, stacked):
            continue
        if would_divide(axis.size, dim):
            whole = target_text(_with(axis, dim.mesh_axes, plan.mesh))
            rest = f" | {target_text(dim.mesh_axes)}" if dim.mesh_axes else ""
            yield f"`{dim.logical_axis} -> {whole}{rest}` would split {described(group.paths)}"
