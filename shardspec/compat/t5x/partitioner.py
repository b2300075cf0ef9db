"""The part of T5X's `PjitPartitioner` that knows the mesh, the rules and the data layout."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardspec.compat.t5x.data_layout import DataLayout, LocalChunker, LocalChunkInfo, MeshAxes
from shardspec.compat.t5x.data_layout import get_data_layout as layout_of_mesh
from shardspec.compat.t5x.meshes import default_mesh
from shardspec.compat.t5x.rules import standard_logical_axis_rules

if TYPE_CHECKING:
    import jax

_LOG = logging.getLogger(__name__)


class PjitPartitioner:
    """A mesh, the rules on it, and the axis that splits the batch.

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
        logical_axis_rules: Sequence[tuple[str, Any]] | None = None,
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
        self._submesh = model_parallel_submesh
        self._backend = backend
        self._ici, self._dcn = ici_mesh_shape, dcn_mesh_shape
        rules = standard_logical_axis_rules() if logical_axis_rules is None else logical_axis_rules
        if ici_mesh_shape is not None and dcn_mesh_shape is not None:
            rules = [
                (name, ("replica", "data")) if name == "batch" else (name, axes)
                for name, axes in rules
            ]
        self._rules = tuple(rules)

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """Return the mesh."""
        return default_mesh(
            self._num_partitions or 0, self._submesh, self._backend, self._ici, self._dcn
        )

    @property
    def logical_axis_rules(self) -> tuple[tuple[str, Any], ...]:
        """Return the rules, first to last."""
        return self._rules

    @property
    def data_partition_spec(self) -> jax.sharding.PartitionSpec:
        """Return how a batch is split: its first dimension, over the data axis."""
        import jax

        axes = next((axes for name, axes in self._rules if name == "batch"), None)
        return jax.sharding.PartitionSpec(axes)  # type: ignore[no-untyped-call]

    @functools.cached_property
    def _local_chunker(self) -> LocalChunker:
        return LocalChunker(self.mesh)

    def get_data_layout(
        self, batch_size: int | None = None, host_index: int | None = None
    ) -> DataLayout:
        """Return the batch shard of this host."""
        axis: MeshAxes = self.data_partition_spec[0]
        return layout_of_mesh(self.mesh, batch_size, host_index, data_axis=axis)

    def get_local_chunk_info(
        self, global_shape: Sequence[int], mesh_axes: Sequence[str | None]
    ) -> LocalChunkInfo:
        """Return the part of an array that this host holds."""
        return self._local_chunker.get_local_chunk_info(global_shape, mesh_axes)
