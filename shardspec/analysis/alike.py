"""Arrays that are laid out alike, taken together: ten thousand arrays are a few dozen groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from shardspec.ir.param import Shape, array_bytes
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan


@dataclass(frozen=True, slots=True)
class Alike:
    """Arrays of one shape, layout and dtype on one target."""

    dims: tuple[DimSharding, ...]
    dtype: str
    shardings: tuple[ParamSharding, ...] = field(repr=False)

    @property
    def first(self) -> ParamSharding:
        """Return the first of the arrays."""
        return self.shardings[0]

    @property
    def shape(self) -> Shape:
        """Return the global shape."""
        return tuple(dim.size or 0 for dim in self.dims)

    @property
    def shard_shape(self) -> Shape:
        """Return the shape of the largest shard."""
        return tuple(dim.shard_size or 0 for dim in self.dims)

    @property
    def bytes(self) -> int:
        """Return the bytes of one whole array."""
        return array_bytes(self.shape, self.dtype)

    @property
    def shard_bytes(self) -> int:
        """Return the bytes of the largest shard of one array."""
        return array_bytes(self.shard_shape, self.dtype)

    @property
    def is_replicated(self) -> bool:
        """Say whether every device holds these arrays whole."""
        return all(dim.ways == 1 for dim in self.dims)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return every mesh axis in use."""
        return tuple(axis for dim in self.dims for axis in dim.mesh_axes)


def alike(plan: ShardingPlan) -> tuple[Alike, ...]:
    """Return the arrays of a plan, in groups, in order of the first of each.

    The resolver gives arrays of one shape and names one object as their dimensions, and that
    is what is compared. A plan is grouped once.
    """
    found = plan.worked_out.get("alike")
    if found is None:
        found = plan.worked_out["alike"] = _grouped(plan)
    return cast("tuple[Alike, ...]", found)


def _grouped(plan: ShardingPlan) -> tuple[Alike, ...]:
    groups: dict[tuple[int, str], list[ParamSharding]] = {}
    for sharding in plan.params:
        groups.setdefault((id(sharding.dims), sharding.param.dtype), []).append(sharding)
    return tuple(
        Alike(members[0].dims, dtype, tuple(members)) for (_, dtype), members in groups.items()
    )
