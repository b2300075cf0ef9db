"""Axes that `policy: {indivisible: pad}` makes longer, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.diagnostics import Code, Diagnostic, labels_at
from shardspec.diagnostics.words import binary_bytes, described, percent
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import array_bytes, axis_of
from shardspec.lints.context import Context

#: Padding is much where it is one part in so many of the axis.
_PARTS = 10


@dataclass(slots=True)
class Padding:
    """One axis of one size that is padded, on the target where that costs a device most.

    Attributes:
      dim: a dimension that is split so that it needs padding, where there is one.
      device_bytes: of padding; `bytes` of all devices together, each shard counted once.
    """

    axis: str
    true_size: int
    size: int
    plan: ShardingPlan
    dim: DimSharding
    arrays: list[str] = field(default_factory=list)
    bytes: int = 0
    device_bytes: int = 0

    @property
    def is_much(self) -> bool:
        """Say whether the padding is a large part of the axis."""
        return _PARTS * (self.size - self.true_size) >= self.true_size

    def add(self, sharding: ParamSharding, dim: DimSharding, more: int) -> None:
        """Add an array."""
        param = sharding.param
        padding = array_bytes((param.element_count // (dim.size or 1), more), param.dtype)
        self.arrays.append(param.path)
        self.bytes += padding
        self.device_bytes += -(-padding // sharding.shard_count)
        if dim.ways > 1 and self.true_size % (dim.ways * dim.unit):
            self.dim = dim


def paddings(context: Context) -> tuple[Padding, ...]:
    """Return each padded axis once, in order of the arrays."""
    return context.once(_paddings)


def _paddings(context: Context) -> tuple[Padding, ...]:
    worst: dict[tuple[str, int], Padding] = {}
    for plan in context.plans:
        for key, found in _of_plan(plan).items():
            known = worst.setdefault(key, found)
            if found.device_bytes > known.device_bytes:
                worst[key] = found
    return tuple(worst.values())


def _of_plan(plan: ShardingPlan) -> dict[tuple[str, int], Padding]:
    found: dict[tuple[str, int], Padding] = {}
    for sharding in plan.padded:
        for dim, more in zip(sharding.dims, sharding.param.padding, strict=True):
            name, size = axis_of(dim.logical_axis or ""), dim.size or 0
            if more and name:
                new = Padding(name, size - more, size, plan, dim)
                found.setdefault((name, size - more), new).add(sharding, dim, more)
    return found


def finding(context: Context, code: Code, found: Padding, help: str | None) -> Diagnostic:
    """Return the diagnostic for one axis, with its cost."""
    declared = context.axes.get(found.axis)
    taken, more = found.dim.taken, found.size - found.true_size
    target = f" on `{found.plan.target.name}`" if len(context.plans) > 1 else ""
    return Diagnostic(
        code,
        f"`{found.axis}` = {found.true_size} is padded to {found.size}"
        f" (+{percent(more, found.true_size)}): {binary_bytes(found.device_bytes)} per device"
        f"{target}, {binary_bytes(found.bytes)} in all",
        labels_at(
            (taken.span if taken else None, f"does not divide {found.true_size}"),
            (declared.span if declared else None, f"`{found.axis}` is {found.true_size}"),
        ),
        notes=tuple(_notes(found)),
        help=help,
        arrays=tuple(found.arrays),
        bytes=found.device_bytes,
    )


def _notes(found: Padding) -> Iterator[str]:
    yield described(found.arrays)
    multiple = dict(found.plan.spec.multiples).get(found.axis)
    if multiple is not None:
        yield f"every array has {found.size} of it, the next multiple of {multiple}"
