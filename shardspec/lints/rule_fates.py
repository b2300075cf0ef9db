"""What became of each alternative of the rules, over all arrays, activations and targets.

Read off the traces. The alternatives that one place of the source makes (`heads, kv -> model` makes
two) are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardspec.analysis.alike import alike
from shardspec.diagnostics import Span
from shardspec.ir.grouping import counted
from shardspec.ir.plan import DimSharding, Outcome
from shardspec.ir.spec import AxisRule, target_text
from shardspec.lints.context import Context
from shardspec.lints.dead_rule import dead_rules


@dataclass(slots=True)
class Fate:
    """What became of the alternative at one place.

    Attributes:
      rules: what stands there, one for each logical axis.
      outcomes: how often each came of it; an attempt counts once for all arrays that are alike.
      winners: the rules that took the dimension instead, or its mesh axes.
      refused: a dimension that its mesh axes do not divide.
      is_settled: whether such a dimension ended whole, which has its own finding, or by `none`,
        which says that this is meant.
      is_open: whether a dimension that it lost ended whole, and no rule says that this is meant.
      paths: of the arrays that have the logical axes.
    """

    rules: list[AxisRule]
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    winners: dict[AxisRule, None] = field(default_factory=dict)
    refused: DimSharding | None = None
    is_settled: bool = False
    is_open: bool = False
    paths: dict[str, None] = field(default_factory=dict)
    activations: dict[str, None] = field(default_factory=dict)

    @property
    def rule(self) -> AxisRule:
        """Return the first of the rules."""
        return self.rules[0]

    @property
    def text(self) -> str:
        """Return `heads, kv -> model`."""
        names = ", ".join(dict.fromkeys(rule.logical_axis for rule in self.rules))
        return f"{names} -> {target_text(self.rule.mesh_axes)}"

    def subjects(self) -> str:
        """Return how many arrays and activations it is for, and the first of them."""
        parts = []
        if self.paths:
            parts.append(counted(len(self.paths), "array"))
        if self.activations:
            parts.append(counted(len(self.activations), "activation"))
        return f"for {' and '.join(parts)}, first {next(iter(self.paths or self.activations))}"


def idle_rules(context: Context) -> Iterator[Fate]:
    """Yield the alternatives of the spec itself that some array or activation is for, and none has.

    Those are left out that could never fire, or ask for an axis no target has: both have findings
    of their own. None are looked for unless all targets are.
    """
    spec = context.spec
    plans = context.plans
    if not context.first or {plan.target.name for plan in plans} != {t.name for t in spec.targets}:
        return
    dead = {spec.axis_rules[position].span for position, _ in dead_rules(spec)}
    fates = _fates(context)
    for span, fate in fates.items():
        known = spec.mesh_axis_names.issuperset(fate.rule.mesh_axes)
        used = fate.paths or fate.activations
        if used and known and span not in dead and not fate.outcomes[Outcome.TAKEN]:
            yield fate


def _fates(context: Context) -> dict[Span, Fate]:
    """Return the fate of each place of the spec itself that has an alternative."""
    fates: dict[Span, Fate] = {}
    by_axis: dict[str, list[Fate]] = {}
    for rule in context.spec.axis_rules:
        if rule.span is not None and context.is_own(rule.span):
            fate = fates.setdefault(rule.span, Fate([]))
            fate.rules.append(rule)
            by_axis.setdefault(rule.logical_axis, []).append(fate)
    for plan in context.plans:
        for group in alike(plan):
            for fate in _concerned(group.dims, by_axis):
                _add(fate, group.dims)
                if plan is context.plans[0] and not fate.outcomes[Outcome.TAKEN]:
                    fate.paths.update((each.param.path, None) for each in group.shardings)
        for activation in plan.activations:
            for fate in _concerned(activation.dims, by_axis):
                _add(fate, activation.dims)
                fate.activations.setdefault(activation.activation.name)
    return fates


def _concerned(
    dims: Sequence[DimSharding], by_axis: Mapping[str, Sequence[Fate]]
) -> Iterator[Fate]:
    """Yield the fate of each alternative for an axis of this array, once."""
    seen: set[int] = set()
    for dim in dims:
        for fate in by_axis.get(dim.logical_axis or "", ()):
            if id(fate) not in seen:
                seen.add(id(fate))
                yield fate


def _add(fate: Fate, dims: Sequence[DimSharding]) -> None:
    """Add what became of an alternative on one array."""
    axes = {rule.logical_axis for rule in fate.rules}
    for dim in dims:
        if dim.logical_axis not in axes:
            continue
        rule = dim.rule
        attempt = next((a for a in dim.attempts if a.rule in fate.rules), None)
        if attempt is None:
            if rule is not None:
                fate.winners.setdefault(rule)
            continue
        fate.outcomes[attempt.outcome] += 1
        fate.is_open |= attempt.outcome is Outcome.BUSY and rule is None
        if attempt.outcome is Outcome.INDIVISIBLE:
            fate.refused = dim
            fate.is_settled |= rule is None or rule.is_none
        holder = None if attempt.blocked_by is None else dims[attempt.blocked_by].rule
        if holder is not None:
            fate.winners.setdefault(holder)
