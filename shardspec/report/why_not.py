"""Why a dimension is not on the mesh axis someone expected, and what would put it there.

Advice is tried before it is given: the rule goes into the list, and the array is resolved anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardspec.diagnostics import Span
from shardspec.diagnostics.suggest import did_you_mean
from shardspec.ir.plan import (
    ActivationSharding,
    Dims,
    DimSharding,
    Outcome,
    ParamSharding,
    Sharding,
    ShardingPlan,
    divides,
)
from shardspec.ir.spec import AxisRule, target_text
from shardspec.ir.units import binary_bytes
from shardspec.report.explain import outcome_text
from shardspec.resolve.resolver import array_resolver


def why_not(
    sharding: Sharding,
    index: int,
    wanted: tuple[str, ...],
    plan: ShardingPlan,
    title: str | None = None,
) -> Iterator[str]:
    """Yield what keeps dimension `index` off the mesh axes `wanted`, and what would help.

    Args:
      title: what to call the array; None for its path, or for the name of an activation.
    """
    dim = sharding.dims[index]
    name = target_text(wanted)
    size = "" if dim.size is None else f"={dim.size}"
    head = f"{title or _name(sharding)}   dim {index} ({dim.logical_axis or '_'}{size})"
    if dim.mesh_axes == wanted and (wanted or dim.taken is not None):
        yield f"{head} is on {name}"
        return
    if not wanted and not dim.mesh_axes:
        yield f"{head} is replicated: no rule took it"
        return
    yield f"{head} is on {target_text(dim.mesh_axes)}, not on {name}"
    absent = [axis for axis in wanted if axis not in plan.mesh.sizes]
    if absent:
        yield from _absent(absent, plan)
    elif len(set(wanted)) < len(wanted):
        yield f"  {_kind(sharding, article=True)} uses a mesh axis at most once"
    elif isinstance(sharding, ParamSharding) and sharding.is_stated:
        yield from _stated(sharding, index, wanted, plan)
    elif dim.logical_axis is None:
        yield from _unnamed(sharding)
    else:
        yield from _refused(sharding, index, wanted, plan)


def _name(sharding: Sharding) -> str:
    return sharding.param.path if isinstance(sharding, ParamSharding) else sharding.activation.name


def _kind(sharding: Sharding, *, article: bool = False) -> str:
    """Return `array` or `activation`, with its article where that is wanted."""
    kind = "array" if isinstance(sharding, ParamSharding) else "activation"
    return f"an {kind}" if article else kind


def _absent(absent: list[str], plan: ShardingPlan) -> Iterator[str]:
    """Yield which mesh axes there are, and where the others are."""
    for axis in absent:
        yield f"  target {plan.target.name} has no mesh axis `{axis}`; it has {plan.mesh}"
        having = [target.name for target in plan.spec.targets if axis in target.mesh.names]
        if having:
            plural = "s have" if len(having) > 1 else " has"
            yield f"  target{plural} it: {', '.join(having)}"
        else:
            hint = did_you_mean(axis, plan.spec.mesh_axis_names)
            yield f"  no target has it{f'; {hint}' if hint else ''}"


def _stated(
    sharding: ParamSharding, index: int, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    """Yield what the override states; rules are not asked."""
    dim = sharding.dims[index]
    attempt = dim.attempts[0] if dim.attempts else None
    place = _place(sharding.matched.span) if sharding.matched is not None else ""
    if attempt is None:
        yield f"  the spec of the override{place} has another number of dimensions"
        return
    stated = target_text(attempt.asked)
    yield f"  the spec of the override{place} says `{stated}` here, and no rule is asked"
    if attempt.outcome is not Outcome.TAKEN:
        yield f"  {outcome_text(attempt, dim, sharding, plan.mesh)}"
    if attempt.asked != wanted:
        blockers = _blockers(sharding, index, wanted)
        for other in blockers:
            yield f"  {_in_use(sharding, other, wanted)}"
        if not blockers:
            yield from _not_divisible(dim, wanted, plan)


def _unnamed(sharding: Sharding) -> Iterator[str]:
    if isinstance(sharding, ActivationSharding):
        yield "  the dimension has no name, so no rule is asked"
        place = _place(sharding.activation.span)
        yield f"  help: name it in the activation `{sharding.activation.name}`{place}"
        return
    if sharding.mismatch is not None:
        names = f"{len(sharding.mismatch)} names for {sharding.param.rank} dimensions"
        yield f"  the array has {names}, so it counts as unnamed and no rule is asked"
        return
    yield "  the dimension has no name, so no rule is asked"
    if sharding.matched is not None:
        yield f"  help: name it in `{sharding.matched.pattern}`{_place(sharding.matched.span)}"
    elif sharding.param.logical_axes is None:
        yield "  help: add an entry to `params` that matches the path"


def _refused(
    sharding: Sharding, index: int, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    """Yield each reason once, then the advice that was found to work."""
    dim = sharding.dims[index]
    blockers = _blockers(sharding, index, wanted)
    tried = next((a for a in dim.attempts if wanted in (a.mesh_axes, a.asked)), None)
    if tried is not None:
        said = outcome_text(tried, dim, sharding, plan.mesh)
        yield f"  `{tried}`{_place(tried.span)}: {said}"
    else:
        yield from _not_tried(dim, wanted, plan)
    for other in blockers:
        if tried is None or tried.blocked_by != other:
            yield f"  {_in_use(sharding, other, wanted)}"
    if tried is None or tried.outcome is not Outcome.INDIVISIBLE:
        yield from _not_divisible(dim, wanted, plan)
    yield from _advice(sharding, index, wanted, plan)


def _not_tried(dim: DimSharding, wanted: tuple[str, ...], plan: ShardingPlan) -> Iterator[str]:
    later = _rule_for(dim, wanted, plan)
    if later is None:
        yield f"  no rule says `{dim.logical_axis} -> {target_text(wanted)}`"
    elif dim.taken is not None:
        first = f"`{dim.taken}`{_place(dim.taken.span)} comes first"
        yield f"  {first}, before `{later}`{_place(later.span)}"


def _rule_for(dim: DimSharding, wanted: tuple[str, ...], plan: ShardingPlan) -> AxisRule | None:
    rules = plan.spec.axis_rules
    same = (r for r in rules if (r.logical_axis, r.mesh_axes) == (dim.logical_axis, wanted))
    return next(same, None)


def _blockers(sharding: Sharding, index: int, wanted: tuple[str, ...]) -> list[int]:
    """Return the other dimensions that have one of the mesh axes."""
    return [
        other
        for other, member in enumerate(sharding.dims)
        if other != index and set(wanted) & set(member.mesh_axes)
    ]


def _in_use(sharding: Sharding, other: int, wanted: tuple[str, ...]) -> str:
    member = sharding.dims[other]
    shared = ", ".join(axis for axis in wanted if axis in member.mesh_axes)
    name = member.logical_axis or "_"
    by = ""
    if member.rule is not None and member.taken is not None:
        by = f", by `{member.taken}`{_place(member.taken.span)}"
    return f"`{shared}` is in use by dim {other} ({name}) of the same {_kind(sharding)}{by}"


def _not_divisible(dim: DimSharding, wanted: tuple[str, ...], plan: ShardingPlan) -> Iterator[str]:
    ways = _ways(wanted, plan)
    if dim.size is not None and not divides(ways, dim.size, dim.unit):
        unit = f" in units of {dim.unit}" if dim.unit > 1 else ""
        yield f"  {dim.size} is not divisible by {ways}{unit}"


def _ways(wanted: tuple[str, ...], plan: ShardingPlan) -> int:
    ways = 1
    for axis in wanted:
        ways *= plan.mesh.sizes[axis]
    return ways


def _advice(
    sharding: Sharding, index: int, wanted: tuple[str, ...], plan: ShardingPlan
) -> Iterator[str]:
    """Yield where the rule would have to stand, and what the array would then be."""
    dim = sharding.dims[index]
    if dim.size is not None and not divides(_ways(wanted, plan), dim.size, dim.unit):
        return
    rule = AxisRule(dim.logical_axis or "", wanted)
    blockers = _blockers(sharding, index, wanted)
    anchor = _anchor(sharding, (index, *blockers), plan)
    found = _with_rule(sharding, rule, anchor, plan)
    if found[index].mesh_axes != wanted:
        if any(sharding.dims[other].logical_axis == dim.logical_axis for other in blockers):
            yield f"  of two dimensions called `{dim.logical_axis}` the first is served first"
        return
    known = _rule_for(dim, wanted, plan)
    if anchor is None:
        yield f"  help: add the rule `{rule}`"
    else:
        verb = "move" if known is not None else "put"
        yield f"  help: {verb} `{rule}` before `{anchor}`{_place(anchor.span)}"
    lost = [
        f"dim {other} ({member.logical_axis or '_'}) is then on {target_text(after.mesh_axes)}"
        for other, (member, after) in enumerate(zip(sharding.dims, found, strict=True))
        if other != index and member.mesh_axes != after.mesh_axes
    ]
    yield f"    {'; '.join([*lost, _answer(sharding, found)])}"


def _anchor(sharding: Sharding, dims: tuple[int, ...], plan: ShardingPlan) -> AxisRule | None:
    """Return the first of the rules that placed these dimensions."""
    winners = [taken.rule for at in dims if (taken := sharding.dims[at].taken) is not None]
    return next((r for r in plan.spec.axis_rules if any(r is w for w in winners)), None)


def _with_rule(
    sharding: Sharding, rule: AxisRule, anchor: AxisRule | None, plan: ShardingPlan
) -> Dims:
    """Return the dimensions as they would be with `rule` before `anchor`, or after all rules."""
    rules: list[AxisRule] = []
    for known in plan.spec.axis_rules:
        if known is anchor:
            rules.append(rule)
        rules.append(known)
    if anchor is None:
        rules.append(rule)
    resolver = array_resolver(replace(plan.spec, axis_rules=tuple(rules)), plan.target)
    return resolver.dims(tuple(dim.size for dim in sharding.dims), sharding.logical_axes)


def _answer(before: Sharding, dims: Dims) -> str:
    """Return what the array or the activation would be, an array with its bytes."""
    if isinstance(before, ActivationSharding):
        return f"the activation would be {replace(before, dims=dims).partition_spec}"
    after = replace(before, dims=dims)
    now, then = before.per_device_bytes, after.per_device_bytes
    size = f"the array would be {after.partition_spec} and take {binary_bytes(then)} per device"
    if now == then:
        return f"{size}, as now"
    change = "more" if then > now else "less"
    return f"{size}, {binary_bytes(abs(then - now))} {change}"


def _place(span: Span | None) -> str:
    return f" ({span.place})" if span else ""
