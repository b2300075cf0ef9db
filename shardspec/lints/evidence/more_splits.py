"""What could be split more, and what a device would hold then.

SHD112, SHD225, SHD226, SHD401, SHD404, SHD410 and SHD501 ask this of arrays, and share one measure:
what a device holds in vain is large beside what it holds in all (`is_large`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardspec.analysis.coverage import coverage, held_bytes, is_large
from shardspec.diagnostics.words import grouped, template
from shardspec.ir.plan import Alike, Attempt, DimSharding, ParamSharding, ShardingPlan, divides
from shardspec.resolve.zero import split_further

Layers = tuple[ParamSharding, ...]


def whole_layers(
    plan: ShardingPlan, is_wanted: Callable[[ParamSharding], bool]
) -> Iterator[Layers]:
    """Yield the large arrays that every device holds whole, layers together.

    What `replicate:` allows is left out.
    """
    held = held_bytes(plan)
    wanted = filter(is_wanted, coverage(plan).counted)
    groups = grouped(wanted, lambda s: (template(s.param.path), s.dims, s.param.dtype))
    for group in groups.values():
        if is_large(sum(sharding.param.bytes for sharding in group), held):
            yield tuple(group)


def would_divide(ways: int, dim: DimSharding) -> bool:
    """Say whether one more mesh axis would split a dimension, on top of what splits it."""
    size = dim.size or 0
    return ways > 1 and size > 0 and divides(dim.ways * ways, size, dim.unit)


def one_axis_more(plan: ShardingPlan, arrays: Alike) -> Iterator[tuple[str, int, int]]:
    """Yield each mesh axis that would split arrays further: axis, dimension, bytes of a shard."""
    for axis in plan.mesh.names:
        split = split_further(arrays.dims, plan.mesh, (axis,))
        if split.dim is not None:
            yield axis, split.dim, arrays.laid_out(split.dims).shard_bytes


def is_of_preset(attempt: Attempt) -> bool:
    """Say whether a preset has the rule, which is a strategy with a name."""
    span = attempt.span
    return span is not None and span.source.name.startswith("preset:")
