"""A tuple is skipped because one of its axes is taken, although the others would divide.

Tuples are all or nothing. Where another dimension of the array has one of the mesh axes, no later
rule takes what is free, and the free part divides, devices hold more than they need to. Reported
where that is large, and for rules of the spec itself also where Flax NNX gives both dimensions the
mesh axis, which JAX refuses. Say what comes next: `embed -> (fsdp, expert) | fsdp`; or
`embed -> (fsdp, expert)?`, which goes without whatever does not fit. A final `none` says that
nothing should. A tuple that can never fire is SHD214.

Activations count for the dimensions that no array has, such as the batch: whole there, every device
does the work of all. Dimensions that arrays have as well, activations often keep whole on purpose.
`expert batch _ embed` with `batch -> (data, expert)` has `expert` taken, and `data` stands idle:
`batch -> (data, expert) | data`. A batch that loses to a dimension behind it is SHD229.

Bad:
    shardspec: 1
    mesh: {fsdp: 8, expert: 4}
    rules:
      - expert -> expert
      - embed -> (fsdp, expert)
      - mlp -> none
    arrays:
      moe/wi: bf16[expert=8 embed=1024 mlp=65536]

Good:
    -  - embed -> (fsdp, expert)
    +  - embed -> (fsdp, expert) | fsdp
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Edit, Fix, Span, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, described, listed, named
from shardspec.ir.plan import ActivationSharding, Attempt, DimSharding, Outcome, ShardingPlan
from shardspec.ir.spec import AxisRule, Spec, target_text
from shardspec.lints.checks.whole_batch import lost_batch
from shardspec.lints.context import Context
from shardspec.lints.evidence import rules as rule_lists
from shardspec.lints.evidence.arrays import Affected

Axes = tuple[str, ...]


@dataclass(slots=True)
class _Skipped:
    """A tuple that is skipped for want of some of its axes, and what the rest would give.

    Attributes:
      saved: target -> bytes that each device would be spared.
      taker: the rule that has the other axes.
      is_refused: whether JAX refuses what Flax NNX makes of the two rules.
    """

    rule: AxisRule
    free: Axes
    taker: AxisRule
    is_refused: bool = False
    saved: dict[str, int] = field(default_factory=dict)
    affected: Affected = field(default_factory=Affected)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each tuple and the part of it that would have split more."""
    dead = rule_lists.dead_rules(context.spec)
    found: dict[tuple[object, ...], _Skipped] = {}
    for plan in context.plans:
        nnx = rule_lists.rules_of_nnx(plan)
        for rule, free, taker in dict.fromkeys(_skipped(plan, dead)):
            better = _better(plan, rule, free)
            saved = sum(answer.saved_bytes for answer in better)
            of_activations = [_is_activation(answer) for answer in better]
            refused = (
                context.is_own(rule.span)
                and not all(of_activations)
                and rule_lists.nnx_refuses(nnx, rule.logical_axis, taker.logical_axis)
            )
            is_large = context.is_large(saved, plan.target.name)
            if not (refused or is_large or any(of_activations)):
                continue
            case = found.setdefault((rule.span or rule, free), _Skipped(rule, free, taker))
            case.is_refused |= refused
            case.saved[plan.target.name] = saved
            for answer in better:
                case.affected.add(answer.subject, plan)
    for case in found.values():
        yield _finding(case, context)


def _skipped(plan: ShardingPlan, dead: Container[int]) -> Iterator[tuple[AxisRule, Axes, AxisRule]]:
    """Yield each tuple that something could not have, the free part, and who has the rest."""
    for dims, dim in _judged(plan):
        for attempt in dim.attempts:
            holder = attempt.blocked_by
            rule, taker = attempt.rule, None if holder is None else dims[holder].rule
            if rule is None or taker is None or attempt.outcome is not Outcome.BUSY:
                continue
            if len(attempt.mesh_axes) < 2 or attempt.position in dead:
                continue
            free = _free(attempt, dims)
            if free and _is_more(dim, plan.mesh.ways(free)):
                yield rule, free, taker


def _judged(plan: ShardingPlan) -> Iterator[tuple[Sequence[DimSharding], DimSharding]]:
    """Yield the dimensions of arrays, and those of activations that are no array's."""
    groups = plan.alike
    for group in groups:
        yield from ((group.dims, dim) for dim in group.dims)
    of_arrays = {dim.logical_axis for group in groups for dim in group.dims}
    for sharding in plan.activations:
        reported = lost_batch(sharding)
        for dim in sharding.dims:
            axis = dim.logical_axis or ""
            own = axis not in of_arrays if groups else rule_lists.is_batch(axis)
            if own and dim is not reported:
                yield sharding.dims, dim


def _free(attempt: Attempt, dims: Sequence[DimSharding]) -> Axes:
    """Return the mesh axes of an attempt that no rule before it had taken."""
    used = {
        axis
        for dim in dims
        if dim.taken is not None and dim.taken.position < attempt.position
        for axis in dim.mesh_axes
    }
    return tuple(axis for axis in attempt.mesh_axes if axis not in used)


def _is_more(dim: DimSharding, ways: int) -> bool:
    """Say whether a dimension ended with fewer shards than it could have, and not by `none`.

    A size that is not known, as activations may have it, counts as one that divides.
    """
    if dim.taken is not None and dim.taken.is_none:
        return False
    return dim.ways < ways and dim.fits(ways)


def _better(plan: ShardingPlan, rule: AxisRule, free: Axes) -> list[rule_lists.Answer]:
    """Return what holds less, or is split more, where the free part stands behind the tuple."""
    rules: list[AxisRule] = []
    axes: set[str] = set()
    for each in plan.spec.axis_rules:
        rules.append(each)
        if each is rule or (each.span is not None and each.span == rule.span):
            rules.append(AxisRule(each.logical_axis, free, each.priority))
            axes.add(each.logical_axis)
    answers = rule_lists.answers_under(plan, rules, frozenset(axes))
    return [answer for answer in answers if answer.is_changed and _is_gain(answer)]


def _is_activation(answer: rule_lists.Answer) -> bool:
    return isinstance(answer.subject, ActivationSharding)


def _is_gain(answer: rule_lists.Answer) -> bool:
    if not _is_activation(answer):
        return bool(answer.saved_bytes)
    now, then = (math.prod(dim.ways for dim in dims) for dims in (answer.now, answer.then))
    return then > now


def _finding(case: _Skipped, context: Context) -> Diagnostic:
    rule, part = case.rule, target_text(case.free)
    busy = [axis for axis in rule.mesh_axes if axis in case.taker.mesh_axes]
    return Diagnostic(
        codes.TUPLE_SKIPPED,
        f"`{rule}` is skipped on {named('target', case.saved)}: {listed(busy)} is taken, and"
        f" `{part}` alone would divide",
        labels_at((rule.span, "skipped"), (case.taker.span, "fires first")),
        notes=tuple(_notes(case, part)),
        help=f"`{rule} | {part}` takes what is free; `{rule}?` whatever of it fits;"
        " `| none` says that nothing should",
        fix=_fix(rule, part, context.spec) if context.is_own(rule.span) else None,
    )


def _notes(case: _Skipped, part: str) -> Iterator[str]:
    """Yield what it costs: bytes of arrays, and the activations that stay whole."""
    most = max(case.saved.values())
    arrays, activations = case.affected.arrays, case.affected.activations
    if arrays and most > 0:
        upto = "up to " if len(set(case.saved.values())) > 1 else ""
        than = f"per device more than with `{part}`"
        yield f"{described(arrays)}; {upto}{binary_bytes(most)} {than}"
    if activations:
        could = f"`{case.rule.logical_axis}` could be split further"
        yield f"{named('activation', activations)}: {could}"

    if case.is_refused:
        yield "Flax NNX gives both the same mesh axis: JAX refuses that"


def _fix(rule: AxisRule, part: str, spec: Spec) -> Fix | None:
    span = rule.span
    if span is None or span.source != spec.source or not span.text.endswith(")"):
        return None
    end = Span(span.source, span.end, span.end)
    return Fix(f"add `| {part}` behind `{rule.right}`", (Edit(end, f" | {part}"),))
