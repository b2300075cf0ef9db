"""Which part of a batch each host feeds: T5X's `DataLayout` and the chunks under it.

`resolver.batch(...).layout()` answers with it, and `shardspec.compat.t5x` offers it by T5X's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

MeshAxes = None | str | tuple[str, ...]


def names_of(axes: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of one mesh axis, several, or none."""
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


@dataclass
class DataLayout:
    """What one host must know to feed its devices.

    Attributes:
      batch_size: examples of the global batch.
      shard_id: which shard of the data this host reads.
      num_shards: how many shards there are; several hosts may read one.
      is_first_host_in_replica_set: whether this host is the one that speaks for its shard.
    """

    batch_size: int | None
    shard_id: int
    num_shards: int
    is_first_host_in_replica_set: bool


@dataclass(frozen=True)
class LocalChunkInfo:
    """The part of one array that this host holds.

    Attributes:
      slice: of each dimension.
      replica_id: 0 on exactly one of the hosts that hold this part.
    """

    slice: tuple[slice, ...]
    replica_id: int


class LocalChunker:
    """The mesh in chunks of one host each.

    Attributes:
      num_chunks: mesh axis -> chunks along it.
      chunk_ids: mesh axis -> this host's chunk.
    """

    def __init__(self, global_mesh: jax.sharding.Mesh, process_index: int | None = None) -> None:
        """Find the box of devices of one process.

        Args:
          process_index: None takes this process.
        """
        import jax
        import numpy as np

        grid = global_mesh.devices
        box = _box_of(grid, jax.process_index() if process_index is None else process_index)
        first = box.reshape(-1)[0]
        place = tuple(int(hits[0]) for hits in np.nonzero(grid == first))
        self.global_mesh = global_mesh
        self.mesh_axes = list(global_mesh.shape)
        self.num_chunks: dict[str, int] = {}
        self.chunk_ids: dict[str, int] = {}
        for axis, size, extent, position in zip(
            self.mesh_axes, grid.shape, box.shape, place, strict=True
        ):
            self.num_chunks[axis] = size // extent
            self.chunk_ids[axis] = position // extent

    def get_shard_id(self, axes: str | Iterable[str]) -> int:
        """Return this host's chunk over one mesh axis or several, major to minor."""
        shard_id = 0
        for axis in names_of(axes):
            shard_id = shard_id * self.num_chunks[axis] + self.chunk_ids[axis]
        return shard_id

    def get_replica_id(self, axes: str | Iterable[str]) -> int:
        """Return this host's chunk over the mesh axes that `axes` leaves out."""
        sharded = set(names_of(axes))
        return self.get_shard_id([axis for axis in self.mesh_axes if axis not in sharded])

    def get_local_chunk_info(
        self, global_shape: Sequence[int], mesh_axes: Sequence[str | None]
    ) -> LocalChunkInfo:
        """Return the part of an array of `global_shape` that this host holds.

        As in T5X a size that the chunks do not divide loses its tail.
        """
        slices = [slice(None)] * len(global_shape)
        sharded = []
        for dim, (axis, size) in enumerate(zip(mesh_axes, global_shape, strict=False)):
            if not axis:
                continue
            if not isinstance(axis, str):
                raise NotImplementedError(
                    f"dimension {dim} is split over {axis}, and a chunk is told for one mesh axis "
                    "a dimension: ask `sharding.addressable_devices_indices_map(shape)`"
                )
            length = size // self.num_chunks[axis]
            start = self.chunk_ids[axis] * length
            slices[dim] = slice(start, start + length)
            sharded.append(axis)
        return LocalChunkInfo(tuple(slices), self.get_replica_id(sharded))


def _box_of(grid: Any, process_index: int) -> Any:
    """Return the smallest box of the mesh that holds all devices of a process.

    The text of the error is JAX's own, from `Mesh.local_mesh`.
    """
    import numpy as np

    is_local = np.vectorize(lambda device: device.process_index == process_index, otypes=[bool])(
        grid
    )
    places = np.argwhere(is_local)
    box = tuple(
        slice(int(low), int(high) + 1)
        for low, high in zip(places.min(axis=0), places.max(axis=0), strict=True)
    )
    if not is_local[box].all():
        raise ValueError(
            "When passing host local inputs to pjit, devices connected to a single host must form "
            "a contiguous subcube of the global device mesh"
        )
    return grid[box]


def get_data_layout(
    mesh: jax.sharding.Mesh,
    batch_size: int | None = None,
    host_index: int | None = None,
    *,
    data_axis: MeshAxes = "data",
    process_index: int | None = None,
    chunker: LocalChunker | None = None,
) -> DataLayout:
    """Return the batch shard of one host.

    Args:
      batch_size: of the whole batch; None or 0 takes one example per data-parallel device.
      host_index: T5X reserves it and has never implemented it.
      data_axis: the mesh axes that split the batch; None where nothing does.
      process_index: the host; None takes this process.
      chunker: the mesh in chunks as seen from the host; None finds them.
    """
    import jax

    if host_index is not None:
        raise NotImplementedError("Explicit host_index is not yet implemented.")
    if data_axis is None:
        here = jax.process_index() if process_index is None else process_index
        return DataLayout(batch_size, 0, 1, here == 0)
    axes = names_of(data_axis)
    chunker = chunker or LocalChunker(mesh, process_index)
    data_mesh_size = math.prod(mesh.shape[axis] for axis in axes)
    batch_size = batch_size or data_mesh_size
    if batch_size % data_mesh_size:
        raise ValueError(
            f"Batch size ({batch_size}) must be divisible by corresponding data mesh size "
            f"({data_mesh_size})."
        )
    num_shards = math.prod(chunker.num_chunks[axis] for axis in axes)
    if batch_size % num_shards:
        raise ValueError(
            f"Batch size ({batch_size}) must be divisible by number of data shards ({num_shards})."
        )
    replica_id = chunker.get_replica_id(axes)
    return DataLayout(batch_size, chunker.get_shard_id(axes), num_shards, replica_id == 0)
