"""What each rule of a spec does, and what other rules would do in its place.

A rule without effect can never fire, which the rules alone say (SHD214); or it never does, on any
array, activation and target, which the traces say (SHD217, SHD218); or the answers are the same
without it, which resolving them again says (SHD219). The alternatives that one place of the source
makes (`heads, kv -> model` makes two) are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from shardspec.diagnostics import Fix, Label, Span, labels_at
from shardspec.diagnostics.words import three_figures
from shardspec.ir import plan as plans
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, PartitionSpec, Spec, Target, axis_of
from shardspec.language.removal import without_alternative
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, Subject, subjects
from shardspec.resolve.match import RuleTable, rule_table
from shardspec.resolve.resolver import array_resolver

if TYPE_CHECKING:
    from shardspec.topology.placement import AxisExplanation, Placement

#: Places of other rules that are pointed at.
_SHOWN = 3


def dead_rules(spec: Spec) -> dict[int, tuple[int, ...]]:
    """Return the position of each dead rule, with those of the rules that fire in its place.

    Without targets, what holds on every mesh there could be.

    Invariants:
      dead: such a rule is never taken, by any array on any target.
      alive: any other rule that asks for known mesh axes is taken by some array, where other
        axes of the array have mesh axes to themselves first.
    """
    alive: set[int] = set()
    shadows: dict[int, dict[int, None]] = {}
    for table in _tables(spec):
        for position, shadow in _shadowed(table, only_equal=not spec.targets):
            if shadow is None:
                alive.add(position)
            else:
                shadows.setdefault(position, {}).setdefault(shadow)
    return {at: tuple(shadows[at]) for at in sorted(shadows) if at not in alive}


def _tables(spec: Spec) -> Iterator[RuleTable]:
    """Yield the rules as each target sees them."""
    known = spec.mesh_axis_names
    for target in spec.targets:
        yield rule_table(spec.axis_rules, target.mesh, known_mesh_axes=known)
    if not spec.targets:
        names = dict.fromkeys(axis for rule in spec.axis_rules for axis in rule.mesh_axes)
        yield rule_table(spec.axis_rules, Mesh(tuple(MeshAxis(name, 1) for name in names)))


def _shadowed(table: RuleTable, *, only_equal: bool) -> Iterator[tuple[int, int | None]]:
    """Yield each rule that is not out of place here, with the one that always fires before it.

    Once the later rule's mesh axes are free and divide, those of a rule with some of them were
    free when it was tried, and divide too: their product is a divisor.
    """
    for entries in table.by_axis.values():
        before: list[tuple[frozenset[str], int]] = []
        for attempt in entries:
            if attempt.outcome is not plans.Outcome.TAKEN:
                continue
            ways = _ways_to_fire(attempt, whole=only_equal)
            shadows = [
                next(
                    (
                        earlier
                        for taken, earlier in before
                        if not taken or (taken == axes if only_equal else taken <= axes)
                    ),
                    None,
                )
                for axes in ways
            ]
            if None in shadows:
                whole = frozenset(attempt.mesh_axes)
                before += ((axes, attempt.position) for axes in (*ways, whole))
                shadows = [None]
            yield from ((attempt.position, shadow) for shadow in dict.fromkeys(shadows))


def _ways_to_fire(attempt: plans.Attempt, *, whole: bool) -> list[frozenset[str]]:
    """Return the least sets of mesh axes that have to be free: any one is enough for `(a, b)?`.

    Args:
      whole: whether the mesh is not known: then such a rule is like its own kind, and no other.
    """
    if not attempt.in_part:
        return [frozenset(attempt.mesh_axes)]
    if whole:
        return [frozenset((*attempt.mesh_axes, "?"))]
    return [frozenset((axis,)) for axis in attempt.mesh_axes]


@dataclass(slots=True)
class RuleUse:
    """How the alternative at one place is used.

    Attributes:
      rules: what stands there, one for each logical axis.
      outcomes: how often each; an attempt counts once for all arrays that are alike.
      winners: the rules that took the dimension instead, or its mesh axes.
      refused: a dimension that its mesh axes do not divide.
      is_settled: whether such a dimension ended whole, which has its own finding, or by `none`,
        which says that this is meant.
      is_open: whether a dimension that it lost ended whole, and no rule says that this is meant.
      contended: the mesh axes that other dimensions had, of those that split anything.
      affected: what has the logical axes.
    """

    rules: list[AxisRule]
    outcomes: Counter[plans.Outcome] = field(default_factory=Counter)
    winners: dict[AxisRule, None] = field(default_factory=dict)
    refused: plans.DimSharding | None = None
    is_settled: bool = False
    is_open: bool = False
    contended: dict[str, None] = field(default_factory=dict)
    affected: Affected = field(default_factory=Affected)

    @property
    def rule(self) -> AxisRule:
        """Return the first of the rules."""
        return self.rules[0]

    def __str__(self) -> str:
        """Return `heads, kv -> model`."""
        return rules_text(self.rules)

    def note(self) -> str:
        """Return how many arrays and activations it is for, and the first of them."""
        arrays, activations = self.affected.arrays, self.affected.activations
        return f"for {self.affected.counts}, first {next(iter(arrays or activations))}"

    def labels(self, said: str) -> tuple[Label, ...]:
        """Return a label for the rule, and for those that fire before it."""
        winners = list(dict.fromkeys(rule.span for rule in self.winners if rule.span))
        others = [span for span in winners if span != self.rule.span][:_SHOWN]
        return labels_at((self.rule.span, said), *((span, "fires first") for span in others))

    def add(self, dims: Sequence[plans.DimSharding], mesh: Mesh) -> None:
        """Count what the rules did on one array."""
        axes = {rule.logical_axis for rule in self.rules}
        for dim in dims:
            if dim.logical_axis not in axes:
                continue
            winner = dim.rule
            attempt = next((each for each in dim.attempts if each.rule in self.rules), None)
            if attempt is not None:
                self.outcomes[attempt.outcome] += 1
                self.is_open |= attempt.outcome is plans.Outcome.BUSY and winner is None
                if attempt.outcome is plans.Outcome.INDIVISIBLE:
                    self.refused = dim
                    self.is_settled |= winner is None or winner.is_none
                holder = None if attempt.blocked_by is None else dims[attempt.blocked_by]
                winner = None if holder is None else holder.rule
                shared = () if holder is None else holder.mesh_axes
                lost = (axis for axis in attempt.mesh_axes if axis in shared)
                self.contended |= dict.fromkeys(mesh.splitting(lost))
            if winner is not None:
                self.winners.setdefault(winner)


def idle_rules(context: Context) -> tuple[RuleUse, ...]:
    """Return the alternatives of the spec itself that never fire for what they are for.

    Those are left out that could never fire, or ask for an axis no target has: both have findings
    of their own. None are looked for unless all targets are.
    """
    return context.once(_idle_rules)


def _idle_rules(context: Context) -> tuple[RuleUse, ...]:
    spec = context.spec
    names = {plan.target.name for plan in context.plans}
    if not context.first or names != {target.name for target in spec.targets}:
        return ()
    dead = {spec.axis_rules[position].span for position in dead_rules(spec)}
    return tuple(
        use
        for use in _uses(context)
        if (use.affected.arrays or use.affected.activations)
        and spec.mesh_axis_names.issuperset(use.rule.mesh_axes)
        and use.rule.span not in dead
        and not use.outcomes[plans.Outcome.TAKEN]
    )


def _uses(context: Context) -> tuple[RuleUse, ...]:
    """Return the use of each place of the spec itself that has an alternative."""
    uses: dict[Span, RuleUse] = {}
    by_axis: dict[str, dict[Span, RuleUse]] = {}
    for rule in context.spec.axis_rules:
        if rule.span is not None and context.is_own(rule.span):
            use = uses.setdefault(rule.span, RuleUse([]))
            use.rules.append(rule)
            by_axis.setdefault(rule.logical_axis, {})[rule.span] = use
    for plan in context.plans:
        for subject in subjects(plan):
            if subject.dims.is_kept_whole:
                continue
            found = {
                span: use
                for dim in subject.dims
                for span, use in by_axis.get(dim.logical_axis or "", {}).items()
            }
            for use in found.values():
                use.add(subject.dims, plan.target.mesh)
                is_known = plan is not context.plans[0] or use.outcomes[plans.Outcome.TAKEN]
                if isinstance(subject, plans.ActivationSharding) or not is_known:
                    use.affected.add(subject, plan)
    return tuple(uses.values())


class Answer(NamedTuple):
    """Arrays that are alike, or an activation, as they are and as other rules would have them."""

    subject: Subject
    then: plans.Dims

    @property
    def now(self) -> plans.Dims:
        """Return the dimensions as they are."""
        return self.subject.dims

    @property
    def is_changed(self) -> bool:
        """Say whether the partition differs."""
        return self.spec_now != self.spec_then

    @property
    def spec_now(self) -> PartitionSpec:
        """Return the partition as it is."""
        return self.subject.partition_spec

    @property
    def spec_then(self) -> PartitionSpec:
        """Return the partition as it would be."""
        return PartitionSpec(tuple(dim.mesh_axes for dim in self.then))

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes fewer a device would hold; 0 for an activation."""
        arrays = self.subject
        if not isinstance(arrays, plans.Alike):
            return 0
        return arrays.device_bytes - arrays.laid_out(self.then).device_bytes


def answers_under(
    plan: plans.ShardingPlan, rules: Sequence[AxisRule], axes: frozenset[str]
) -> Iterator[Answer]:
    """Yield the answers of all that has one of the logical axes, under other rules.

    All is resolved again, so that what a finding says of it is true.

    Args:
      rules: the whole flat list, in order.
    """
    resolver = array_resolver(replace(plan.spec, axis_rules=tuple(rules)), plan.target)
    for subject in subjects(plan):
        if not axes.isdisjoint(subject.logical_axes) and not subject.dims.is_kept_whole:
            shape = tuple(dim.size for dim in subject.dims)
            yield Answer(subject, resolver.dims(shape, subject.logical_axes))


def rules_of_nnx(plan: plans.ShardingPlan) -> Mapping[str, AxisRule]:
    """Return the rule that NNX follows for each logical axis on this target: the last one."""
    return {rule.logical_axis: rule for rule in _present(linen_table(plan), plan)}


def nnx_refuses(nnx: Mapping[str, AxisRule], *names: str | None) -> bool:
    """Say whether NNX gives one mesh axis to two logical axes: in one array, JAX refuses that.

    Args:
      nnx: what `rules_of_nnx` returns.
      names: two of them; NNX knows no roles of one axis, such as `embed'`.
    """
    one, other = (nnx.get(name or "") for name in names)
    if one is None or other is None or axis_of(one.logical_axis) == axis_of(other.logical_axis):
        return False
    return not set(one.mesh_axes).isdisjoint(other.mesh_axes)


def linen_table(plan: plans.ShardingPlan) -> RuleTable:
    """Return the rules as Linen has them on this target: whatever the sizes."""
    spec = plan.spec
    known = spec.mesh_axis_names
    policy = replace(spec.policy, indivisible="keep")
    return rule_table(spec.axis_rules, plan.mesh, known_mesh_axes=known, policy=policy)


def _present(table: RuleTable, plan: plans.ShardingPlan) -> Iterator[AxisRule]:
    """Yield the rules in order, without the mesh axes that this target lacks."""
    attempts = {each.position: each for tried in table.by_axis.values() for each in tried}
    for at, rule in enumerate(plan.spec.axis_rules):
        if attempts[at].outcome is plans.Outcome.TAKEN:
            yield replace(rule, mesh_axes=attempts[at].mesh_axes)


def without_fallback(span: Span | None) -> Fix | None:
    """Return the fix that takes out an alternative with the bar before it, where there is one."""
    edit = None if span is None else without_alternative(span)
    if span is None or edit is None or edit.span.start == span.start:
        return None
    return Fix(f"take out `{edit.span.text.strip()}`", (edit,))


def rules_text(rules: Sequence[AxisRule]) -> str:
    """Return `heads, kv -> model | data`, for the alternatives of some axes."""
    names = ", ".join(dict.fromkeys(rule.logical_axis for rule in rules))
    return f"{names} -> {' | '.join(dict.fromkeys(rule.right for rule in rules))}"


def on_targets(count: int) -> str:
    """Return where no rule fires: nothing to say of one target."""
    return f" on any of {count} targets" if count > 1 else ""


# What mesh axes and logical axes are for: the examples, the stacked layers, the model.


#: Part of the name: `batch`, `microbatch`, `activation_batch`.
_BATCH = "batch"

_STACKED = ("layer", "stage", "stack")


class Crossing(NamedTuple):
    """A mesh axis over DCN.

    Attributes:
      speed: how fast it is, beside the fastest axis, where the catalogue has figures.
    """

    axis: MeshAxis
    speed: str = ""


def batch_rules(spec: Spec) -> tuple[AxisRule, ...]:
    """Return the rules for logical axes that say batch; none where code splits the examples."""
    return tuple(rule for rule in spec.axis_rules if is_batch(rule.logical_axis))


def is_batch(logical_axis: str) -> bool:
    """Say whether the name of a logical axis says batch."""
    return _BATCH in logical_axis.lower()


def stacked_axes(spec: Spec) -> frozenset[str]:
    """Return the logical axes that `scan` says are stacked."""
    return frozenset(axis for scan in spec.scans for axis, _ in scan.axes)


def is_stacked(logical_axis: str, stacked: frozenset[str]) -> bool:
    """Say whether a dimension is that of stacked layers: by `scan`, or by its name."""
    name = logical_axis.lower()
    return logical_axis in stacked or any(word in name for word in _STACKED)


def placed(target: Target) -> Placement | None:
    """Return how a mesh lies on its hardware; None where it cannot, or there is none."""
    from shardspec.topology import placement

    return placement.placed(target)


def crossing_axes(target: Target) -> Iterator[Crossing]:
    """Yield the mesh axes that cross slices or nodes: as they say, or as they lie."""
    hardware = target.hardware
    if hardware is None:
        yield from (Crossing(a) for a in target.mesh.axes if a.network == "dcn" and a.size > 1)
    if hardware is None or hardware.slice_count == 1:
        return
    placement = placed(target)
    if placement is None:
        return
    from shardspec.topology.placement import dcn_facts, explain_axes

    unasked = {fact.axis.name for fact in dcn_facts(placement)}
    explained = {axis.name: axis for axis in explain_axes(placement)}
    fastest = max(explained.values(), key=lambda axis: axis.bytes_per_s or 0, default=None)
    for lying in placement.axes:
        found = explained[lying.axis.name]
        if found.bottleneck == "dcn" and found.name not in unasked:
            yield Crossing(lying.axis, _compared(found, fastest))


def _compared(axis: AxisExplanation, fastest: AxisExplanation | None) -> str:
    """Return how fast an axis is beside the fastest one, where both are known."""
    if not axis.bytes_per_s or fastest is None or not fastest.bytes_per_s or axis is fastest:
        return ""
    return (
        f"`{axis.name}` gathers {three_figures(axis.bytes_per_s / 1e9)} GB/s on each device,"
        f" `{fastest.name}` {three_figures(fastest.bytes_per_s / 1e9)} GB/s"
    )
