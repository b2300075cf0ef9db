"""Batches: where the rows go, which of them this process feeds, and the global arrays of them.

Each process loads its share of the global batch, and JAX makes one array of all shares. What can
go wrong there is silent or a crash far from the cause: a batch that the data axes do not divide,
a share of the wrong size, rows in another order than the devices. So sizes are checked before
anything moves, and `local_rows` says which rows of the global batch a process is to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import SIZE_MISMATCH, WRONG_TYPE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.param import LogicalAxes, Param
from shardspec.jax_backend.activations import ActivationResolver, axes_of
from shardspec.jax_backend.arguments import (
    UNUSABLE,
    count_given,
    kind_of,
    process_given,
    refuse_no_tree,
    refuse_unmovable,
    refuse_unusable,
    sizes_given,
)
from shardspec.jax_backend.arrays import SCALARS, dtype_of, shape_of
from shardspec.jax_backend.data_layout import DataLayout, get_data_layout
from shardspec.jax_backend.mesh import need_devices
from shardspec.jax_backend.paths import path_of
from shardspec.jax_backend.shardings import TreePlacer
from shardspec.jax_backend.shares import Runs, length, runs_of

if TYPE_CHECKING:
    import jax


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
        import jax

        refuse_no_tree(self.names)
        leaves = jax.tree_util.tree_leaves(self.names)
        wrong = [leaf for leaf in leaves if not isinstance(leaf, str)]
        if wrong or not leaves:
            found = kind_of(wrong[0] if wrong else self.names)
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
        import jax

        if shape is None:
            return jax.tree_util.tree_map(self._sharding, self.names)

        def below(names: str, node: Any) -> Any:
            return jax.tree_util.tree_map(
                lambda one: self._sharding(names, getattr(one, "shape", one)),
                node,
                is_leaf=_is_shape,
            )

        refuse_no_tree(shape)
        flat: Any
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
        whole = sizes_given(global_shape)
        mesh = self.placer.answers.mesh
        need_devices(mesh, "batch.local_rows()")
        return runs_of(self._sharding(self.names, whole), whole, process_given(process, mesh))

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
        import jax

        names: str = jax.tree_util.tree_leaves(self.names)[0]
        axes = axes_of(names)
        dim = _batch_dim(axes)
        mesh = self.placer.answers.mesh
        need_devices(mesh, "batch.layout()")
        process, global_batch = process_given(process, mesh), _batch_size(global_batch)
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
          local: an array, or a tree of them. Numbers and leaves that are no arrays stay.
          global_batch: the rows of all processes; None to count them.
          global_shape: of each array, where processes have shares of further dimensions too.

        Raises:
          ShardspecError: the batch does not divide over the data axes, or an array does not have
            the rows that are this process's share.
        """
        import jax

        if global_batch is not None and global_shape is not None:
            raise TypeError("put() takes either global_batch or global_shape, and not both")
        need_devices(self.placer.answers.mesh, "batch.put()")
        refuse_no_tree(local)
        refuse_unmovable(local, "put")
        global_batch = _batch_size(global_batch)
        global_shape = None if global_shape is None else sizes_given(global_shape)
        parts = list(self._parts(local))
        places = [
            None
            if part.names is None
            else self._place(part, part.names, global_batch, global_shape)
            for part in parts
        ]
        if not any(places):
            raise TypeError(f"put() takes arrays, and there is none in {kind_of(local)}")
        _refuse_unlike(parts, places)
        arrays = [
            part.array if place is None else _made(part, place)
            for part, place in zip(parts, places, strict=True)
        ]
        structure: Any = jax.tree_util.tree_structure(local)
        return structure.unflatten(arrays)

    def _parts(self, local: Any) -> Iterator[_Part]:
        """Yield each leaf, in the order in which JAX flattens them."""
        import jax

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
        except UNUSABLE as error:  # RuntimeError: a deleted array, which it cannot show
            first = str(error).partition("\n")[0].partition(", got ")[0].rstrip(".;:")
            message = f"the batch is not a tree like its names: {first}"
            help = f"the names are {_shown(self.names)}, and this is {_shown(tree)}"
            raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),)) from None
        return nodes

    def _place(
        self,
        part: _Part,
        names: str,
        global_batch: int | None,
        global_shape: Sequence[int] | None,
    ) -> _Place:
        """Return where an array goes, if it is this process's share."""
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
        total = self.placer.answers.mesh.size  # every product of mesh axes divides it
        own = length(runs_of(self._sharding(names), [total] * len(local))[dim])
        return -(-local[dim] * total // own)

    def _sharding(
        self, names: str, shape: Sequence[int] | None = None, part: _Part | None = None
    ) -> jax.sharding.NamedSharding:
        name, array = (None, None) if part is None else (part.path or None, part.array)
        return self.placer.named(self.activations.dims(names, shape, name=name, array=array))


def _made(part: _Part, place: _Place) -> Any:
    """Return the global array of a part that each process has.

    Raises:
      ShardspecError: JAX takes it for no array.
    """
    import jax

    make: Any = jax.make_array_from_process_local_data
    try:
        return make(place.sharding, part.array, place.shape)
    except UNUSABLE as error:
        refuse_unusable(part.array, part.path, error, "put")
        raise


def _batch_size(rows: Any) -> int | None:
    return count_given(rows, "global_batch")


def _shown(tree: Any) -> str:
    """Return a tree for a message: its keys if it is a dict, else what it is."""
    if isinstance(tree, Mapping):
        return f"a dict of {listed(list(map(str, tree)))}" if tree else "an empty dict"
    return kind_of(tree)


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple | list) and all(isinstance(size, int) for size in node)


def _batch_dim(axes: LogicalAxes) -> int | None:
    """Return the first dimension that has a name: the batch."""
    return next((dim for dim, axis in enumerate(axes) if axis is not None), None)


def _refuse_unlike(parts: Sequence[_Part], places: Sequence[_Place | None]) -> None:
    """Raise where two arrays of one batch do not have the same number of rows."""
    counted = [
        (part, place)
        for part, place in zip(parts, places, strict=True)
        if place is not None and place.rows is not None
    ]
    for part, place in counted:
        first, of_first = counted[0]
        if place.rows != of_first.rows:
            message = (
                f"{part.label} is part of a batch of {place.rows}, and {first.label} of one of"
                f" {of_first.rows}"
            )
            help = "give all arrays of a batch the same number of rows"
            raise ShardspecError((Diagnostic(SIZE_MISMATCH, message, help=help),))


def _ways(sharding: jax.sharding.NamedSharding, dim: int) -> int:
    """Return how many parts a dimension is split into."""
    entry: Any = sharding.spec[dim] if dim < len(sharding.spec) else None
    axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return math.prod(sharding.mesh.shape[axis] for axis in axes)


def _wrong_share(
    part: _Part, axes: LogicalAxes, dim: int, expected: int, whole: int, ways: int
) -> Diagnostic:
    """Return the diagnostic for an array that is not what this process is to feed.

    Args:
      ways: into how many parts the dimension is split.
    """
    import jax

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
    return Diagnostic(SIZE_MISMATCH, message, help="; or ".join(out))
