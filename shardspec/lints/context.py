"""What a check may read: one spec, and its plan on each target that is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.diagnostics import Span
from shardspec.ir.param import Param
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import LogicalAxis, Spec


@dataclass(frozen=True, slots=True)
class Context:
    """A spec with its plans.

    Attributes:
      all_plans: one per target, all over the same arrays; empty where the spec has no target.
    """

    spec: Spec
    all_plans: tuple[ShardingPlan, ...] = field(repr=False)

    @property
    def plans(self) -> tuple[ShardingPlan, ...]:
        """Return the plans whose mesh is sound: what a faulty one leads to is no finding."""
        return tuple(plan for plan in self.all_plans if plan.target.is_sound)

    @property
    def first(self) -> tuple[ParamSharding, ...]:
        """Return the arrays of one plan: for checks that no mesh can change."""
        return self.all_plans[0].params if self.all_plans else ()

    @property
    def params(self) -> tuple[Param, ...]:
        """Return the arrays."""
        return tuple(sharding.param for sharding in self.first)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the arrays."""
        return tuple(sharding.param.path for sharding in self.first)

    @property
    def axes(self) -> dict[str, LogicalAxis]:
        """Return the logical axes that the spec declares, by name."""
        return {axis.name: axis for axis in self.spec.logical_axes}

    def is_own(self, span: Span | None) -> bool:
        """Say whether something stands in the spec itself, and not in what it extends."""
        return span is not None and span.source is self.spec.source

    def axes_in_rules(self) -> frozenset[str]:
        """Return every logical axis that has a rule."""
        return frozenset(rule.logical_axis for rule in self.spec.axis_rules)

    def axes_in_use(self) -> frozenset[str]:
        """Return every logical axis that an array, a pattern or an activation names."""
        return frozenset(name for names in self._given_names() for name in names if name)

    def _given_names(self) -> Iterator[tuple[str | None, ...]]:
        spec = self.spec
        yield from (rule.logical_axes for rule in spec.path_rules)
        yield from (override.logical_axes or () for override in spec.overrides)
        yield from (tuple(name for name, _ in scan.axes) for scan in spec.scans)
        yield from (activation.logical_axes for activation in spec.activations)
        yield from (param.logical_axes or () for param in spec.params)
        yield from dict.fromkeys(sharding.logical_axes for sharding in self.first)
