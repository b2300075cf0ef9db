"""A mesh axis of size 1 wins a rule and shards nothing.

Remove the axis from this mesh, and where no other mesh has it, from the rules, too (SHD201 reports
a rule that names an axis of no mesh). Or put another alternative first. The rule fires as in Flax:
it decides the dimension, and no later alternative is tried, although one of them might shard it. If
this is intended on a small machine, write `lints: {size-one-axis: allow}`. Activations and rules of
a preset are reported only if the rule has a later alternative.

Bad:
    shardspec: 1
    mesh: {data: 8, model: 1}
    rules:
      - mlp -> model | data
    arrays:
      mlp/wi/kernel: bf16[_=64 mlp=128]

Good:
    -mesh: {data: 8, model: 1}
    +mesh: {data: 4, model: 2}
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import by_key, described, named
from shardspec.ir.plan import Attempt, Kind, ShardingPlan
from shardspec.ir.spec import AxisRule, MeshAxis
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of size 1 that decides a dimension on some target."""
    for plan in context.shared_plans:
        for axis in plan.mesh.axes:
            if axis.size == 1:
                yield from _wins(axis, plan)


def hidden_by(plan: ShardingPlan) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the mesh axes that would shard a logical axis, were there no axis of size 1 before.

    By the axis of size 1, and the logical axis that it takes.
    """
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for sharding in (*plan.alike, *plan.activations):
        for dim in sharding.dims:
            taken = dim.taken
            if taken is None or taken.rule is None or not dim.mesh_axes or dim.ways > 1:
                continue
            later = (each.mesh_axes for each in _later(taken, plan))
            behind = next((axes for axes in later if plan.mesh.ways(axes) > 1), None)
            if behind is not None:
                found[dim.mesh_axes[0], taken.rule.logical_axis] = plan.mesh.splitting(behind)
    return found


def _wins(axis: MeshAxis, plan: ShardingPlan) -> Iterator[Diagnostic]:
    won = by_key(
        (dim.taken, sharding.param.path)
        for sharding in plan.arrays
        for dim in sharding.dims
        if dim.mesh_axes == (axis.name,) and dim.taken is not None
    )
    activations: dict[str, None] = {}
    for activation in plan.activations:
        for dim in activation.dims:
            taken = dim.taken if dim.mesh_axes == (axis.name,) else None
            if taken is not None and _has_later(taken, plan):
                won.setdefault(taken, [])
                activations.setdefault(activation.activation.name)
    won = {
        each: paths
        for each, paths in won.items()
        if not each.is_of_preset or _has_later(each, plan)
    }
    if not won:
        return
    first = next(iter(won))
    what = "this override takes it" if _is_stated(first) else "this rule takes it"
    paths = list(dict.fromkeys(path for paths in won.values() for path in paths))
    rules = ", ".join(dict.fromkeys(map(_shown, won)))
    yield Diagnostic(
        codes.SIZE_ONE_AXIS,
        f"`{axis.name}` has size 1 on target `{plan.target.name}`, and wins {rules}",
        labels_at((axis.span, "shards nothing"), (first.span, what)),
        notes=tuple(_notes(paths, tuple(activations))),
        target=plan.target.name,
        help=_ways_out(axis, plan, won),
    )


def _ways_out(axis: MeshAxis, plan: ShardingPlan, won: Collection[Attempt]) -> str:
    """Return what to do about an axis of size 1, by who asks for it."""
    allowed = quote.setting("lints", ("size-one-axis", "allow"))
    others = (each.mesh.names for each in plan.spec.targets if each.name != plan.target.name)
    is_known = any(axis.name in names for names in others)
    is_own = all(each.span and axis.span and each.span.source == axis.span.source for each in won)
    ways = [f"give `{axis.name}` a larger size"]
    if all(map(_is_stated, won)):
        ways.append("remove it from the override")
    elif is_known:
        ways.append("remove it from this mesh, and the next alternative is tried")
    elif is_own:  # not where a preset has the rule
        all_of = "from the mesh and from all that names it, with `none` where a rule has no other"
        ways.append(f"remove it {all_of}")
    return f"{', or '.join(ways)}; or {allowed}"


def _has_later(taken: Attempt, plan: ShardingPlan) -> bool:
    """Say whether an alternative behind a rule would be tried, and asks for a split."""
    return any(set(each.mesh_axes) & set(plan.mesh.names) for each in _later(taken, plan))


def _later(taken: Attempt, plan: ShardingPlan) -> Iterator[AxisRule]:
    """Yield the alternatives for the same axis behind the one that was taken."""
    axis = taken.rule.logical_axis if taken.rule is not None else None
    behind = plan.spec.axis_rules[taken.position + 1 :]
    return (each for each in behind if each.logical_axis == axis)


def _notes(paths: list[str], activations: Sequence[str]) -> Iterator[str]:
    if paths:
        yield described(paths)
    if activations:
        yield named("activation", activations)


def _is_stated(taken: Attempt) -> bool:
    return taken.kind is Kind.STATED


def _shown(taken: Attempt) -> str:
    return "an override" if _is_stated(taken) else f"`{taken}`"
