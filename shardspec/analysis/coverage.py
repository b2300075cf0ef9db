"""How much of a model its plan really splits, and how much of it may stay whole.

An array counts as whole where no mesh axis of more than one device splits it. One that is split
by some mesh axes and repeated over the others is split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardspec.ir.plan import Dims, Origin, ParamSharding, ShardingPlan
from shardspec.ir.spec import CoverageGate, Spec
from shardspec.resolve.match import path_matcher


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a plan leaves whole, and what it splits unevenly.

    Attributes:
      unnamed: arrays whose dimensions nothing names.
      uneven: arrays with a dimension that its mesh axes do not divide.
      replicated: arrays that every device holds whole.
      allowed: those of them that an entry of `replicate:` allows.
      total_bytes: of all arrays, each counted once.
    """

    unnamed: tuple[ParamSharding, ...]
    uneven: tuple[ParamSharding, ...]
    replicated: tuple[ParamSharding, ...]
    allowed: tuple[ParamSharding, ...]
    total_bytes: int

    @property
    def replicated_bytes(self) -> int:
        """Return the bytes that every device holds of the replicated arrays."""
        return sum(sharding.param.bytes for sharding in self.replicated)

    @property
    def allowed_bytes(self) -> int:
        """Return the bytes that every device holds of those that `replicate:` allows."""
        return sum(sharding.param.bytes for sharding in self.allowed)

    @property
    def counted_bytes(self) -> int:
        """Return the bytes that count against the gate `coverage:`."""
        return self.replicated_bytes - self.allowed_bytes

    @property
    def counted(self) -> tuple[ParamSharding, ...]:
        """Return the replicated arrays that count against the gate `coverage:`."""
        allowed = {sharding.param.path for sharding in self.allowed}
        return tuple(s for s in self.replicated if s.param.path not in allowed)


def coverage(plan: ShardingPlan) -> Coverage:
    """Return what the plan leaves whole and uneven."""
    even: dict[Dims, bool] = {}
    whole: dict[Dims, bool] = {}
    for sharding in plan.params:  # arrays that are alike share their dims
        if sharding.dims not in even:
            even[sharding.dims] = all(dim.is_even for dim in sharding.dims)
            whole[sharding.dims] = sharding.is_replicated
    replicated = tuple(s for s in plan.params if whole[s.dims])
    allowed = allowed_paths(plan.spec, (sharding.param.path for sharding in replicated))
    return Coverage(
        unnamed=tuple(s for s in plan.params if s.origin is Origin.NONE and s.param.rank),
        uneven=tuple(s for s in plan.params if not even[s.dims]),
        replicated=replicated,
        allowed=tuple(s for s in replicated if s.param.path in allowed),
        total_bytes=sum(sharding.param.bytes for sharding in plan.params),
    )


def allowed_paths(spec: Spec, paths: Iterable[str]) -> frozenset[str]:
    """Return those of `paths` that an entry of `replicate:` allows to be whole."""
    if not spec.replicate:
        return frozenset()
    matcher = path_matcher(tuple(entry.pattern for entry in spec.replicate))
    return frozenset(path for path in paths if matcher.first_match(path) is not None)


def limit_bytes(gate: CoverageGate, total_bytes: int) -> int:
    """Return how many bytes the gate lets every device hold whole, of a model of `total_bytes`."""
    if gate.max_bytes is not None:
        return gate.max_bytes
    return total_bytes if gate.max_share is None else round(gate.max_share * total_bytes)
