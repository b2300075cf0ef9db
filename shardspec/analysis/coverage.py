"""How much of a model its plan really splits."""

from __future__ import annotations

from dataclasses import dataclass

from shardspec.ir.plan import Origin, ParamSharding, ShardingPlan


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a plan leaves whole, and what it splits unevenly.

    Attributes:
      unnamed: arrays whose dimensions nothing names.
      uneven: arrays with a dimension that its mesh axes do not divide.
      replicated: arrays that every device holds whole.
      total_bytes: of all arrays, each counted once.
    """

    unnamed: tuple[ParamSharding, ...]
    uneven: tuple[ParamSharding, ...]
    replicated: tuple[ParamSharding, ...]
    total_bytes: int

    @property
    def replicated_bytes(self) -> int:
        """Return the bytes that every device holds of the replicated arrays."""
        return sum(sharding.param.bytes for sharding in self.replicated)


def coverage(plan: ShardingPlan) -> Coverage:
    """Return what the plan leaves whole and uneven."""
    even: dict[int, bool] = {}
    whole: dict[int, bool] = {}
    for sharding in plan.params:  # arrays that are alike share their dims
        dims = id(sharding.dims)
        if dims not in even:
            even[dims] = all(dim.is_even for dim in sharding.dims)
            whole[dims] = sharding.is_replicated
    return Coverage(
        unnamed=tuple(s for s in plan.params if s.origin is Origin.NONE and s.param.rank),
        uneven=tuple(s for s in plan.params if not even[id(s.dims)]),
        replicated=tuple(s for s in plan.params if whole[id(s.dims)]),
        total_bytes=sum(sharding.param.bytes for sharding in plan.params),
    )
