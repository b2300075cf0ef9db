"""What part of an array one process holds: the indices of each dimension, as runs.

The devices of a process are a box of the mesh on most machines, and then it holds one run of rows.
They need not be: where the mesh interleaves processes, it holds several runs, and where a process
has one and a half replicas, two processes hold some rows in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

#: The runs of one dimension, in order.
Runs = tuple[range, ...]


def runs_of(
    sharding: jax.sharding.Sharding, shape: Sequence[int], process: int | None = None
) -> tuple[Runs, ...]:
    """Return the indices that a process holds, for each dimension; adjacent shards are one run.

    Args:
      shape: of the whole array.
      process: None for this one.

    Raises:
      ValueError: the process has no device that the array lies on.
    """
    import jax

    here = jax.process_index() if process is None else process
    whole = tuple(shape)
    places: Any = sharding.devices_indices_map(whole)
    own = [index for device, index in places.items() if device.process_index == here]
    if not own:
        raise ValueError(f"process {here} has no device in the mesh, and holds nothing")
    return tuple(
        _merged({index[dim].indices(size)[:2] for index in own if index is not None})
        for dim, size in enumerate(whole)
    )


def _merged(bounds: set[tuple[int, int]]) -> Runs:
    """Return intervals in order, those that touch as one.

    >>> _merged({(8, 12), (0, 4), (4, 8), (16, 20)})
    (range(0, 12), range(16, 20))
    """
    merged: list[range] = []
    for start, stop in sorted(bounds):
        if merged and merged[-1].stop == start:
            merged[-1] = range(merged[-1].start, stop)
        else:
            merged.append(range(start, stop))
    return tuple(merged)


def length(runs: Runs) -> int:
    """Return how many indices there are.

    >>> length((range(0, 4), range(8, 12)))
    8
    """
    return sum(map(len, runs))
