"""Flax NNX reads the rules to another answer than Linen and shardspec.

NNX makes a dictionary of the list: the last rule of a name counts, for every array, and no look
is had at which mesh axes the array uses already. `embed -> model` and then `embed -> data` is
`data` there, where Linen's answer is `model` and falls back to `data`; and two dimensions may both
be given `model`, which JAX refuses. shardspec gives models of both kinds Linen's answer, so this
matters where NNX reads the rules itself (`nnx.logical_axis_rules`), exported ones say.

Compared are the readings of the list, whatever the sizes. Names without a rule differ as well, and
have findings of their own (SHD202, SHD203).

Bad:
    shardspec: 1
    mesh: {data: 4, model: 8}
    rules:
      - vocab -> model
      - embed -> model | data
    arrays:
      embedding: bf16[vocab=32768 embed=1024]
      norm/scale: bf16[embed=1024]

Good:
    shardspec: 1
    mesh: {data: 4, model: 8}
    rules:
      - vocab -> model
      - embed -> data
    arrays:
      embedding: bf16[vocab=32768 embed=1024]
      norm/scale: bf16[embed=1024]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import described, listed
from shardspec.ir.plan import DimSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, LogicalAxes, PartitionSpec, Target
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import linen_table, rules_of_nnx
from shardspec.resolve.assign import assign_axes


class NnxReading(NamedTuple):
    """What NNX makes of the names of one array; JAX may refuse it.

    Attributes:
      dims: mesh axes of each dimension.
      unruled: names that no rule has, which stand in `dims` as mesh axes.
    """

    dims: tuple[tuple[str, ...], ...]
    unruled: tuple[str, ...] = ()

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
    for difference in found.values():
        yield _finding(difference)


def _differences(plan: ShardingPlan) -> Iterator[_Difference]:
    """Yield a difference for each group of arrays that has one on this target."""
    table, rules = linen_table(plan), rules_of_nnx(plan)
    for group in plan.alike:
        names = group.logical_axes
        if len(set(names) - {None}) < len(names) - names.count(None):
            continue
        dims = assign_axes((None,) * len(names), names, table)
        pair = _first_difference(dims, rules)
        if pair is not None:
            rule, taken = pair
            linen = PartitionSpec(tuple(dim.mesh_axes for dim in dims))
            paths = dict.fromkeys(group.paths)
            nnx = read_as_nnx(names, rules)
            yield _Difference(rule, taken, plan.target, linen, nnx, paths)


def _first_difference(
    dims: tuple[DimSharding, ...], rules: Mapping[str, AxisRule]
) -> tuple[AxisRule, AxisRule | None] | None:
    """Return NNX's rule and Linen's for the first dimension that they treat differently."""
    for dim in dims:
        rule = rules.get(dim.logical_axis or "")
        if rule is not None and rule.mesh_axes != dim.mesh_axes:
            return rule, dim.rule
    return None


def _finding(case: _Difference) -> Diagnostic:
    rule, nnx, linen = case.rule, case.nnx.partition_spec, case.linen
    taken = case.taken.span if case.taken is not None else None
    sizes = case.target.mesh
    shards = f"{sizes.ways(nnx.mesh_axes)} shards there, {sizes.ways(linen.mesh_axes)} in Linen"
    if case.nnx.repeated:
        shards = f"JAX refuses NNX's: it has {listed(case.nnx.repeated)} twice"
    return Diagnostic(
        codes.NNX_DIFFERS,
        f"Flax NNX reads `{rule.logical_axis}` as `{rule.right}`:"
        f" `{next(iter(case.paths))}` is {nnx} there, and {linen} in Linen",
        labels_at((rule.span, "NNX follows this"), (taken, "Linen follows this")),
        notes=(f"{described(case.paths)}; {shards} on target `{case.target.name}`",),
        help="let shardspec lay out the model (`Resolver.shardings`), or write one rule an axis,"
        " of which no array asks for a mesh axis twice",
    )


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
    unruled = (axis for axis in logical_axes if axis is not None and axis not in rules)
    return NnxReading(dims, tuple(dict.fromkeys(unruled)))
