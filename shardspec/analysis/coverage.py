"""What a plan leaves whole, and what of it counts as large.

How much of a model its plan really splits, and how much of it may stay whole.

An array counts as whole where no mesh axis of more than one device splits it. One that is split
by some mesh axes and repeated over the others is split.

What counts as large: the one measure of every finding that has to do with size.

Large is 2 % of what a device holds, and 16 MiB at least. A device holds its shards of all
parameters; of optimizer state, where a finding is about a state, its shards of that. Whole arrays
that `replicate:` allows do not count: 1 TiB of experts that are meant to be whole would hide a
projection of 2 GiB that is not. Below 2 % no one would look for it, and below 16 MiB it decides
nothing on any device there is: norms and biases of a model of 70 billion parameters take 1 to 10
MiB, and its smallest projection 1 GiB in all layers. Arrays that differ in a layer number only
count together. Of a step it is the same of all that a device sends; and of its FLOPs, where 2,000
stand for a byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import CoverageGate, Replicate, Spec
from shardspec.resolve.match import path_matcher


class Coverage(NamedTuple):
    """What a plan leaves whole, and what it splits unevenly.

    Attributes:
      unnamed: arrays whose dimensions nothing names, though that decides how they lie.
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
    whole = {group.dims for group in plan.alike if group.is_replicated}
    replicated = plan.having(whole.__contains__)
    allowed = allowed_paths(plan.spec, (sharding.param.path for sharding in replicated))
    return Coverage(
        unnamed=tuple(s for s in plan.arrays if s.needs_names),
        uneven=plan.having(lambda dims: not all(dim.is_even for dim in dims)),
        replicated=replicated,
        allowed=tuple(s for s in replicated if s.param.path in allowed),
        total_bytes=sum(group.total_bytes for group in plan.alike),
    )


def allowed_paths(spec: Spec, paths: Iterable[str]) -> frozenset[str]:
    """Return those of `paths` that an entry of `replicate:` allows to be whole."""
    if not spec.replicate:
        return frozenset()
    matcher = path_matcher(tuple(entry.pattern for entry in spec.replicate))
    return frozenset(path for path in paths if matcher.first_match(path) is not None)


def allowing(spec: Spec, path: str) -> Replicate | None:
    """Return the entry of `replicate:` that allows an array to be whole; None where none does."""
    at = path_matcher(tuple(entry.pattern for entry in spec.replicate)).first_match(path)
    return None if at is None else spec.replicate[at]


def limit_bytes(gate: CoverageGate, total_bytes: int) -> int:
    """Return how many bytes the gate lets every device hold whole, of a model of `total_bytes`."""
    if gate.max_bytes is not None:
        return gate.max_bytes
    return total_bytes if gate.max_share is None else round(gate.max_share * total_bytes)


#: One part in so many of what a device holds.
PARTS = 50
LEAST_BYTES = 16 << 20
#: What a chip computes about while it sends a byte: 2e14 FLOP/s beside 1e11 bytes/s.
FLOPS_PER_BYTE = 2000


def is_large(size: int, held: int) -> bool:
    """Say whether so many bytes on a device are large, where it holds `held` in all.

    >>> is_large(16 << 20, 1 << 29), is_large(16 << 20, 1 << 30), is_large(1 << 20, 1 << 20)
    (True, False, False)
    """
    return size >= LEAST_BYTES and PARTS * size >= held


def is_large_work(flops: float, whole: float) -> bool:
    """Say whether so many FLOPs of a device are large, of those that it computes in all.

    >>> is_large_work(2e12, 1e14), is_large_work(1e12, 1e14), is_large_work(1e9, 1e9)
    (True, False, False)
    """
    return flops >= LEAST_BYTES * FLOPS_PER_BYTE and PARTS * flops >= whole


def held_bytes(plan: ShardingPlan) -> int:
    """Return the bytes that a device holds of all parameters but those allowed to be whole."""
    held = sum(group.device_bytes for group in plan.alike)
    if not plan.spec.replicate:
        return held
    whole = {s.param.path: s.param.bytes for s in plan.arrays if s.is_replicated}
    return held - sum(whole[path] for path in allowed_paths(plan.spec, whole))
