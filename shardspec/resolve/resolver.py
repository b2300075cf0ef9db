"""Spec x Target x Params -> ShardingPlan. Pure and total.

Models repeat themselves: ten thousand arrays have a dozen pairs of shape and names. Each pair
is resolved once, and the arrays share the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardspec.ir.param import LogicalAxes, Param
from shardspec.ir.plan import ActivationSharding, Dims, Origin, ParamSharding, ShardingPlan
from shardspec.ir.spec import Activation, Override, PathRule, Spec, Target
from shardspec.resolve.assign import RuleTable, assign_axes, assign_stated, rule_table
from shardspec.resolve.naming import NameSource, name_source


@dataclass(frozen=True, slots=True)
class ArrayResolver:
    """A spec made ready for one target."""

    spec: Spec
    target: Target
    names: NameSource = field(repr=False)
    table: RuleTable = field(repr=False)
    _known: dict[object, Dims] = field(default_factory=dict, compare=False, repr=False)

    def resolve(self, param: Param, entry: PathRule | Override | None = None) -> ParamSharding:
        """Return the answer for one array, with its trace.

        Args:
          entry: of the spec, that names the array; None for whatever names it by its path.
        """
        naming = self.names.name(param) if entry is None else self.names.given_by(entry, param)
        matched = naming.matched
        if isinstance(matched, Override) and matched.partition is not None:
            return self._as_stated(param, matched, matched.partition)
        axes = naming.logical_axes
        dims = self.dims(param.shape, axes if axes is not None else (None,) * param.rank)
        return ParamSharding(param, dims, naming.origin, matched, naming.scan, naming.mismatch)

    def dims(self, shape: tuple[int | None, ...], logical_axes: LogicalAxes) -> Dims:
        """Return the sharding of an array of these sizes and names; remembered by value."""
        key = (shape, logical_axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = assign_axes(shape, logical_axes, self.table)
        return found

    def activation(self, activation: Activation) -> ActivationSharding:
        """Return the sharding of a named activation, with the sizes that axes state."""
        sizes = {axis.name: axis.size for axis in self.spec.logical_axes}
        shape = tuple(sizes.get(name) if name else None for name in activation.logical_axes)
        return ActivationSharding(activation, self.dims(shape, activation.logical_axes))

    def _as_stated(
        self, param: Param, override: Override, partition: tuple[tuple[str, ...], ...]
    ) -> ParamSharding:
        """Return the partition an override states, tried as one rule a dimension."""
        if len(partition) != param.rank:
            unnamed = self.dims(param.shape, (None,) * param.rank)
            given = tuple("none" if not axes else " ".join(axes) for axes in partition)
            return ParamSharding(param, unnamed, Origin.OVERRIDE, override, mismatch=given)
        key = (param.shape, override)
        found = self._known.get(key)
        if found is None:
            position = self.spec.overrides.index(override)
            found = assign_stated(param.shape, override, position, self.table)
            self._known[key] = found
        return ParamSharding(param, found, Origin.OVERRIDE, override)


def array_resolver(spec: Spec, target: Target) -> ArrayResolver:
    """Return `spec` made ready for `target`."""
    table = rule_table(
        spec.axis_rules,
        target.mesh,
        known_mesh_axes=spec.mesh_axis_names,
        units={axis.name: axis.unit for axis in spec.logical_axes if axis.unit > 1},
        policy=spec.policy,
    )
    return ArrayResolver(spec, target, name_source(spec), table)


def resolve(spec: Spec, target: Target, params: Iterable[Param]) -> ShardingPlan:
    """Return the layout of every array on `target`. Never raises on what users wrote."""
    resolver = array_resolver(spec, target)
    return ShardingPlan(
        spec,
        target,
        tuple(resolver.resolve(param) for param in params),
        tuple(resolver.activation(activation) for activation in spec.activations),
    )
