"""Rules that do not fire, or not for what they were written for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, by_key, counted, described, listed, named
from shardspec.ir.plan import (
    ActivationSharding,
    Alike,
    Attempt,
    Dims,
    DimSharding,
    Outcome,
    ShardingPlan,
)
from shardspec.ir.spec import AxisRule, Spec, Target, target_text
from shardspec.language.removal import is_only_alternative, without_alternative, without_item
from shardspec.lints.checks.batch import lost_batch
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, cost, subjects, with_cost, would_divide
from shardspec.lints.evidence.rules import (
    Answer,
    RuleUse,
    answers_under,
    dead_rules,
    idle_rules,
    is_batch,
    nnx_refuses,
    on_targets,
    rules_of_nnx,
    rules_text,
    without_fallback,
)

# dead-rule


def dead_rule(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each alternative of the spec itself that can never fire."""
    rules = context.spec.axis_rules
    alike: dict[object, tuple[list[AxisRule], list[AxisRule]]] = {}
    for position, before in dead_rules(context.spec).items():
        rule, shadows = rules[position], [rules[shadow] for shadow in before]
        if context.is_own(rule.span) and all(each.is_read for each in (rule, *shadows)):
            key = (rule.span, rule.right, tuple(shadow.span for shadow in shadows))
            alike.setdefault(key, ([], shadows))[0].append(rule)
    served = Counter(rule.span for rule in rules) if alike else Counter()
    for dead, shadows in alike.values():
        finding = _dead_rule_finding(dead, shadows, context.spec.targets)
        is_all = served[dead[0].span] == len(dead)
        yield replace(finding, fix=_dead_rule_fix(dead[0], shadows) if is_all else None)


def _dead_rule_finding(
    dead: Sequence[AxisRule], shadows: Sequence[AxisRule], targets: Sequence[Target]
) -> Diagnostic:
    rule, shadow = dead[0], shadows[0]
    target = rule.right
    axes = ", ".join(dict.fromkeys(each.logical_axis for each in dead))
    others = ((each.span, _label(rule, each)) for each in shadows)
    return Diagnostic(
        codes.DEAD_RULE,
        f"`{axes} -> {target}` can never fire{_where(targets)}: {_dead_rule_why(rule, shadows)}",
        labels_at((rule.span, "never fires"), *others),
        notes=tuple(_dead_rule_notes(rule, shadows)),
        help=_dead_rule_help(rule, shadow),
    )


def _dead_rule_fix(rule: AxisRule, shadows: Sequence[AxisRule]) -> Fix | None:
    """Return the fix that takes the alternative out, or the rule where it has no other.

    It is sure where the same stands in this file anyway. An alternative that serves other logical
    axes too has to stay.
    """
    span = rule.span
    if span is None:
        return None
    same = all(
        each.right == rule.right and each.span and each.span.source == span.source
        for each in shadows
    )
    edit = without_alternative(span)
    if edit is not None:
        return Fix(f"remove `{span.text}`", (edit,), is_sure=same)
    edit = without_item(span) if is_only_alternative(span) else None
    return Fix("remove the rule", (edit,), is_sure=same) if edit is not None else None


def _where(targets: Sequence[Target]) -> str:
    return f" on target `{targets[0].name}`" if len(targets) == 1 else on_targets(len(targets))


def _dead_rule_why(rule: AxisRule, shadows: Sequence[AxisRule]) -> str:
    shadow = shadows[0]
    if shadow.right == rule.right:
        return "the same rule comes before it"
    if shadow.is_none:
        return "`none` before it is final"
    texts = list(dict.fromkeys(each.right for each in shadows))
    verb = "fires" if len(texts) == 1 else "fire"
    return f"{listed(texts)} before it {verb} wherever it could"


def _label(rule: AxisRule, shadow: AxisRule) -> str:
    if shadow.right == rule.right:
        return "here already"
    return "nothing after this is tried" if shadow.is_none else "fires first"


def _dead_rule_notes(rule: AxisRule, shadows: Sequence[AxisRule]) -> Iterator[str]:
    whole = (set(shadow.mesh_axes) for shadow in shadows if not shadow.in_part)
    if not all(axes <= set(rule.mesh_axes) for axes in whole):
        yield "mesh axes that a target lacks drop out of its tuples"
    for priority in dict.fromkeys(shadow.priority for shadow in shadows):
        if priority != rule.priority:
            yield f"priority {priority} comes before {rule.priority}"


def _dead_rule_help(rule: AxisRule, shadow: AxisRule) -> str:
    later, earlier = rule.right, shadow.right
    if set(rule.mesh_axes) == set(shadow.mesh_axes):
        return f"remove one of the two: `{rule}`"
    if shadow.priority != rule.priority:
        return f"give it a priority below `@ {shadow.priority}`, or remove it"
    return f"put `{later}` before `{earlier}`, or remove it"


# rule-without-array


def rule_without_array(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that is tried, and always loses or does not divide."""
    for use in idle_rules(context):
        busy, refused = use.outcomes[Outcome.BUSY], use.outcomes[Outcome.INDIVISIBLE]
        if refused and use.is_settled:
            continue
        is_loss = use.is_open and _is_for_large(use, context)
        if refused or (busy and (context.spec.activations or is_loss)):
            yield _rule_without_array_finding(use, context)


def _is_for_large(use: RuleUse, context: Context) -> bool:
    """Say whether the arrays that it is for are large, where they are most."""
    most = cost(context, use.affected.arrays)
    return most is not None and is_large(most.bytes, most.held)


def _rule_without_array_finding(use: RuleUse, context: Context) -> Diagnostic:
    finding = Diagnostic(
        codes.RULE_WITHOUT_ARRAY,
        f"`{use}` shards nothing{on_targets(len(context.plans))}: {_rule_without_array_why(use)}",
        use.labels("never fires"),
        notes=(use.note(),),
        help=_rule_without_array_help(use, context),
    )
    paths = tuple(use.affected.arrays)
    most = cost(context, paths)
    if most is None:
        return finding
    return replace(finding, notes=(f"{use.note()}; {most}",), arrays=paths, bytes=most.bytes)


def _rule_without_array_why(use: RuleUse) -> str:
    reasons = []
    axes = use.rule.right
    if use.outcomes[Outcome.BUSY]:
        holders = dict.fromkeys(rule.logical_axis for rule in use.winners if rule.mesh_axes)
        verb = "has" if len(holders) == 1 else "have"
        reasons.append(f"{listed(holders, limit=3)} always {verb} `{axes}` before it")
    if use.refused is not None:
        reasons.append(
            f"`{axes}` does not divide `{use.refused.logical_axis}` = {use.refused.size}"
        )
    return "; ".join(reasons)


def _rule_without_array_help(use: RuleUse, context: Context) -> str:
    rules = context.spec.axis_rules
    spans = {rule.span for rule in rules if rule in use.rules}
    axes = {rule.logical_axis for rule in use.rules}
    others = {r.logical_axis for r in rules if r.logical_axis in axes and r.span not in spans}
    names = ", ".join(rule.logical_axis for rule in use.rules)
    out = "remove it: no sharding changes"
    way_out = out if others == axes else f"`{names} -> none` says what happens"
    higher = "; or put it before what fires first" if use.outcomes[Outcome.BUSY] else ""
    return way_out + higher


# fallback-never-reached


def fallback_never_reached(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each alternative that is not once tried where it could fire."""
    for use in idle_rules(context):
        if set(+use.outcomes) <= {Outcome.ABSENT}:
            yield _fallback_never_reached_finding(use, len(context.plans))


def _fallback_never_reached_finding(use: RuleUse, targets: int) -> Diagnostic:
    before = dict.fromkeys(rule.right for rule in use.winners)
    verb = "fires" if len(before) == 1 else "fire"
    loss = ", and a size that does not divide is an error" if use.rule.is_none else ""
    return Diagnostic(
        codes.FALLBACK_NEVER_REACHED,
        f"`{use}` is never tried{on_targets(targets)}: {listed(before, limit=3)} before it always"
        f" {verb}",
        use.labels("never tried"),
        notes=(use.note(),),
        help=f"remove it: no sharding changes{loss}",
        fix=without_fallback(use.rule.span),
    )


# priority-reorders


def priority_reorders(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each priority: what it changes, or that it changes nothing."""
    if not any(plan.arrays or plan.activations for plan in context.plans):
        return
    for rules in _with_priority(context.spec):
        changed = list(_changed(context.plans, rules))
        own = context.is_own(rules[0].span)
        if changed and own:
            yield _reorders(rules, changed, context)
        elif changed:
            lost = [each for each in changed if _loser(each[1], rules, context)]
            if lost:
                yield _reorders(rules, lost, context)
        elif own:
            yield _idle(rules, context)


def _with_priority(spec: Spec) -> Iterator[tuple[AxisRule, ...]]:
    """Yield the alternatives of each rule that has a priority."""
    found = by_key(
        ((rule.span.source, rule.span.line, rule.priority), rule)
        for rule in spec.placed_rules
        if rule.priority and rule.span is not None
    )
    yield from map(tuple, found.values())


def _changed(
    plans: Sequence[ShardingPlan], rules: Sequence[AxisRule]
) -> Iterator[tuple[ShardingPlan, Answer]]:
    """Yield each answer, with its plan, that would be another without the priority."""
    mine = {rule.span for rule in rules}
    placed = plans[0].spec.placed_rules
    plain = sorted(placed, key=lambda rule: 0 if rule.span in mine else rule.priority)
    axes = frozenset(rule.logical_axis for rule in rules)
    for plan in plans:
        for answer in answers_under(plan, plain, axes):
            if answer.is_changed:
                yield plan, answer


def _rivals(before: Dims, after: Dims, rules: Sequence[AxisRule]) -> Iterator[AxisRule]:
    """Yield the rules, beside these, that take a dimension in `after` and not in `before`."""
    for old, new in zip(before, after, strict=True):
        if new.rule is not None and new.mesh_axes != old.mesh_axes and new.rule not in rules:
            yield new.rule


def _loser(answer: Answer, rules: Sequence[AxisRule], context: Context) -> AxisRule | None:
    """Return the spec's own rule that would take a dimension, were it not for the priority."""
    rivals = _rivals(answer.now, answer.then, rules)
    return next((rule for rule in rivals if context.is_own(rule.span)), None)


def _other(answer: Answer, rules: Sequence[AxisRule]) -> AxisRule | None:
    """Return the rule that the priority was decided against, or for."""
    lost, won = (answer.now, answer.then), (answer.then, answer.now)
    return next(chain(_rivals(*lost, rules), _rivals(*won, rules)), None)


def _reorders(
    rules: Sequence[AxisRule], changed: Sequence[tuple[ShardingPlan, Answer]], context: Context
) -> Diagnostic:
    (plan, answer), rule = changed[0], rules[0]
    affected = Affected()
    for each, other_answer in changed:
        affected.add(other_answer.subject, each)
    first = next(iter(affected.arrays or affected.activations))
    other = _loser(answer, rules, context) or _other(answer, rules)
    own = context.is_own(rule.span)
    order = "priority" if other is not None and other.priority else "the file"
    return Diagnostic(
        codes.PRIORITY_REORDERS,
        f"`@ {rule.priority}` of `{rules_text(rules)}` decides against the order of the file: on"
        f" target `{plan.target.name}` `{first}` is {answer.spec_now}, not {answer.spec_then}",
        labels_at(
            *context.own_first(
                (rule.span, f"priority {rule.priority}"),
                (other.span if other is not None else None, f"comes first by {order}"),
            )
        ),
        notes=(f"it changes {affected.counts}",),
        help="put the rule where its priority says, and leave the priority out"
        if own
        else f"a rule `{rules_text(rules)}` of your own takes its place, without the priority",
    )


def _idle(rules: Sequence[AxisRule], context: Context) -> Diagnostic:
    rule = rules[0]
    plan = context.plans[0]
    arrays = counted(len(plan.arrays), "array")
    activations = counted(len(plan.activations), "activation")
    return Diagnostic(
        codes.PRIORITY_REORDERS,
        f"`@ {rule.priority}` of `{rules_text(rules)}` changes nothing",
        () if rule.span is None else (Label(rule.span, f"priority {rule.priority}"),),
        notes=(f"{arrays} and {activations} have the same answer without it, on every target",),
        help="leave it out",
        fix=_priority_reorders_fix(rules),
    )


def _priority_reorders_fix(rules: Sequence[AxisRule]) -> Fix | None:
    spans = [rule.span for rule in rules if rule.span is not None]
    last = max(spans, key=lambda span: span.end)
    found = re.compile(r"[ \t]*@[ \t]*[+-]?[0-9]+").match(last.source.text, last.end)
    if found is None:
        return None
    gone = Span(last.source, found.start(), found.end())
    return Fix(f"take out `{gone.text.strip()}`", (Edit(gone, ""),))


# tuple-skipped


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


def tuple_skipped(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each tuple and the part of it that would have split more."""
    dead = dead_rules(context.spec)
    found: dict[tuple[object, ...], _Skipped] = {}
    for plan in context.plans:
        nnx = rules_of_nnx(plan)
        for rule, free, taker in dict.fromkeys(_skipped(plan, dead)):
            better = _better(plan, rule, free)
            saved = sum(answer.saved_bytes for answer in better)
            of_activations = [_is_activation(answer) for answer in better]
            refused = (
                context.is_own(rule.span)
                and not all(of_activations)
                and nnx_refuses(nnx, rule.logical_axis, taker.logical_axis)
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
        yield _tuple_skipped_finding(case, context)


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
            own = axis not in of_arrays if groups else is_batch(axis)
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


def _better(plan: ShardingPlan, rule: AxisRule, free: Axes) -> list[Answer]:
    """Return what holds less, or is split more, where the free part stands behind the tuple."""
    rules: list[AxisRule] = []
    axes: set[str] = set()
    for each in plan.spec.axis_rules:
        rules.append(each)
        if each is rule or (each.span is not None and each.span == rule.span):
            rules.append(AxisRule(each.logical_axis, free, each.priority))
            axes.add(each.logical_axis)
    answers = answers_under(plan, rules, frozenset(axes))
    return [answer for answer in answers if answer.is_changed and _is_gain(answer)]


def _is_activation(answer: Answer) -> bool:
    return isinstance(answer.subject, ActivationSharding)


def _is_gain(answer: Answer) -> bool:
    if not _is_activation(answer):
        return bool(answer.saved_bytes)
    now, then = (math.prod(dim.ways for dim in dims) for dims in (answer.now, answer.then))
    return then > now


def _tuple_skipped_finding(case: _Skipped, context: Context) -> Diagnostic:
    rule, part = case.rule, target_text(case.free)
    busy = [axis for axis in rule.mesh_axes if axis in case.taker.mesh_axes]
    return Diagnostic(
        codes.TUPLE_SKIPPED,
        f"`{rule}` is skipped on {named('target', case.saved)}: {listed(busy)} is taken, and"
        f" `{part}` alone would divide",
        labels_at((rule.span, "skipped"), (case.taker.span, "fires first")),
        notes=tuple(_tuple_skipped_notes(case, part)),
        help=f"`{rule} | {part}` takes what is free; `{rule}?` whatever of it fits;"
        " `| none` says that nothing should",
        fix=_tuple_skipped_fix(rule, part, context.spec) if context.is_own(rule.span) else None,
    )


def _tuple_skipped_notes(case: _Skipped, part: str) -> Iterator[str]:
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


def _tuple_skipped_fix(rule: AxisRule, part: str, spec: Spec) -> Fix | None:
    span = rule.span
    if span is None or span.source != spec.source or not span.text.endswith(")"):
        return None
    end = Span(span.source, span.end, span.end)
    return Fix(f"add `| {part}` behind `{rule.right}`", (Edit(end, f" | {part}"),))


# lost-contest


_Sides = tuple[str | None, str | None]


class _Loss(NamedTuple):
    """One dimension that lost, on one target.

    Attributes:
      lost: the attempt that met a busy mesh axis.
      idle: the mesh axis that would split the dimension; None where NNX alone is at odds.
      saved: bytes per device that it would save; without one, those that a device holds.
      is_refused: whether NNX gives the mesh axis to both.
    """

    arrays: Alike
    dim: DimSharding
    lost: Attempt
    winner: DimSharding
    idle: str | None
    saved: int
    target: str
    is_refused: bool


def lost_contest(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pair of logical axes of which one leaves the other whole."""
    worst: dict[_Sides, _Loss] = {}
    paths: dict[_Sides, dict[str, None]] = {}
    for plan in context.plans:
        for loss in losses(context, plan):
            key = (loss.dim.logical_axis, loss.winner.logical_axis)
            paths.setdefault(key, {}).update(dict.fromkeys(loss.arrays.paths))
            if key not in worst or loss.saved > worst[key].saved:
                worst[key] = loss
    for sides, loss in worst.items():
        yield _lost_contest_finding(context, loss, tuple(paths[sides]))


def losses(context: Context, plan: ShardingPlan) -> Iterator[_Loss]:
    """Yield each dimension that lost a mesh axis and could have another one, or should say so.

    The rest of a tuple is no other one: SHD220 reports it.
    """
    groups = plan.alike
    in_use = dict.fromkeys(axis for group in groups for axis in group.mesh_axes)
    nnx, sizes = rules_of_nnx(plan), plan.mesh.sizes
    for group in groups:
        held = group.device_bytes
        for dim in group.dims:
            lost = _lost(dim)
            if lost is None or lost.blocked_by is None:
                continue
            winner = group.dims[lost.blocked_by]
            if winner.logical_axis == dim.logical_axis:  # SHD209
                continue
            busy = (*group.mesh_axes, *lost.mesh_axes)
            free = (axis for axis in in_use if axis not in busy)
            idle = next((axis for axis in free if would_divide(sizes[axis], dim)), None)
            saved = held - held // sizes[idle] if idle is not None else held
            refused = (
                not lost.is_of_preset
                and set(lost.mesh_axes) <= set(winner.mesh_axes)
                and nnx_refuses(nnx, winner.logical_axis, dim.logical_axis)
            )
            if refused or (idle is not None and context.is_large(saved, plan.target.name)):
                yield _Loss(group, dim, lost, winner, idle, saved, plan.target.name, refused)


def _lost(dim: DimSharding) -> Attempt | None:
    """Return the first attempt that met a busy mesh axis, where no rule ended otherwise."""
    outcomes = {attempt.outcome for attempt in dim.attempts}
    return dim.first_of(Outcome.BUSY) if outcomes <= {Outcome.BUSY, Outcome.ABSENT} else None


def _lost_contest_finding(context: Context, loss: _Loss, paths: tuple[str, ...]) -> Diagnostic:
    lost, won, idle = loss.lost, loss.winner.taken, loss.idle
    axis, winner = loss.dim.logical_axis, loss.winner.logical_axis
    taken = target_text(lost.mesh_axes)
    meant = f"say that this is intended: `{axis} -> {taken} | none`"
    if idle is None:
        then, notes = "no rule says what comes then", []
        help = f"give one of them another mesh axis; or {meant}"
    else:
        then = f"`{idle}` is idle"
        saved = f"up to {binary_bytes(loss.saved)} per device on target `{loss.target}`"
        notes = [f"{described(paths)}; {saved}"]
        help = (
            f"give one of them another mesh axis: `{axis} -> {taken} | {idle}`, or"
            f" `{winner} -> {idle}`; or {meant}"
        )
    if loss.is_refused:
        notes.append(f"Flax NNX gives both `{taken}`: JAX refuses that")
    finding = Diagnostic(
        codes.LOST_CONTEST,
        f"`{axis}` is replicated in `{loss.arrays.paths[0]}`: `{winner}` has `{taken}`, and {then}",
        labels_at(
            *context.own_first(
                (lost.span, f"`{axis}` finds it taken"),
                (won.span if won is not None else None, f"`{winner}` takes it first"),
            )
        ),
        notes=tuple(notes),
        help=help,
        arrays=paths,
        bytes=loss.saved,
    )
    return with_cost(finding, context, paths) if idle is None else finding


# contested-axis


@dataclass(slots=True)
class _Contest:
    """Two rules that met, in the first array or activation where they did."""

    name: str
    loser: DimSharding
    lost: Attempt
    winner: DimSharding
    affected: Affected = field(default_factory=Affected)


def contested_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each pair of rules that meet in an array or activation."""
    found: dict[object, _Contest] = {}
    for plan in context.plans:
        for subject in subjects(plan):
            for dim in subject.dims:
                for lost in dim.attempts:
                    if lost.outcome is not Outcome.BUSY or lost.blocked_by is None:
                        continue
                    winner = subject.dims[lost.blocked_by]
                    if winner.logical_axis == dim.logical_axis:  # SHD209
                        continue
                    key = (lost.rule, lost.span, winner.rule, winner.taken and winner.taken.span)
                    own = Affected()
                    own.add(subject, plan)
                    name = next(iter(own.arrays or own.activations))
                    contest = found.setdefault(key, _Contest(name, dim, lost, winner))
                    contest.affected.add(subject, plan)
    for contest in found.values():
        yield _contested_axis_finding(context, contest)


def _contested_axis_finding(context: Context, contest: _Contest) -> Diagnostic:
    loser, lost, winner = contest.loser, contest.lost, contest.winner
    won = winner.taken
    shared = [axis for axis in lost.mesh_axes if axis in winner.mesh_axes]
    one, other = winner.logical_axis or "_", loser.logical_axis or "_"
    then = f"on `{target_text(loser.mesh_axes)}`" if loser.mesh_axes else "whole"
    return Diagnostic(
        codes.CONTESTED_AXIS,
        f"`{one}` and `{other}` of `{contest.name}` both want `{target_text(tuple(shared))}`:"
        f" `{one}` has it, and `{other}` is {then}",
        labels_at(
            *context.own_first(
                (lost.span, f"`{other}` finds it taken"),
                (won.span if won is not None else None, f"`{one}` takes it first"),
            )
        ),
        notes=(*contest.affected.notes(), named("target", contest.affected.targets)),
        help=f"give one of them another mesh axis; or, in such arrays, another name than `{other}`,"
        " with a rule of its own",
        target=contest.affected.target,
        arrays=tuple(contest.affected.arrays),
    )
