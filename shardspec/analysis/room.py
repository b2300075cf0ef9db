"""How many sequences fit: the largest caches that a device's memory has room for.

Parameters stay as they are, and one axis of the caches grows, in whole shards, until the next
would not fit. Tiles of TPUs are filled up, as they are in `cost`. It is a ceiling: what a step
makes counts as it is today where the step is known, and what the compiler needs comes on top.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardspec.analysis.memory import Figure, Held, limit, memory
from shardspec.analysis.step_memory import StepMemory, held_bytes
from shardspec.ir.plan import ShardingPlan

#: Axes along which caches grow, and what one of each is.
GROWING = ("batch", "cache_batch", "pages", "cache_length", "cache_sequence")

_PAGES, _PAGE_SIZE, _LENGTH = "pages", "page_size", "cache_length"

#: Beyond any cache: a search ends there.
_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Room:
    """The largest size of one axis of the caches at which a device holds all.

    Attributes:
      axis: one of `GROWING`.
      size: what it is.
      most: whole shards; 0 where not even one has room.
      tokens: in so many pages, where the caches have a dimension `page_size`.
      sequences: of the `cache_length` that `axes` states, in so many pages.
    """

    axis: str
    size: int
    most: int
    tokens: int | None = None
    sequences: int | None = None

    def __str__(self) -> str:
        """Return `batch up to 1,216 (is 256)`."""
        what = f"{self.axis} up to {self.most:,}"
        if self.tokens is not None:
            what += f", {self.tokens:,} tokens"
        if self.sequences is not None:
            what += f", {self.sequences:,} sequences"
        return f"{what} (is {self.size:,})"


def rooms(plan: ShardingPlan, step: StepMemory | None = None) -> tuple[Room, ...]:
    """Return how far each axis of the caches may grow alone; () where memory is not known.

    What lies in the memory of a host counts on neither side.

    Args:
      step: what a device holds in a step, where that is known.

    Invariants:
      fits: a device holds caches of `most`, and not of one shard more.
    """
    most = limit(plan.target)
    figures = memory(plan).on_device
    caches = tuple(figure for figure in figures if figure.held is Held.CACHES)
    if most is None or not caches:
        return ()
    free = most - sum(_bytes(figure, plan) for figure in figures if figure not in caches)
    if step is not None and step.caches is not None:
        free = most - (step.total.bytes - step.caches.bytes)
    names = dict.fromkeys(name for each in caches for name in each.arrays.dims.logical_axes)
    return tuple(_room(axis, caches, free, plan) for axis in GROWING if axis in names)


def room_lines(plan: ShardingPlan, step: StepMemory | None = None) -> Iterator[str]:
    """Yield `room for batch up to 1,216 (is 256)`, a line for each axis."""
    for room in rooms(plan, step):
        yield f"room for {room}"


def _room(axis: str, caches: tuple[Figure, ...], free: int, plan: ShardingPlan) -> Room:
    dims = [dim for each in caches for dim in each.arrays.dims if dim.logical_axis == axis]
    step = math.lcm(*(dim.ways * dim.unit for dim in dims))
    counts = range(step, _MOST, step)
    fit = bisect_right(counts, free, key=lambda count: _held(axis, count, caches, plan))
    most, sizes = fit * step, {axis.name: axis.size for axis in plan.spec.logical_axes}
    tokens = _page_size(caches) * most if axis == _PAGES and _page_size(caches) else None
    length = sizes.get(_LENGTH)
    sequences = tokens // length if tokens is not None and length else None
    return Room(axis, dims[0].size or 0, most, tokens, sequences)


def _page_size(caches: tuple[Figure, ...]) -> int:
    """Return the tokens of a page, 0 where the caches do not say."""
    dims = (dim for each in caches for dim in each.arrays.dims)
    return next((dim.size or 0 for dim in dims if dim.logical_axis == _PAGE_SIZE), 0)


def _held(axis: str, size: int, caches: tuple[Figure, ...], plan: ShardingPlan) -> int:
    """Return the bytes of the caches on a device with an axis of another size."""
    return sum(_bytes(figure, plan, axis, size) for figure in caches)


def _bytes(figure: Figure, plan: ShardingPlan, axis: str = "", size: int = 0) -> int:
    arrays = figure.arrays
    dims = (
        replace(dim, size=size) if axis and dim.logical_axis == axis else dim for dim in arrays.dims
    )
    shape = tuple(dim.shard_size or 0 for dim in dims)
    return held_bytes(shape, arrays.dtype, plan.target).bytes * arrays.count * figure.copies
