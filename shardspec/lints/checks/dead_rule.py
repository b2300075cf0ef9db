"""A rule can never fire, on any array and any target.

Move the rule up, or remove it. It is a repetition, it comes after a `none` for the same axis, or it
comes after a rule for a part of its mesh axes, which fires first in every case: where `(data,
model)` is free and divides a dimension, so does `model`. Put the rule with more mesh axes first.
Mesh axes that a target lacks drop out of its tuples. A rule that can fire on one target is not
reported.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model | (data, model)
    arrays:
      mlp/wi/kernel: bf16[_=64 mlp=128]

Good:
    -  - mlp -> model | (data, model)
    +  - mlp -> (data, model) | model
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, Fix, codes, labels_at
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import AxisRule, Target
from shardspec.language.removal import is_only_alternative, without_alternative, without_item
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import dead_rules, on_targets


def check(context: Context) -> Iterator[Diagnostic]:
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
        finding = _finding(dead, shadows, context.spec.targets)
        is_all = served[dead[0].span] == len(dead)
        yield replace(finding, fix=_fix(dead[0], shadows) if is_all else None)


def _finding(
    dead: Sequence[AxisRule], shadows: Sequence[AxisRule], targets: Sequence[Target]
) -> Diagnostic:
    rule, shadow = dead[0], shadows[0]
    target = rule.right
    axes = ", ".join(dict.fromkeys(each.logical_axis for each in dead))
    others = ((each.span, _label(rule, each)) for each in shadows)
    return Diagnostic(
        codes.DEAD_RULE,
        f"`{axes} -> {target}` can never fire{_where(targets)}: {_why(rule, shadows)}",
        labels_at((rule.span, "never fires"), *others),
        notes=tuple(_notes(rule, shadows)),
        help=_help(rule, shadow),
    )


def _fix(rule: AxisRule, shadows: Sequence[AxisRule]) -> Fix | None:
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


def _why(rule: AxisRule, shadows: Sequence[AxisRule]) -> str:
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


def _notes(rule: AxisRule, shadows: Sequence[AxisRule]) -> Iterator[str]:
    whole = (set(shadow.mesh_axes) for shadow in shadows if not shadow.in_part)
    if not all(axes <= set(rule.mesh_axes) for axes in whole):
        yield "mesh axes that a target lacks drop out of its tuples"
    for priority in dict.fromkeys(shadow.priority for shadow in shadows):
        if priority != rule.priority:
            yield f"priority {priority} comes before {rule.priority}"


def _help(rule: AxisRule, shadow: AxisRule) -> str:
    later, earlier = rule.right, shadow.right
    if set(rule.mesh_axes) == set(shadow.mesh_axes):
        return f"remove one of the two: `{rule}`"
    if shadow.priority != rule.priority:
        return f"give it a priority below `@ {shadow.priority}`, or remove it"
    return f"put `{later}` before `{earlier}`, or remove it"
