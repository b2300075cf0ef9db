"""What one line of a spec does: what it wins, what it loses, and to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardspec.diagnostics import Span
from shardspec.ir.grouping import described
from shardspec.ir.plan import Attempt, DimSharding, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, Override, PathRule
from shardspec.ir.units import binary_bytes
from shardspec.report.explain import outcome_text


def explain_line(file: str, line: int, plan: ShardingPlan) -> Iterator[str]:
    """Yield what stands on the line and what it does on this target, if anything."""
    spec = plan.spec
    for rule in spec.axis_rules:
        if _stands_on(rule.span, file, line):
            yield from _rule(rule, plan)
    for path_rule in spec.path_rules:
        if _stands_on(path_rule.pattern.span, file, line):
            yield from _entry(f'params "{path_rule.pattern}"', path_rule, plan)
    for override in spec.overrides:
        if _covers(override.pattern.span, file, line) or _covers(override.span, file, line):
            yield from _entry(f'override "{override.pattern}"', override, plan)
    for axis in spec.logical_axes:
        if _stands_on(axis.span, file, line):
            users = [s.param.path for s in plan.params if axis.name in s.logical_axes]
            unit = f", unit {axis.unit}" if axis.unit > 1 else ""
            yield f"axis `{axis.name}` = {axis.size or 'any size'}{unit}"
            yield f"  used by {described(users) if users else 'no array'}"
    for target in spec.targets:
        if _stands_on(target.span, file, line) or any(
            _stands_on(member.span, file, line) for member in target.mesh.axes
        ):
            yield f"target `{target.name}`: mesh {target.mesh}"


def _stands_on(span: Span | None, file: str, line: int) -> bool:
    return span is not None and span.source.name == file and span.line == line


def _covers(span: Span | None, file: str, line: int) -> bool:
    return (
        span is not None
        and span.source.name == file
        and span.line <= line <= span.line + span.text.count("\n")
    )


def _rule(rule: AxisRule, plan: ShardingPlan) -> Iterator[str]:
    """Yield what became of a rule over all arrays, by outcome."""
    yield f"rule `{rule}`"
    outcomes: dict[str, list[ParamSharding]] = {}
    never = 0
    for sharding in plan.params:
        for dim in sharding.dims:
            if dim.logical_axis != rule.logical_axis:
                continue
            attempt = next((a for a in dim.attempts if a.rule is rule), None)
            if attempt is None:
                never += 1
                continue
            outcomes.setdefault(_said(attempt, dim, sharding, plan), []).append(sharding)
    for said, group in sorted(outcomes.items(), key=lambda item: -len(item[1])):
        size = binary_bytes(sum(sharding.per_device_bytes for sharding in group))
        paths = [sharding.param.path for sharding in group]
        yield f"  {said}: {described(paths)}, {size} per device"
    if never:
        yield f"  not asked: an earlier rule had placed `{rule.logical_axis}` in {never} arrays"
    if not outcomes and not never:
        yield f"  no array has the logical axis `{rule.logical_axis}`"


def _said(attempt: Attempt, dim: DimSharding, sharding: ParamSharding, plan: ShardingPlan) -> str:
    if attempt.outcome is Outcome.TAKEN:
        return "wins"
    return f"loses, {outcome_text(attempt, dim, sharding, plan.mesh)}"


def _entry(title: str, entry: PathRule | Override, plan: ShardingPlan) -> Iterator[str]:
    yield title
    named = [sharding for sharding in plan.params if sharding.matched is entry]
    if not named:
        yield "  names no array: nothing matches, or an earlier entry does"
        return
    yield f"  names {described([sharding.param.path for sharding in named])}"
    for spec, count in Counter(str(sharding.partition_spec) for sharding in named).most_common():
        yield f"  {spec}   {count} array{'s' if count > 1 else ''}"
