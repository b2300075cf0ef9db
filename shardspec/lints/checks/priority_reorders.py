"""A priority changes which rule wins a mesh axis, or has no effect.

`@ N` is written on purpose, and read by those who look at the order of the lines alone. This shows
what it does: the array whose answer it changes, with both answers and the rule that would have come
first. One that changes nothing is better left out. A priority in what a spec extends is shown
where it puts a rule before one of the spec's own.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - embed -> model | data
      - mlp -> model @ -1
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]

Good:
     rules:
    +  - mlp -> model
    -  - mlp -> model @ -1
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span, codes, labels_at
from shardspec.diagnostics.words import by_key, counted
from shardspec.ir.plan import Dims, ShardingPlan
from shardspec.ir.spec import AxisRule, Spec
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected
from shardspec.lints.evidence.rules import Answer, answers_under, rules_text


def check(context: Context) -> Iterator[Diagnostic]:
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
        fix=_fix(rules),
    )


def _fix(rules: Sequence[AxisRule]) -> Fix | None:
    spans = [rule.span for rule in rules if rule.span is not None]
    last = max(spans, key=lambda span: span.end)
    found = re.compile(r"[ \t]*@[ \t]*[+-]?[0-9]+").match(last.source.text, last.end)
    if found is None:
        return None
    gone = Span(last.source, found.start(), found.end())
    return Fix(f"take out `{gone.text.strip()}`", (Edit(gone, ""),))
