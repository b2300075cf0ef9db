"""Two rules of one name give two answers: Linen and shardspec take the first, NNX the last.

NNX makes a dictionary of the list: the last rule of a name counts, for every array, whatever mesh
axes the array uses already. `embed -> model` and then `embed -> data` is `data` there, where Linen
takes `model` and falls back to `data`; and two dimensions may both be given `model`, which JAX
refuses with a `DuplicateSpecError`. shardspec gives models of both kinds Linen's answer.

Reported where the two are separate rules of the spec itself, and some array gets two answers,
whatever its size: the text does not say which of them is meant. A fallback is one rule with
alternatives, `embed -> model | data`. NNX also reads alternatives, the rules of a preset and a
contest of two dimensions (SHD226) otherwise: `--pedantic` reports that, or a `lints:` that names
this finding. `shardspec import` asks who reads a list of Flax. For Linen, it writes
`lints: {nnx-differs: allow}`.

Compared are the readings of the list, whatever the sizes of arrays; a mesh axis of size 1 splits
nothing, and counts only where a partition would name it twice. Names without a rule differ as
well, and have findings of their own (SHD202, SHD203).

Bad:
    shardspec: 1
    mesh: {data: 4, model: 8}
    rules:
      - vocab -> model
      - embed -> model
      - embed -> data
    arrays:
      embedding: bf16[vocab=32768 embed=1024]
      norm/scale: bf16[embed=1024]

Good:
    -  - embed -> model
    -  - embed -> data
    +  - embed -> model | data
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, codes, labels_at
from shardspec.diagnostics.words import described, listed
from shardspec.ir.plan import DimSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, LogicalAxes, Mesh, PartitionSpec, Target
from shardspec.language.removal import is_first_alternative
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import answers_under, linen_table, rules_of_nnx, rules_text
from shardspec.resolve.match import assign_axes


class NnxReading(NamedTuple):
    """What NNX makes of the names of one array; JAX may refuse it.

    Attributes:
      dims: mesh axes of each dimension.
    """

    dims: tuple[tuple[str, ...], ...]

    @property
    def partition_spec(self) -> PartitionSpec:
        """Return the partition, as NNX hands it to JAX."""
        return PartitionSpec(self.dims)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Return mesh axes that stand more than once: JAX refuses those."""
        counts = Counter(axis for dim in self.dims for axis in dim)
        return tuple(axis for axis, count in counts.items() if count > 1)


@dataclass(slots=True)
class _Difference:
    """One rule that NNX follows and Linen does not, with the arrays it is about.

    Attributes:
      taken: the rule that Linen follows, if any.
      target: the first that it shows on.
      linen, nnx: the answers of both for the first of the arrays there.
    """

    rule: AxisRule
    taken: AxisRule | None
    target: Target
    linen: PartitionSpec
    nnx: NnxReading
    paths: dict[str, None] = field(default_factory=dict)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule by which NNX gives some array another answer."""
    found: dict[tuple[object, ...], _Difference] = {}
    for plan in context.plans:
        for difference in _differences(plan):
            taken = difference.taken
            key = (difference.rule.logical_axis, difference.rule.span, taken and taken.span)
            found.setdefault(key, difference).paths.update(difference.paths)
    for case in found.values():
        yield _finding(case, context) if _is_apart(case, context) else _pedantic(case)


def _is_apart(case: _Difference, context: Context) -> bool:
    """Say whether two separate rules of the spec itself decide, and not a rule's alternatives."""
    rule, taken = case.rule, case.taken
    if taken is None or not (rule.is_read and taken.is_read):
        return False
    if not (context.is_own(rule.span) and context.is_own(taken.span)):
        return False
    spans = [
        each.span for each in context.spec.axis_rules if each.logical_axis == rule.logical_axis
    ]
    between = spans[spans.index(taken.span) + 1 : spans.index(rule.span) + 1]
    return any(span is not None and is_first_alternative(span) for span in between)


def _differences(plan: ShardingPlan) -> Iterator[_Difference]:
    """Yield a difference for each group of arrays that has one on this target."""
    table, rules = linen_table(plan), rules_of_nnx(plan)
    for group in plan.alike:
        names = group.logical_axes
        if len(set(names) - {None}) < len(names) - names.count(None):
            continue
        dims = assign_axes((None,) * len(names), names, table)
        nnx = read_as_nnx(names, rules)
        pair = _first_difference(dims, rules, plan.mesh, nnx.repeated)
        if pair is not None:
            linen = PartitionSpec(tuple(dim.mesh_axes for dim in dims))
            yield _Difference(*pair, plan.target, linen, nnx, dict.fromkeys(group.paths))


def _first_difference(
    dims: tuple[DimSharding, ...],
    rules: Mapping[str, AxisRule],
    mesh: Mesh,
    repeated: Sequence[str],
) -> tuple[AxisRule, AxisRule | None] | None:
    """Return NNX's rule and Linen's for the first dimension that they treat differently.

    A mesh axis of size 1 makes no difference, except to JAX, which refuses it twice in one array.
    """

    def counted(mesh_axes: Sequence[str]) -> list[str]:
        return [axis for axis in mesh_axes if mesh.sizes[axis] > 1 or axis in repeated]

    for dim in dims:
        rule = rules.get(dim.logical_axis or "")
        if rule is not None and counted(rule.mesh_axes) != counted(dim.mesh_axes):
            return rule, dim.rule
    return None


def _finding(case: _Difference, context: Context) -> Diagnostic:
    axis = case.rule.logical_axis
    joined = _joined(axis, context)
    meant = f"for a fallback, write one rule: `{axis} -> {joined}`"
    if joined is None:
        meant = "if Flax Linen alone reads the rules, set `lints: {nnx-differs: allow}`"
    return Diagnostic(
        codes.NNX_DIFFERS,
        f"`{axis}` has separate rules with different answers: `{next(iter(case.paths))}` is"
        f" {case.linen} in Linen and here, and {case.nnx.partition_spec} in Flax NNX",
        _labels(case),
        notes=_notes(case),
        help=f"{meant}; otherwise remove the wrong rule",
        arrays=tuple(case.paths),
    )


def _joined(axis: str, context: Context) -> str | None:
    """Return the rules of an axis as alternatives of one; None where that changes an answer."""
    rules = context.spec.axis_rules
    own = [rule for rule in rules if rule.logical_axis == axis and context.is_own(rule.span)]
    rest = [rule for rule in rules if all(rule is not each for each in own)]
    before = next(at for at, rule in enumerate(rules) if rule is own[0])
    moved = [*rest[:before], *own, *rest[before:]]
    axes = frozenset((axis,))
    answers = (each for plan in context.plans for each in answers_under(plan, moved, axes))
    return None if any(each.is_changed for each in answers) else rules_text(own).split(" -> ")[1]


def _pedantic(case: _Difference) -> Diagnostic:
    """Return the finding for what the spec says plainly, and NNX does not read."""
    return Diagnostic(
        replace(codes.NNX_DIFFERS, is_pedantic=True),
        f"Flax NNX reads `{case.rule.logical_axis}` as `{case.rule.right}`:"
        f" `{next(iter(case.paths))}` is {case.nnx.partition_spec} there, and"
        f" {case.linen} in Linen",
        _labels(case),
        notes=_notes(case),
        help="let shardspec lay out the model (`Resolver.shardings`), or write one rule an axis,"
        " of which no array uses a mesh axis twice",
    )


def _labels(case: _Difference) -> tuple[Label, ...]:
    taken = case.taken.span if case.taken is not None else None
    return labels_at((case.rule.span, "NNX follows this"), (taken, "Linen follows this"))


def _notes(case: _Difference) -> tuple[str, ...]:
    sizes, nnx, linen = case.target.mesh, case.nnx.partition_spec, case.linen
    shards = f"{sizes.ways(nnx.mesh_axes)} shards there, {sizes.ways(linen.mesh_axes)} in Linen"
    if case.nnx.repeated:
        shards = f"JAX refuses NNX's: it has {listed(case.nnx.repeated)} twice"
    return (f"{described(case.paths)}; {shards} on target `{case.target.name}`",)


def read_as_nnx(logical_axes: LogicalAxes, rules: Mapping[str, AxisRule]) -> NnxReading:
    """Return the mesh axes that NNX gives an array with these names.

    Each name is renamed by its rule, whatever the array uses already; one without a rule is taken
    for a mesh axis as it stands. Source: flax 0.12.8, `flax.core.spmd.apply_rules`.

    Invariants:
      same: equal to `nnx.get_partition_spec` under the same rules.
    """
    dims = tuple(
        () if axis is None else rules[axis].mesh_axes if axis in rules else (axis,)
        for axis in logical_axes
    )
    return NnxReading(dims)
