"""A priority changes who wins a mesh axis against the order of the file, or changes nothing.

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
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model
      - embed -> model | data
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from shardspec.analysis.alike import Alike
from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span
from shardspec.diagnostics.codes import PRIORITY_REORDERS as CODE
from shardspec.ir.grouping import counted
from shardspec.ir.plan import Dims
from shardspec.ir.spec import AxisRule, Spec, target_text
from shardspec.lints.context import Context
from shardspec.lints.what_if import Answer, Asked, answers_under, asked


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each priority: what it changes, or that it changes nothing."""
    if not any(plan.params or plan.activations for plan in context.plans):
        return
    plans = [asked(plan) for plan in context.plans]
    for rules in _with_priority(context.spec):
        changed = list(_changed(plans, rules))
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
    found: dict[object, list[AxisRule]] = {}
    for rule in spec.placed_rules:
        if rule.priority and rule.span is not None:
            span = rule.span
            found.setdefault((span.source, span.line, rule.priority), []).append(rule)
    yield from map(tuple, found.values())


def _changed(plans: Sequence[Asked], rules: Sequence[AxisRule]) -> Iterator[tuple[str, Answer]]:
    """Yield each answer, with its target, that would be another without the priority."""
    mine = {rule.span for rule in rules}
    placed = plans[0].plan.spec.placed_rules
    plain = sorted(placed, key=lambda rule: 0 if rule.span in mine else rule.priority)
    axes = frozenset(rule.logical_axis for rule in rules)
    for each in plans:
        for answer in answers_under(each, plain, axes):
            if answer.is_changed:
                yield each.plan.target.name, answer


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
    rules: Sequence[AxisRule], changed: Sequence[tuple[str, Answer]], context: Context
) -> Diagnostic:
    target, answer = changed[0]
    rule = rules[0]
    other = _loser(answer, rules, context) or _other(answer, rules)
    own = context.is_own(rule.span)
    labels = [] if rule.span is None else [Label(rule.span, f"priority {rule.priority}", own)]
    if other is not None and other.span is not None and other.span != rule.span:
        order = "comes first by priority" if other.priority else "comes first by the file"
        labels.append(Label(other.span, order, not own))
    if labels and not any(label.primary for label in labels):
        labels[0] = Label(labels[0].span, labels[0].text)
    return Diagnostic(
        CODE,
        f"`@ {rule.priority}` of `{_text(rules)}` decides against the order of the file: on target"
        f" `{target}` `{answer.names[0]}` is {answer.spec_now}, not {answer.spec_then}",
        tuple(labels),
        notes=(f"it changes {_subjects(changed)}",),
        help="put the rule where its priority says, and leave the priority out"
        if own
        else f"a rule `{_text(rules)}` of your own takes its place, without the priority",
    )


def _subjects(changed: Sequence[tuple[str, Answer]]) -> str:
    names: dict[str, set[str]] = {"array": set(), "activation": set()}
    for _, answer in changed:
        kind = "array" if isinstance(answer.subject, Alike) else "activation"
        names[kind].update(answer.names)
    return " and ".join(counted(len(each), kind) for kind, each in names.items() if each)


def _idle(rules: Sequence[AxisRule], context: Context) -> Diagnostic:
    rule = rules[0]
    plan = context.plans[0]
    arrays = counted(len(plan.params), "array")
    activations = counted(len(plan.activations), "activation")
    return Diagnostic(
        CODE,
        f"`@ {rule.priority}` of `{_text(rules)}` changes nothing",
        () if rule.span is None else (Label(rule.span, f"priority {rule.priority}"),),
        notes=(f"{arrays} and {activations} have the same answer without it, on every target",),
        help="leave it out",
        fix=_fix(rules),
    )


def _text(rules: Sequence[AxisRule]) -> str:
    names = ", ".join(dict.fromkeys(rule.logical_axis for rule in rules))
    targets = " | ".join(dict.fromkeys(target_text(rule.mesh_axes) for rule in rules))
    return f"{names} -> {targets}"


def _fix(rules: Sequence[AxisRule]) -> Fix | None:
    spans = [rule.span for rule in rules if rule.span is not None]
    last = max(spans, key=lambda span: span.end)
    found = re.compile(r"[ \t]*@[ \t]*[+-]?[0-9]+").match(last.source.text, last.end)
    if found is None:
        return None
    gone = Span(last.source, found.start(), found.end())
    return Fix(f"take out `{gone.text.strip()}`", (Edit(gone, ""),))
