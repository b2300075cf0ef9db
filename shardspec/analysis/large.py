"""What counts as large: the one measure of every finding that has to do with size.

Large is 1 % of what a device holds, and 16 MiB at least. A device holds its shards of all
parameters; of optimizer state, where a finding is about a state, its shards of that. Whole arrays
that `replicate:` allows do not count: 1 TiB of experts that are meant to be whole would hide a
projection of 2 GiB that is not. Below 1 % no one would look for it, and below 16 MiB it decides
nothing on any device there is: norms and biases of a model of 70 billion parameters take 1 to 10
MiB, and its smallest projection 1 GiB in all layers. Arrays that differ in a layer number only
count together.
"""

from __future__ import annotations

from shardspec.analysis.coverage import allowed_paths
from shardspec.ir.plan import ShardingPlan

#: One part in so many of what a device holds.
PARTS = 100
LEAST_BYTES = 16 << 20


def is_large(size: int, held: int) -> bool:
    """Say whether so many bytes on a device are large, where it holds `held` in all.

    >>> is_large(16 << 20, 1 << 30), is_large(16 << 20, 2 << 30), is_large(1 << 20, 1 << 20)
    (True, False, False)
    """
    return size >= LEAST_BYTES and PARTS * size >= held


def held_bytes(plan: ShardingPlan) -> int:
    """Return the bytes that a device holds of all parameters but those allowed to be whole."""
    held = sum(group.device_bytes for group in plan.alike)
    if not plan.spec.replicate:
        return held
    whole = {s.param.path: s.param.bytes for s in plan.params if s.is_replicated}
    return held - sum(whole[path] for path in allowed_paths(plan.spec, whole))
