"""Batches: where the rows go, which of them this process feeds, and the global arrays of them.

Each process loads its share of the global batch, and JAX makes one array of all shares. What can
go wrong there is silent or a crash far from the cause: a batch that the data axes do not divide,
a share of the wrong size, rows in another order than the devices. So sizes are checked before
anything moves, and `local_rows` says which rows of the global batch a process is to load.

The devices of a process are a box of the mesh on most machines, and then it holds one run of rows.
They need not be: where the mesh interleaves processes, it holds several runs, and where a process
has one and a half replicas, two processes hold some rows in common.

`resolver.batch(...).layout()` answers with T5X's `DataLayout`, which `shardspec.compat.t5x` offers
by T5X's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import LogicalAxes, Param
from shardspec.jax_backend import trees
from shardspec.jax_backend.constrain import ActivationResolver, axes_of
from shardspec.jax_backend.live import summed
from shardspec.jax_backend.shardings import TreePlacer
from shardspec.jax_backend.target_devices import need_devices
from shardspec.jax_backend.trees import SCALARS, dtype_of, path_of, shape_of

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
        grid = global_mesh.devices
        box = _box_of(grid, jax.process_index() if process_index is None else process_index)
        first = box.reshape(-1)[0]
        place = tuple(int(hits[0]) for hits in np.nonzero(grid == first))
        self.global_mesh = global_mesh
        self.mesh_axes = list(global_mesh.shape)
        self.num_chunks: dict[str, int] = {}
        self.chunk_ids: dict[str, int] = {}
        for at, axis in enumerate(self.mesh_axes):
            self.num_chunks[axis] = grid.shape[at] // box.shape[at]
            self.chunk_ids[axis] = place[at] // box.shape[at]

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
                    f"dimension {dim} is split over {axis}, and a chunk is known only for one mesh "
                    "axis a dimension: ask `sharding.addressable_devices_indices_map(shape)`"
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


class _Part(NamedTuple):
    """One leaf of a batch.

    Attributes:
      names: None for a leaf that is no array.
    """

    path: str
    array: Any
    names: str | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes that this process has."""
        return tuple(shape_of(self.array) or ())

    @property
    def label(self) -> str:
        """Return what a message calls it."""
        shown = Param("", self.shape, dtype_of(self.array))
        return f"`{self.path}` {shown}" if self.path else f"the array {shown}"


class _Place(NamedTuple):
    """Where the shares of an array go.

    Attributes:
      rows: of the global batch; None for an array that has no batch.
    """

    shape: tuple[int, ...]
    sharding: jax.sharding.NamedSharding
    rows: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The arrays of a batch by their logical axes; the first name of each is the batch's.

    Attributes:
      names: for one array, or a tree of them, e.g. a dict with a string for each key. A string
        stands for everything below it.
    """

    names: Any
    activations: ActivationResolver = field(repr=False)
    placer: TreePlacer = field(repr=False)

    def __post_init__(self) -> None:
        """Raise TypeError for names that are no string, and no tree of strings."""
        leaves = trees.refuse_no_tree(self.names)
        wrong = [leaf for leaf in leaves if not isinstance(leaf, str)]
        if wrong or not leaves:
            found = trees.kind_of(wrong[0] if wrong else self.names)
            raise TypeError(
                f'a batch has names such as "batch length", or a tree of such strings: not {found}'
            )

    def sharding(self, shape: Any = None) -> Any:
        """Return the sharding of the global batch, in a tree like `names`.

        Args:
          shape: the global shape, or an array that has it, or a tree of these. None for the sizes
            that the spec's `axes` state.

        Raises:
          ShardspecError: the mesh axes do not divide a size, or names are unknown.
        """
        if shape is None:
            return jax.tree_util.tree_map(self._sharding, self.names)

        def below(names: str, node: Any) -> Any:
            return jax.tree_util.tree_map(
                lambda one: self._sharding(names, getattr(one, "shape", one)),
                node,
                is_leaf=_is_shape,
            )

        trees.refuse_no_tree(shape)
        structure: Any
        flat, structure = jax.tree_util.tree_flatten(self.names)
        nodes = self._like_names(structure, shape)
        return structure.unflatten(map(below, flat, nodes))

    def local_rows(
        self, global_shape: Sequence[int], *, process: int | None = None
    ) -> tuple[Runs, ...]:
        """Return the indices that a process feeds, as runs, for each dimension.

        Where its devices are not neighbours on the data axes, a dimension has several runs, and
        `put` takes them one behind the other. Where two processes hold the same rows, both feed
        them, and must feed the same.

        Args:
          process: None for this one.

        Raises:
          ShardspecError: the mesh axes do not divide a size, or names are unknown.
        """
        if not isinstance(self.names, str):
            raise TypeError("rows are those of one array: make a batch of its names alone")
        whole = trees.sizes_given(global_shape)
        mesh = self.placer.mesh
        need_devices(mesh, "batch.local_rows()")
        return runs_of(self._sharding(self.names, whole), whole, trees.process_given(process, mesh))

    def local_slice(
        self, global_shape: Sequence[int], *, process: int | None = None
    ) -> tuple[slice, ...]:
        """Return the part of a global array that a process feeds.

        Raises:
          ShardspecError: as `local_rows` does.
          ValueError: it is in several pieces; `local_rows` has them.
        """
        found = self.local_rows(global_shape, process=process)
        for dim, runs in enumerate(found):
            if len(runs) > 1:
                shown = ", ".join(f"{run.start}:{run.stop}" for run in runs[:4])
                raise ValueError(
                    f"the process feeds {len(runs)} pieces of dim {dim} of {list(global_shape)},"
                    f" {shown}{', ...' if len(runs) > 4 else ''}: no slice, so ask local_rows()"
                )
        return tuple(slice(runs[0].start, runs[0].stop) for runs in found)

    def layout(self, global_batch: int | None = None, *, process: int | None = None) -> DataLayout:
        """Return T5X's `DataLayout`: shard id, number of shards, and who speaks for a shard.

        Args:
          global_batch: None for the size that the spec's `axes` state, and where they state none,
            one example for each shard of the batch.
          process: None for this one.

        Raises:
          ValueError: the shards do not divide the size, or the devices of the process are no box
            of the mesh, and so have no shard of their own.
        """
        names: str = jax.tree_util.tree_leaves(self.names)[0]
        axes = axes_of(names)
        dim = _batch_dim(axes)
        mesh = self.placer.mesh
        need_devices(mesh, "batch.layout()")
        process = trees.process_given(process, mesh)
        global_batch = trees.count_given(global_batch)
        if dim is None:
            return get_data_layout(mesh, global_batch, data_axis=None, process_index=process)
        stated = {axis.name: axis.size for axis in self.activations.arrays.spec.logical_axes}
        rows = global_batch or stated.get(axes[dim] or "")
        entry = self._sharding(names).spec[dim]
        return get_data_layout(mesh, rows, data_axis=entry, process_index=process)

    def put(
        self,
        local: Any,
        *,
        global_batch: int | None = None,
        global_shape: Sequence[int] | None = None,
    ) -> Any:
        """Return global arrays made from what each process has loaded.

        Along the batch an array holds the rows of this process, along all other dimensions
        everything. All processes call this, with arrays of the same shapes.

        Args:
          local: an array, or a tree of them. Numbers and leaves that are no arrays stay. Partial
            sums are summed up, where all of them are on devices of this process.
          global_batch: the rows of all processes; None to count them.
          global_shape: of each array, where processes have shares of further dimensions too.

        Raises:
          ShardspecError: the batch does not divide over the data axes, or an array does not have
            the rows that are this process's share.
        """
        if global_batch is not None and global_shape is not None:
            raise TypeError("put() takes either global_batch or global_shape, and not both")
        need_devices(self.placer.mesh, "batch.put()")
        trees.refuse_no_tree(local)
        local = jax.tree_util.tree_map(_as_itself, local)
        trees.refuse_unmovable(local, "put")
        global_batch = trees.count_given(global_batch)
        global_shape = None if global_shape is None else trees.sizes_given(global_shape)
        parts = list(self._parts(local))
        places = [self._place(part, global_batch, global_shape) for part in parts]
        if not any(places):
            raise TypeError(f"put() takes arrays, and there is none in {trees.kind_of(local)}")
        _refuse_unlike(parts, places)
        arrays = [
            part.array if place is None else _made(part, place)
            for part, place in zip(parts, places, strict=True)
        ]
        structure: Any = jax.tree_util.tree_structure(local)
        return structure.unflatten(arrays)

    def _parts(self, local: Any) -> Iterator[_Part]:
        """Yield each leaf, in the order in which JAX flattens them."""
        flat: Any
        structure: Any
        flat, structure = jax.tree_util.tree_flatten_with_path(self.names)
        for (above, names), node in zip(flat, self._like_names(structure, local), strict=True):
            for keys, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
                is_array = shape_of(leaf) is not None and type(leaf) not in SCALARS
                yield _Part(path_of((*above, *keys)), leaf, names if is_array else None)

    def _like_names(self, structure: Any, tree: Any) -> list[Any]:
        """Return what stands in a tree in place of each string of the names.

        Raises:
          ShardspecError: it is no tree like that.
        """
        try:
            nodes: list[Any] = structure.flatten_up_to(tree)
        except trees.UNUSABLE as error:  # RuntimeError: a deleted array, which it cannot show
            first = str(error).partition("\n")[0].partition(", got ")[0].rstrip(".;:")
            message = f"the batch is not a tree like its names: {first}"
            help = f"the names are {_shown(self.names)}, and this is {_shown(tree)}"
            raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),)) from None
        return nodes

    def _place(
        self, part: _Part, global_batch: int | None, global_shape: Sequence[int] | None
    ) -> _Place | None:
        """Return where an array goes, if it is this process's share; None for what is none."""
        names = part.names
        if names is None:
            return None
        axes, local = axes_of(names), part.shape
        dim = _batch_dim(axes)
        whole = list(local if global_shape is None else global_shape)
        if dim is not None and global_shape is None and len(axes) == len(local):
            whole[dim] = global_batch or self._counted(names, dim, local)
        sharding = self._sharding(names, whole, part)
        for at, (size, runs) in enumerate(zip(local, runs_of(sharding, whole), strict=True)):
            is_given_whole = size == whole[at] and at != dim
            if size != length(runs) and not is_given_whole:
                fault = _wrong_share(part, axes, at, length(runs), whole[at], _ways(sharding, at))
                raise ShardspecError((fault,))
        return _Place(tuple(whole), sharding, None if dim is None else whole[dim])

    def _counted(self, names: str, dim: int, local: Sequence[int]) -> int:
        """Return the rows of all processes, as far as each has as many for each of its shards."""
        total: int = self.placer.mesh.size  # every product of mesh axes divides it
        own = length(runs_of(self._sharding(names), [total] * len(local))[dim])
        return -(-local[dim] * total // own)

    def _sharding(
        self, names: str, shape: Sequence[int] | None = None, part: _Part | None = None
    ) -> jax.sharding.NamedSharding:
        name, array = (None, None) if part is None else (part.path or None, part.array)
        return self.placer.named(self.activations.dims(names, shape, name=name, array=array))


def _as_itself(leaf: Any) -> Any:
    """Return an array of partial sums as itself, where this process has all of them."""
    is_here = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    if not is_here or leaf.is_deleted() or not trees.unreduced_axes(leaf.sharding):
        return leaf
    return summed(leaf) if leaf.is_fully_addressable else leaf


def _made(part: _Part, place: _Place) -> Any:
    """Return the global array of a part that each process has.

    Raises:
      ShardspecError: JAX takes it for no array.
    """
    make: Any = jax.make_array_from_process_local_data
    try:
        return make(place.sharding, part.array, place.shape)
    except trees.UNUSABLE as error:
        trees.refuse_unusable(part.array, part.path, error, "put")
        raise


def _shown(tree: Any) -> str:
    """Return a tree for a message: its keys if it is a dict, else what it is."""
    if isinstance(tree, Mapping):
        return f"a dict of {listed(list(map(str, tree)))}" if tree else "an empty dict"
    return trees.kind_of(tree)


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple | list) and all(isinstance(size, int) for size in node)


def _batch_dim(axes: LogicalAxes) -> int | None:
    """Return the first dimension that has a name: the batch."""
    return next((dim for dim, axis in enumerate(axes) if axis is not None), None)


def _refuse_unlike(parts: Sequence[_Part], places: Sequence[_Place | None]) -> None:
    """Raise where two arrays of one batch do not have the same number of rows."""
    pairs = zip(parts, places, strict=True)
    counted = [(part, place.rows) for part, place in pairs if place and place.rows is not None]
    for part, rows in counted:
        first, of_first = counted[0]
        if rows != of_first:
            message = (
                f"{part.label} is part of a batch of {rows}, and {first.label} of one of {of_first}"
            )
            help = "give all arrays of a batch the same number of rows"
            raise ShardspecError((Diagnostic(codes.SIZE_MISMATCH, message, help=help),))


def _ways(sharding: jax.sharding.NamedSharding, dim: int) -> int:
    """Return how many parts a dimension is split into."""
    entry: Any = sharding.spec[dim] if dim < len(sharding.spec) else None
    return math.prod(sharding.mesh.shape[axis] for axis in names_of(entry))


def _wrong_share(
    part: _Part, axes: LogicalAxes, dim: int, expected: int, whole: int, ways: int
) -> Diagnostic:
    """Return the diagnostic for an array that is not what this process is to feed.

    Args:
      ways: into how many parts the dimension is split.
    """
    here, count = jax.process_index(), jax.process_count()
    axis, size = f"`{axes[dim]}`" if axes[dim] else f"dim {dim}", part.shape[dim]
    message = (
        f"{part.label} has {axis} = {size}, and process {here} of {count} feeds"
        f" {expected} of {whole}"
    )
    out = [f"pass {expected}, those that `local_rows` says"]
    if size == whole:
        out.append("`resolver.put` takes the whole array from every process")
    elif expected and whole * size % (expected * ways) == 0:
        out.append(f"`global_batch={whole * size // expected}` if each process has {size}")
    return Diagnostic(codes.SIZE_MISMATCH, message, help="; or ".join(out))
