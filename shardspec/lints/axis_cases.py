"""What happens to one logical axis of one size under one rule, told once.

Ten thousand arrays on six targets meet the same few rules in the same few ways. A case gathers
all of them, so that a finding is about the axis, and counts its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import Attempt, Dims, DimSharding, ParamSharding, Sharding, ShardingPlan
from shardspec.lints.context import Context


class Judged(NamedTuple):
    """A dimension, and the attempt that there is something to say about."""

    dim: DimSharding
    attempt: Attempt


Judge = Callable[[Sequence[DimSharding]], Iterable[Judged]]


@dataclass(slots=True)
class AxisCase:
    """One axis of one size under one rule, with all that it happens to and every target.

    Attributes:
      last: the last rule that was tried on the dimension.
      meshes: of the targets, by name.
    """

    axis: str
    size: int
    unit: int
    attempt: Attempt
    last: Attempt
    meshes: dict[str, Mesh] = field(default_factory=dict)
    arrays: dict[str, ParamSharding] = field(default_factory=dict)
    activations: list[str] = field(default_factory=list)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names of the targets."""
        return tuple(self.meshes)

    @property
    def mesh_axis_sizes(self) -> tuple[int, ...]:
        """Return the size of each mesh axis of the rule: the same on all these targets."""
        sizes = next(iter(self.meshes.values())).sizes
        return tuple(sizes[axis] for axis in self.attempt.mesh_axes)

    @property
    def ways(self) -> int:
        """Return into how many shards the rule would split."""
        return self.attempt.ways

    @property
    def is_named(self) -> bool:
        """Say whether it is a logical axis, and not a dimension whose partition is stated."""
        return self.attempt.rule is not None

    @property
    def mesh_text(self) -> str:
        """Return "`tensor` = 16", or "`(a, b)` = 2 x 8 = 16"."""
        axes = self.attempt.mesh_axes
        if len(axes) == 1:
            return f"`{axes[0]}` = {self.ways}"
        sizes = " x ".join(map(str, self.mesh_axis_sizes))
        return f"`({', '.join(axes)})` = {sizes} = {self.ways}"

    @property
    def targets_text(self) -> str:
        """Return "target `a`", or "targets `a`, `b`"."""
        return f"target{'s' if len(self.targets) > 1 else ''} {listed(self.targets)}"

    @property
    def per_device_bytes(self) -> int:
        """Return what a device holds of all the arrays."""
        sizes: dict[tuple[Dims, str], int] = {}
        total = 0
        for sharding in self.arrays.values():
            key = (sharding.dims, sharding.param.dtype)
            if key not in sizes:
                sizes[key] = sharding.per_device_bytes
            total += sizes[key]
        return total

    def subjects(self) -> Iterator[str]:
        """Yield notes on the arrays and activations that it happens to."""
        if self.arrays:
            yield described(self.arrays)
        if self.activations:
            plural = "s" if len(self.activations) > 1 else ""
            yield f"activation{plural} {listed(self.activations)}, by the sizes in `axes`"


def axis_cases(context: Context, judge: Judge) -> tuple[AxisCase, ...]:
    """Return each case once, in order of target and array.

    Args:
      judge: gives the dimensions of one array that there is something to say about.
    """
    cases: dict[tuple[object, ...], AxisCase] = {}
    for plan in context.plans:
        sizes = plan.mesh.sizes
        for sharding, dim, attempt in _judged(plan, judge):
            axis = dim.logical_axis or "this dimension"
            axes = attempt.mesh_axes
            fired = attempt is dim.taken
            over = tuple(sizes[name] for name in axes)
            key = (axis, dim.size, dim.unit, attempt.span, axes, over, fired)
            case = cases.get(key)
            if case is None:
                case = AxisCase(axis, dim.size or 0, dim.unit, attempt, dim.attempts[-1])
                cases[key] = case
            case.meshes[plan.target.name] = plan.mesh
            _add(case, sharding)
    return tuple(cases.values())


def _add(case: AxisCase, sharding: Sharding) -> None:
    if isinstance(sharding, ParamSharding):
        case.arrays.setdefault(sharding.param.path, sharding)
    elif sharding.activation.name not in case.activations:
        case.activations.append(sharding.activation.name)


def _judged(plan: ShardingPlan, judge: Judge) -> Iterator[tuple[Sharding, DimSharding, Attempt]]:
    """Yield what the judge says; arrays that share their dimensions are judged once."""
    known: dict[Dims, tuple[Judged, ...]] = {}
    shardings: tuple[Sharding, ...] = plan.params + plan.activations
    for sharding in shardings:
        found = known.get(sharding.dims)
        if found is None:
            found = known[sharding.dims] = tuple(judge(sharding.dims))
        for dim, attempt in found:
            yield sharding, dim, attempt
