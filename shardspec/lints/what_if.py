"""What other rules would make of the arrays and activations of a plan.

Resolved again, so that what a finding says of them is true. Arrays that are alike are one, and
what an override states stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardspec.analysis.alike import Alike, alike
from shardspec.ir.param import array_bytes
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.plan import ActivationSharding, Dims, ShardingPlan
from shardspec.ir.spec import AxisRule
from shardspec.resolve.resolver import array_resolver


@dataclass(frozen=True, slots=True)
class Answer:
    """Arrays that are alike, or an activation, as they are and as they would be."""

    subject: Alike | ActivationSharding
    now: Dims
    then: Dims

    @property
    def is_changed(self) -> bool:
        """Say whether the partition differs."""
        return self.spec_now != self.spec_then

    @property
    def spec_now(self) -> PartitionSpec:
        """Return the partition as it is."""
        return PartitionSpec(tuple(dim.mesh_axes for dim in self.now))

    @property
    def spec_then(self) -> PartitionSpec:
        """Return the partition as it would be."""
        return PartitionSpec(tuple(dim.mesh_axes for dim in self.then))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the paths of the arrays, or the name of the activation."""
        if isinstance(self.subject, Alike):
            return tuple(sharding.param.path for sharding in self.subject.shardings)
        return (self.subject.activation.name,)

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes fewer a device would hold; 0 for an activation."""
        if not isinstance(self.subject, Alike):
            return 0
        shard = tuple(dim.shard_size or 0 for dim in self.then)
        then = array_bytes(shard, self.subject.dtype)
        return (self.subject.shard_bytes - then) * len(self.subject.shardings)


class Asked(NamedTuple):
    """A plan with its arrays in groups, to be asked many times."""

    plan: ShardingPlan
    subjects: tuple[Alike | ActivationSharding, ...]


def asked(plan: ShardingPlan) -> Asked:
    """Return a plan made ready for `answers_under`."""
    return Asked(plan, (*alike(plan), *plan.activations))


def answers_under(
    asked: Asked, rules: Sequence[AxisRule], axes: frozenset[str]
) -> Iterator[Answer]:
    """Yield the answers of all that has one of the logical axes, under other rules.

    Args:
      rules: the whole flat list, in order.
    """
    plan = asked.plan
    resolver = array_resolver(replace(plan.spec, axis_rules=tuple(rules)), plan.target)
    for subject in asked.subjects:
        names = tuple(dim.logical_axis for dim in subject.dims)
        if not axes.isdisjoint(names):
            shape = tuple(dim.size for dim in subject.dims)
            yield Answer(subject, subject.dims, resolver.dims(shape, names))
