"""A rule can never fire, on any array and any target.

It is repeated, or stands behind a `none` of the same axis, or behind a rule that asks for some
of its mesh axes and so fires wherever it could: where `(data, model)` divides a dimension and is
free, `model` alone does and is. Put the rule that asks for more first. Mesh axes that a target
lacks drop out of its tuples; a rule that can fire on one target is no finding.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model | (data, model)
    arrays:
      mlp/wi/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> (data, model) | model
    arrays:
      mlp/wi/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, Fix, Label
from shardspec.diagnostics.codes import DEAD_RULE as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.frontend.removal import is_only_alternative, without_alternative, without_item
from shardspec.ir.mesh import Mesh, MeshAxis
from shardspec.ir.plan import Outcome
from shardspec.ir.spec import AxisRule, Spec, Target, target_text
from shardspec.lints.context import Context
from shardspec.resolve.assign import RuleTable, rule_table


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each alternative of the spec itself that can never fire."""
    rules = context.spec.axis_rules
    alike: dict[object, tuple[list[AxisRule], list[AxisRule]]] = {}
    for position, before in dead_rules(context.spec):
        rule, shadows = rules[position], [rules[shadow] for shadow in before]
        if context.is_own(rule.span) and all(each.is_read for each in (rule, *shadows)):
            key = (rule.span, rule.mesh_axes, tuple(shadow.span for shadow in shadows))
            alike.setdefault(key, ([], shadows))[0].append(rule)
    served = Counter(rule.span for rule in rules) if alike else Counter()
    for dead, shadows in alike.values():
        finding = _finding(dead, shadows, context.spec.targets)
        is_all = served[dead[0].span] == len(dead)
        yield replace(finding, fix=_fix(dead[0], shadows) if is_all else None)


def dead_rules(spec: Spec) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the position of each dead rule, with those of the rules that fire in its place.

    Without targets, what holds on every mesh there could be.

    Invariants:
      dead: such a rule is never taken, by any array on any target.
      alive: any other rule that asks for known mesh axes is taken by some array, where other
        axes of the array have mesh axes to themselves first.
    """
    alive: set[int] = set()
    shadows: dict[int, dict[int, None]] = {}
    for table in _tables(spec):
        for position, shadow in _fates(table, only_equal=not spec.targets):
            if shadow is None:
                alive.add(position)
            else:
                shadows.setdefault(position, {}).setdefault(shadow)
    for position in sorted(shadows):
        if position not in alive:
            yield position, tuple(shadows[position])


def _tables(spec: Spec) -> Iterator[RuleTable]:
    """Yield the rules as each target sees them."""
    known = spec.mesh_axis_names
    for target in spec.targets:
        yield rule_table(spec.axis_rules, target.mesh, known_mesh_axes=known)
    if not spec.targets:
        names = dict.fromkeys(axis for rule in spec.axis_rules for axis in rule.mesh_axes)
        yield rule_table(spec.axis_rules, Mesh(tuple(MeshAxis(name, 1) for name in names)))


def _fates(table: RuleTable, *, only_equal: bool) -> Iterator[tuple[int, int | None]]:
    """Yield each rule that is not out of place here, with the one that always fires before it.

    Once the later rule's mesh axes are free and divide, those of a rule with some of them were
    free when it was tried, and divide too: their product is a divisor.
    """
    for entries in table.by_axis.values():
        before: list[tuple[frozenset[str], int]] = []
        for attempt in entries:
            if attempt.outcome is not Outcome.TAKEN:
                continue
            axes = frozenset(attempt.mesh_axes)
            shadow = next(
                (
                    earlier
                    for taken, earlier in before
                    if not taken or (taken == axes if only_equal else taken <= axes)
                ),
                None,
            )
            if shadow is None:
                before.append((axes, attempt.position))
            yield attempt.position, shadow


def _finding(
    dead: Sequence[AxisRule], shadows: Sequence[AxisRule], targets: Sequence[Target]
) -> Diagnostic:
    rule, shadow = dead[0], shadows[0]
    target = target_text(rule.mesh_axes)
    axes = ", ".join(dict.fromkeys(each.logical_axis for each in dead))
    labels = [Label(rule.span, "never fires")] if rule.span is not None else []
    spans = dict.fromkeys((each.span, _label(rule, each)) for each in shadows)
    labels += [
        Label(span, text, primary=False)
        for span, text in spans
        if span is not None and span != rule.span
    ]
    return Diagnostic(
        CODE,
        f"`{axes} -> {target}` can never fire{_where(targets)}: {_why(rule, shadows)}",
        tuple(labels),
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
        each.mesh_axes == rule.mesh_axes and each.span and each.span.source is span.source
        for each in shadows
    )
    edit = without_alternative(span)
    if edit is not None:
        return Fix(f"remove `{span.text}`", (edit,), is_sure=same)
    edit = without_item(span) if is_only_alternative(span) else None
    return Fix("remove the rule", (edit,), is_sure=same) if edit is not None else None


def _where(targets: Sequence[Target]) -> str:
    if len(targets) > 1:
        return f" on any of {len(targets)} targets"
    return f" on target `{targets[0].name}`" if targets else ""


def _why(rule: AxisRule, shadows: Sequence[AxisRule]) -> str:
    shadow = shadows[0]
    if shadow.mesh_axes == rule.mesh_axes:
        return "the same rule stands before it"
    if shadow.is_none:
        return "`none` before it is final"
    texts = list(dict.fromkeys(target_text(each.mesh_axes) for each in shadows))
    verb = "fires" if len(texts) == 1 else "fire"
    return f"{listed(texts)} before it {verb} wherever it could"


def _label(rule: AxisRule, shadow: AxisRule) -> str:
    if shadow.mesh_axes == rule.mesh_axes:
        return "here already"
    return "nothing after this is tried" if shadow.is_none else "fires first"


def _notes(rule: AxisRule, shadows: Sequence[AxisRule]) -> Iterator[str]:
    if not all(set(shadow.mesh_axes) <= set(rule.mesh_axes) for shadow in shadows):
        yield "mesh axes that a target lacks drop out of its tuples"
    for priority in dict.fromkeys(shadow.priority for shadow in shadows):
        if priority != rule.priority:
            yield f"priority {priority} comes before {rule.priority}"


def _help(rule: AxisRule, shadow: AxisRule) -> str:
    later, earlier = target_text(rule.mesh_axes), target_text(shadow.mesh_axes)
    if set(rule.mesh_axes) == set(shadow.mesh_axes):
        return "take one of the two out"
    if shadow.priority != rule.priority:
        return f"give it a priority below `@ {shadow.priority}`, or take it out"
    return f"put `{later}` before `{earlier}`, or take it out"
