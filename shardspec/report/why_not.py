"""Why a dimension is not on the mesh axis someone expected."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.ir.plan import Attempt, DimSharding, Outcome, ParamSharding, ShardingPlan, divides
from shardspec.ir.spec import AxisRule, target_text
from shardspec.report.explain import outcome_text


def why_not(
    sharding: ParamSharding, index: int, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    """Yield what keeps dimension `index` off the mesh axes `wanted`, and what would help."""
    dim = sharding.dims[index]
    name = target_text(wanted)
    head = f"{sharding.param.path}   dim {index} ({dim.logical_axis or '_'}={dim.size})"
    if dim.mesh_axes == wanted:
        yield f"{head} is on {name}"
        return
    yield f"{head} is on {target_text(dim.mesh_axes)}, not on {name}"
    tried = next((a for a in dim.attempts if wanted in (a.mesh_axes, a.rule.mesh_axes)), None)
    if tried is not None and tried.outcome is not Outcome.TAKEN:
        yield f"  {outcome_text(tried, dim, sharding, plan.mesh)}   {_place(tried)}"
    elif dim.logical_axis is None:
        yield "  the dimension has no name, so no rule is asked"
    else:
        yield from _not_tried(dim, dim.logical_axis, wanted, plan)
    yield from _in_the_way(sharding, index, wanted, plan)


def _not_tried(
    dim: DimSharding, axis: str, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    rules = [rule for rule in plan.spec.axis_rules if rule.logical_axis == axis]
    later = next((rule for rule in rules if rule.mesh_axes == wanted), None)
    taken = dim.taken
    if later is not None and taken is not None:
        first = f"`{taken.rule}` comes first ({_rule_place(taken.rule)})"
        yield f"  {first}, before `{later}` ({_rule_place(later)})"
        yield f"  help: move `{later}` up, or give it a lower priority number: `{later} @ -1`"
        return
    yield f"  no rule says `{axis} -> {target_text(wanted)}`"
    if taken is not None:
        yield f"  help: put it before `{taken.rule}` ({_rule_place(taken.rule)})"
    else:
        yield f"  help: add the rule `{axis} -> {target_text(wanted)}`"


def _in_the_way(
    sharding: ParamSharding, index: int, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    """Yield what would still refuse the axes if a rule asked for them."""
    sizes = plan.mesh.sizes
    dim = sharding.dims[index]
    ways = 1
    for axis in wanted:
        if axis not in sizes:
            yield f"  target {plan.target.name} has no mesh axis `{axis}`; it has {plan.mesh}"
            return
        ways *= sizes[axis]
        for other, member in enumerate(sharding.dims):
            if other != index and axis in member.mesh_axes:
                name = member.logical_axis or "_"
                yield f"  `{axis}` is in use by dim {other} ({name}) of the same array"
    if dim.size is not None and not divides(ways, dim.size, dim.unit):
        unit = f" in units of {dim.unit}" if dim.unit > 1 else ""
        yield f"  {dim.size} is not divisible by {ways}{unit}"


def _rule_place(rule: AxisRule) -> str:
    return f"{rule.span.source.name}:{rule.span.line}" if rule.span else "no place"


def _place(attempt: Attempt) -> str:
    return _rule_place(attempt.rule)
