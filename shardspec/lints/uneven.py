"""Dimensions that ended whole, or uneven, because their mesh axes do not divide them.

Read off the traces; `indivisible` and `cut_unit` tell the two ways apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Code, Diagnostic, Label
from shardspec.ir.grouping import described
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import (
    ActivationSharding,
    Attempt,
    DimSharding,
    Outcome,
    ParamSharding,
    ShardingPlan,
)
from shardspec.ir.units import binary_bytes
from shardspec.lints.context import Context
from shardspec.resolve.fit import axis_sizes, near_multiples, set_text


@dataclass(slots=True)
class Uneven:
    """One axis of one size under one rule, with all that it happens to and every target.

    Attributes:
      kept: whether the rule fired all the same (`policy: {indivisible: keep}`).
    """

    axis: str
    size: int
    unit: int
    attempt: Attempt
    mesh: Mesh
    kept: bool
    targets: list[str] = field(default_factory=list)
    arrays: dict[str, ParamSharding] = field(default_factory=dict)
    activations: list[str] = field(default_factory=list)

    @property
    def ways(self) -> int:
        """Return into how many shards the rule would split."""
        return self.attempt.ways

    @property
    def cuts_unit(self) -> bool:
        """Say whether the size divides and the units do not."""
        return self.size % self.ways == 0

    @property
    def mesh_text(self) -> str:
        """Return "`tensor` = 16", or "`(a, b)` = 2 x 8 = 16"."""
        axes, sizes = self.attempt.mesh_axes, self.mesh.sizes
        if len(axes) == 1:
            return f"`{axes[0]}` = {self.ways}"
        return f"`({', '.join(axes)})` = {' x '.join(str(sizes[a]) for a in axes)} = {self.ways}"

    @property
    def targets_text(self) -> str:
        """Return "target `a`", or "targets `a`, `b`"."""
        names = ", ".join(f"`{name}`" for name in self.targets)
        return f"target{'s' if len(self.targets) > 1 else ''} {names}"


def uneven(context: Context) -> Iterator[Uneven]:
    """Yield each case once, in order of target and array."""
    cases: dict[tuple[object, ...], Uneven] = {}
    for plan in context.plans:
        for sharding, dim, attempt, kept in _refusals(plan):
            axis = dim.logical_axis or "this dimension"
            key = (
                axis,
                dim.size,
                dim.unit,
                attempt.rule.span,
                attempt.mesh_axes,
                attempt.ways,
                kept,
            )
            case = cases.get(key)
            if case is None:
                size = dim.size or 0
                case = Uneven(axis, size, dim.unit, attempt, plan.mesh, kept)
                cases[key] = case
            if plan.target.name not in case.targets:
                case.targets.append(plan.target.name)
            if isinstance(sharding, ParamSharding):
                case.arrays.setdefault(sharding.param.path, sharding)
            elif sharding.activation.name not in case.activations:
                case.activations.append(sharding.activation.name)
    yield from cases.values()


def _refusals(
    plan: ShardingPlan,
) -> Iterator[tuple[ParamSharding | ActivationSharding, DimSharding, Attempt, bool]]:
    """Yield each dimension that ends whole or uneven for want of division, with the attempt."""
    judged: dict[int, tuple[tuple[DimSharding, Attempt, bool], ...]] = {}
    shardings: tuple[ParamSharding | ActivationSharding, ...] = plan.params + plan.activations
    for sharding in shardings:
        found = judged.get(id(sharding.dims))
        if found is None:
            found = judged[id(sharding.dims)] = tuple(_refused(sharding.dims))
        for dim, attempt, kept in found:
            yield sharding, dim, attempt, kept


def _refused(dims: Sequence[DimSharding]) -> Iterator[tuple[DimSharding, Attempt, bool]]:
    for dim in dims:
        taken = dim.taken
        if taken is not None and taken.ways > 1 and not dim.is_even:
            yield dim, taken, True
        elif taken is None:
            first = next((a for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE), None)
            if first is not None:
                yield dim, first, False


def finding(code: Code, case: Uneven, message: str) -> Diagnostic:
    """Return the diagnostic for one case, with its damage and its ways out."""
    labels = []
    if case.attempt.rule.span is not None:
        said = "fires all the same, and JAX will refuse" if case.kept else "cannot fire here"
        labels.append(Label(case.attempt.rule.span, said))
    return Diagnostic(code, message, tuple(labels), tuple(_notes(case)), _help(case))


def _notes(case: Uneven) -> Iterator[str]:
    """Yield what it happens to, and for arrays the damage."""
    arrays = list(case.arrays.values())
    if arrays:
        note = described([sharding.param.path for sharding in arrays])
        if not case.kept:
            lost = sum(s.per_device_bytes * (case.ways - 1) // case.ways for s in arrays)
            note += f"; replicated instead: +{binary_bytes(lost)} per device"
        yield note
    if case.activations:
        names = ", ".join(f"`{name}`" for name in case.activations)
        plural = "s" if len(case.activations) > 1 else ""
        yield f"activation{plural} {names}, by the sizes in `axes`"


def _help(case: Uneven) -> str:
    sizes = near_multiples(case.size, case.ways * case.unit)
    options = [f"{case.axis} = {' or '.join(map(str, sizes))} would divide"]
    mesh_sizes = case.mesh.sizes
    for axis in case.attempt.mesh_axes:
        devices = case.mesh.device_count
        fitting = [
            size
            for size in axis_sizes(case.size, case.unit, case.ways // mesh_sizes[axis])
            if devices % size == 0
        ]
        if len(fitting) > 1:
            options.append(f"`{axis}` in {set_text(fitting)}")
    target = case.attempt.rule
    if case.axis == target.logical_axis and not case.kept:
        options.append(f"`{target} | none` says that replication is meant")
    return "; or ".join(options)
