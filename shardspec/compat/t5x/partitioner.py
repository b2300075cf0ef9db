"""T5X's `PjitPartitioner`: mesh, rules, data layout, layouts of train states, partitioned calls."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from shardspec.compat.flax import logical_to_mesh_axes
from shardspec.compat.t5x.meshes import default_mesh
from shardspec.compat.t5x.rules import standard_logical_axis_rules
from shardspec.jax_backend.batch import DataLayout, LocalChunker, LocalChunkInfo, MeshAxes, names_of
from shardspec.jax_backend.batch import get_data_layout as layout_of_mesh
from shardspec.jax_backend.extras import required

_LOG = logging.getLogger(__name__)


class PjitPartitioner:
    """A mesh, the rules on it, and the axis that splits the batch.

    Subclasses of T5X's own, such as its `MoePjitPartitioner`, read the arguments from attributes
    that begin with an underscore, so those have T5X's names: `_num_partitions`,
    `_model_parallel_submesh`, `_backend`, `_ici_mesh_shape`, `_dcn_mesh_shape`, `_data_axis`,
    `_logical_axis_rules`. What a subclass says of `mesh`, `_local_chunker` and `get_logical_axes`
    holds for everything that rests on them.

    Attributes:
      params_on_devices: a note for checkpoint restore; it changes no sharding.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: Sequence[int] | None = None,
        params_on_devices: bool = True,
        backend: str | None = None,
        ici_mesh_shape: Sequence[int] | None = None,
        dcn_mesh_shape: Sequence[int] | None = None,
        logical_axis_rules: Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Keep the choices; the mesh is made when it is asked for."""
        if not num_partitions and not model_parallel_submesh:
            raise ValueError(
                "At least one of `num_partitions` or `model_parallel_submesh` must be set."
            )
        if model_parallel_submesh is not None and len(model_parallel_submesh) != 4:
            _LOG.error(
                "`model_parallel_submesh` must be either None or a 4-tuple. Got %s.",
                model_parallel_submesh,
            )
        if num_partitions and model_parallel_submesh:
            _LOG.error("`num_partitions` and `model_parallel_submesh` are mutually exclusive.")
        self.params_on_devices = params_on_devices
        self._num_partitions = num_partitions
        self._model_parallel_submesh = model_parallel_submesh
        self._backend = backend
        self._ici_mesh_shape, self._dcn_mesh_shape = ici_mesh_shape, dcn_mesh_shape
        rules = standard_logical_axis_rules() if logical_axis_rules is None else logical_axis_rules
        if ici_mesh_shape is not None and dcn_mesh_shape is not None:
            rules = [
                (name, ("replica", "data")) if name == "batch" else (name, axes)
                for name, axes in rules
            ]
        self._logical_axis_rules = tuple(rules)
        self._data_axis: MeshAxes = next(
            (axes for name, axes in self._logical_axis_rules if name == "batch"), None
        )

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """Return the mesh."""
        return default_mesh(
            self._num_partitions or 0,
            self._model_parallel_submesh,
            self._backend,
            self._ici_mesh_shape,
            self._dcn_mesh_shape,
        )

    @property
    def logical_axis_rules(self) -> tuple[tuple[str, Any], ...]:
        """Return the rules, first to last."""
        return self._logical_axis_rules

    @property
    def use_shardy_partitioner(self) -> bool:
        """Return whether XLA partitions programs by Shardy, as `jax.config` says."""
        return bool(getattr(jax.config, "jax_use_shardy_partitioner", True))

    @property
    def data_partition_spec(self) -> jax.sharding.PartitionSpec:
        """Return how a batch is split: its first dimension, over the data axis."""
        return jax.sharding.PartitionSpec(self._data_axis)

    @property
    def data_mesh_size(self) -> int:
        """Return over how many devices a batch is split."""
        return math.prod(self.mesh.shape[axis] for axis in names_of(self._data_axis))

    @property
    def data_shards(self) -> int:
        """Return into how many shards the hosts read the data."""
        chunks = self._local_chunker.num_chunks
        return math.prod(chunks[axis] for axis in names_of(self._data_axis))

    @property
    def data_shard_id(self) -> int:
        """Return which of them this host reads."""
        return self._local_chunker.get_shard_id(names_of(self._data_axis))

    @functools.cached_property
    def _local_chunker(self) -> LocalChunker:
        return LocalChunker(self.mesh)

    def get_data_layout(
        self, batch_size: int | None = None, host_index: int | None = None
    ) -> DataLayout:
        """Return the batch shard of this host."""
        return layout_of_mesh(
            self.mesh,
            batch_size,
            host_index,
            data_axis=self._data_axis,
            chunker=None if self._data_axis is None else self._local_chunker,
        )

    def get_local_chunk_info(
        self, global_shape: Sequence[int], mesh_axes: Sequence[str | None]
    ) -> LocalChunkInfo:
        """Return the part of an array that this host holds."""
        return self._local_chunker.get_local_chunk_info(global_shape, mesh_axes)

    def get_logical_axes(self, train_state: Any) -> Any:
        """Return the train state with names, or None, for every array."""
        return train_state.as_logical_axes()

    def get_mesh_axes(self, train_state: Any) -> Any:
        """Return the train state with a `PartitionSpec`, or None, for every array."""
        logical_axes = self.get_logical_axes(train_state)
        mesh_axes = _mapped_leaves(logical_axes.state_dict(), self._logical_axis_rules)
        return logical_axes.restore_state(mesh_axes)

    def partition(
        self,
        fn: Callable[..., Any],
        in_axis_resources: Any,
        out_axis_resources: Any,
        static_argnums: int | Sequence[int] = (),
        donate_argnums: int | Sequence[int] = (),
    ) -> PjittedFnWithContext:
        """Return `fn` jitted for the mesh.

        Args:
          in_axis_resources: a `PartitionSpec` or None, which is replicated, for every array or
            for a part of the tree.
        """
        jitted = jax.jit(
            fn,
            in_shardings=self._shardings(in_axis_resources),
            out_shardings=self._shardings(out_axis_resources),
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
        )
        return PjittedFnWithContext(jitted, self.mesh, self._logical_axis_rules)

    def compile(self, partitioned_fn: PjittedFnWithContext, *args: Any) -> Any:
        """Return a partitioned function compiled for arguments like these."""
        return partitioned_fn.lower(*args).compile()

    def move_params_to_devices(self, train_state: Any, train_state_axes: Any) -> Any:
        """Return the train state where `train_state_axes`, of `get_mesh_axes`, wants it."""
        move = self.partition(lambda state: state, (train_state_axes,), train_state_axes)
        return move(train_state)

    def _shardings(self, axis_resources: Any) -> Any:
        partition_spec: Any = jax.sharding.PartitionSpec

        def sharding(spec: Any) -> jax.sharding.NamedSharding:
            return jax.sharding.NamedSharding(self.mesh, partition_spec() if spec is None else spec)

        return jax.tree_util.tree_map(sharding, axis_resources, is_leaf=lambda node: node is None)


class PjittedFnWithContext:
    """A jitted function that is called, and lowered, with the mesh and the rules around it."""

    def __init__(
        self,
        pjitted_fn: Any,
        partition_mesh: jax.sharding.Mesh,
        logical_axis_rules: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Keep what a call needs."""
        self._pjitted_fn = pjitted_fn
        self._mesh = partition_mesh
        self._logical_axis_rules = logical_axis_rules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns."""
        with self._around():
            return self._pjitted_fn(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function lowered for arguments like these."""
        with self._around():
            return self._pjitted_fn.lower(*args, **kwargs)

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Put mesh and rules around a call.

        What a subclass makes by JAX's older `pjit` looks for the mesh where `with mesh:` leaves it.
        """
        spmd = required("flax.core.spmd", extra="flax", for_what="`PjitPartitioner.partition`")
        with ExitStack() as around:
            if hasattr(self._mesh, "__enter__"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    around.enter_context(self._mesh)
            around.enter_context(jax.set_mesh(self._mesh))
            around.enter_context(spmd.logical_axis_rules(self._logical_axis_rules))
            yield


def _mapped_leaves(node: Any, rules: Any, path: str = "") -> Any:
    """Return a state dict with every leaf resolved; empty dicts stay."""
    if isinstance(node, dict):
        return {
            key: _mapped_leaves(below, rules, f"{path}/{key}" if path else str(key))
            for key, below in node.items()
        }
    try:
        return logical_to_mesh_axes(node, rules)
    except ValueError as error:
        raise ValueError(f"Failed to map logical axes for {path}") from error
