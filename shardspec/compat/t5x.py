"""T5X's partitioning functions under their own names, answered by our own stages.

Signatures, results and faults are T5X's, so `from shardspec.compat import t5x as partitioning`
replaces its import. Source: google-research/t5x, partitioning.py and utils.py. Train states
are T5X's own: the partitioner takes whatever has their `as_logical_axes`, `state_dict` and
`restore_state`.

Every check that is an `assert` there raises AssertionError here, also under `python -O`. Numbers
and rules of meshes come from `topology`; only real devices and JAX's `Mesh` are added.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.interpreters import pxla
from jax.sharding import PartitionSpec as PartitionSpec

from shardspec.compat.flax import logical_to_mesh_axes, required
from shardspec.diagnostics.words import grouped
from shardspec.jax_backend.batch import DataLayout as DataLayout
from shardspec.jax_backend.batch import LocalChunker as LocalChunker
from shardspec.jax_backend.batch import LocalChunkInfo as LocalChunkInfo
from shardspec.jax_backend.batch import MeshAxes, names_of
from shardspec.jax_backend.batch import get_data_layout as get_data_layout
from shardspec.language.loader import T5X_PRESETS, preset_rules
from shardspec.topology.assignment import TilingFault, t5x_default_submesh, tile_slice
from shardspec.topology.machine import digit_offsets

LogicalAxisRules = list[tuple[str, str | tuple[str, ...] | None]]


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: Iterable[tuple[str, str | tuple[str, ...] | None]] | None = None,
) -> LogicalAxisRules:
    """Return the rules for activations and parameters split along one or two dimensions.

    Args:
      additional_rules: added at the end, so they never beat a standard rule.
    """
    preset = T5X_PRESETS.get((activation_partitioning_dims, parameter_partitioning_dims))
    if preset is None:
        raise ValueError(
            f"`activation_partitioning_dims` = {activation_partitioning_dims} "
            f"`parameter_partitioning_dims` = {parameter_partitioning_dims} is not supported."
        )
    standard = ((rule.logical_axis, *(rule.mesh_axes or (None,))) for rule in preset_rules(preset))
    return [*((name, axis) for name, axis in standard), *(additional_rules or ())]


def update_logical_axis_rules(
    old_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
    new_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """Return the old rules with those of a name replaced, where the name first stood.

    New names go to the end.

    >>> update_logical_axis_rules([("a", None), ("b", "model")], [("a", "model"), ("c", None)])
    (('a', 'model'), ('b', 'model'), ('c', None))
    """
    updates = grouped(new_rules, lambda rule: rule[0])
    replaced = frozenset(updates)
    rules = []
    for rule in old_rules:
        rules.extend(updates.pop(rule[0], []) if rule[0] in replaced else [rule])
    return (*rules, *(rule for left in updates.values() for rule in left))


def override_params_axes_names(
    model_variables: Mapping[str, Any],
    params_axes_names_override: Iterable[tuple[str, Any]] = (),
) -> Any:
    """Return the variables with the axis names of matching parameters replaced.

    The first pattern that matches the whole of `mlp/wo/kernel` wins; a value of None leaves the
    parameter as it is and ends the search.
    """
    required("flax", extra="flax", for_what="`override_params_axes_names`")
    from flax.core import freeze, unfreeze
    from flax.linen.partitioning import AxisMetadata
    from flax.traverse_util import flatten_dict, unflatten_dict

    patterns = [(re.compile(pattern), names) for pattern, names in params_axes_names_override]
    if "params_axes" not in model_variables:
        raise ValueError(
            "Model variables do not contain a 'params_axes' collection to apply an override to."
        )
    variables = unfreeze(model_variables)
    axes = flatten_dict(variables["params_axes"])
    for path, param in flatten_dict(variables["params"]).items():
        name = "/".join(path)
        names = next((names for pattern, names in patterns if pattern.fullmatch(name)), None)
        if names is None:
            continue
        key = (*path[:-1], f"{path[-1]}_axes")
        if key in axes and not isinstance(axes[key], AxisMetadata):
            raise AssertionError
        if len(names) != param.ndim:
            raise ValueError(
                f"Provided axis name override for {name} does not match param rank "
                f"({param.ndim}): {names}"
            )
        axes[key] = AxisMetadata(names=names)
    variables["params_axes"] = unflatten_dict(axes)
    return freeze(variables)


#: (x, y, z, cores), or (processes, devices of a process).
HardwareMesh = tuple[int, ...]


def global_mesh_defined() -> bool:
    """Say whether code runs inside `with mesh:` or `jax.set_mesh`."""
    around: Any = jax.sharding.get_abstract_mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as `with mesh:` itself is
        older = getattr(pxla, "thread_resources", None)
    return not around.empty or (older is not None and not older.env.physical_mesh.empty)


def get_coords(device: Any) -> HardwareMesh:
    """Return (x, y, z, core) of a device, or (process, index in the process) without coords."""
    if hasattr(device, "coords"):
        return (*device.coords, device.core_on_chip)
    return (device.process_index, device.id % jax.local_device_count())


def bounds_from_last_device(last_device: Any) -> HardwareMesh:
    """Return the extents of the hardware whose far corner is `last_device`."""
    if hasattr(last_device, "coords") and len(last_device.coords) == 3:
        x, y, z = last_device.coords
        return x + 1, y + 1, z + 1, last_device.core_on_chip + 1
    return jax.process_count(), jax.local_device_count()


def get_mesh(
    model_parallel_submesh: Sequence[int],
    input_devices: Sequence[Any] = (),
    input_local_devices: Sequence[Any] = (),
    tile_by_host_if_needed: bool = True,
    backend: str | None = None,
) -> jax.sharding.Mesh:
    """Return the (data, model) mesh whose model axis runs over tiles of the submesh.

    Args:
      input_devices: of all processes, in any order; empty takes `jax.devices(backend)`.
      input_local_devices: of process 0; empty takes `jax.local_devices(0, backend)`.
      tile_by_host_if_needed: keep hosts together. As in T5X it is always done, "if needed" or
        not, except where the submesh is a whole row or plane.
    """
    devices = input_devices or jax.devices(backend)
    local_devices = input_local_devices or jax.local_devices(0, backend)
    extents = bounds_from_last_device(sorted(devices, key=get_coords)[-1])
    host = bounds_from_last_device(sorted(local_devices, key=get_coords)[-1])
    _check_factors(extents, model_parallel_submesh, host)
    grid = np.empty(extents, dtype=object)
    for device in devices:
        grid[get_coords(device)] = device
    shape = grid.reshape(-1, np.prod(model_parallel_submesh)).shape
    ordered = _in_order(grid, model_parallel_submesh, host if tile_by_host_if_needed else None)
    return jax.sharding.Mesh(ordered.reshape(shape), ("data", "model"))


def _check_factors(extents: HardwareMesh, tile: Sequence[int], host: HardwareMesh) -> None:
    if any(extent % size for extent, size in zip(extents, tile, strict=False)):
        raise AssertionError(
            f"each dimension of the model parallel submesh {tile} must be a factor of the "
            f"corresponding dimension of the global device mesh {extents}"
        )
    if any(extent % size for extent, size in zip(extents, host, strict=False)):
        raise AssertionError


def _in_order(grid: Any, tile: Sequence[int], host: Sequence[int] | None) -> Any:
    """Return the devices by tile, and by place in the tile."""
    sizes = tuple(tile)[: grid.ndim]
    if grid.ndim == 4:
        x, y, z, core = tile
        sizes = (x, y, z, core)
    tiling = tile_slice(grid.shape, sizes, host)
    if isinstance(tiling, TilingFault):
        is_core = tiling.reason == "core"
        raise AssertionError((sizes[-1], grid.shape[-1]) if is_core else tiling.message)
    data, model = (np.array(digit_offsets(each, grid.ndim)) for each in (tiling.data, tiling.model))
    return grid[tuple(np.moveaxis(data[:, None] + model, -1, 0))]


def get_cpu_mesh() -> jax.sharding.Mesh:
    """Return all devices as (data, model) = (processes, devices of a process)."""
    grid = np.empty((jax.process_count(), jax.local_device_count()), dtype=object)
    for device in jax.devices():
        grid[device.process_index, device.id % jax.local_device_count()] = device
    return jax.sharding.Mesh(grid, ("data", "model"))


def get_gpu_mesh(num_partitions: int) -> jax.sharding.Mesh:
    """Return a (data, model) mesh whose model axis fills NVLink nodes before it crosses them."""
    local, hosts = jax.local_device_count(), jax.process_count()
    inside = min(num_partitions, local)
    copies, spare_devices = divmod(local, inside)
    across, spare_partitions = divmod(num_partitions, inside)
    if spare_devices or spare_partitions:
        raise AssertionError(
            "number of partitions on GPU must be a factor or multiple of the number of "
            "local devices"
        )
    groups = hosts // across
    if groups * across != hosts:
        raise ValueError(
            f"Number of slices {hosts} must equal the product of dcn_mesh_shape {[groups, across]}"
        )
    ordered = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    grid = np.array(ordered, dtype=object).reshape(groups, across, copies, inside)
    rows = grid.transpose(0, 2, 1, 3).reshape(-1, num_partitions)
    return jax.sharding.Mesh(rows, ("data", "model"))


def default_mesh(
    num_partitions: int,
    model_parallel_submesh: Sequence[int] | None = None,
    backend: str | None = None,
    ici_mesh_shape: Sequence[int] | None = None,
    dcn_mesh_shape: Sequence[int] | None = None,
) -> jax.sharding.Mesh:
    """Return T5X's mesh for a number of partitions, from its table of submeshes.

    Both `ici_mesh_shape` and `dcn_mesh_shape`, where given, beat the rest and give the axes
    (replica, data, model); a submesh beats `num_partitions`.
    """
    last_device = jax.devices(backend)[-1]
    bounds = bounds_from_last_device(last_device)
    if ici_mesh_shape is not None and dcn_mesh_shape is not None:
        return _multi_slice_mesh(ici_mesh_shape, dcn_mesh_shape, jax.devices(backend))
    if model_parallel_submesh:
        return get_mesh(model_parallel_submesh, backend=backend)
    if last_device.platform == "cpu":
        return get_cpu_mesh()
    if last_device.platform == "gpu":
        return get_gpu_mesh(num_partitions)
    submesh = t5x_default_submesh(last_device.device_kind, bounds, num_partitions)
    if submesh is None:
        raise ValueError(
            "No default mesh for this configuration: specify "
            "config.model_parallel_submesh explicitly. \n"
            f"Platform: {last_device.platform}\n"
            f"Device kind: {last_device.device_kind}\n"
            f"Num partitions: {num_partitions}\n"
            f"Bounds: {bounds}"
        )
    return get_mesh(submesh, backend=backend)


def _multi_slice_mesh(
    ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int], devices: Sequence[Any]
) -> jax.sharding.Mesh:
    grid = mesh_utils.create_hybrid_device_mesh(ici_mesh_shape, dcn_mesh_shape, devices=devices)
    return jax.sharding.Mesh(grid, ("replica", "data", "model"))


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
        return get_data_layout(
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


_TRAIN_STATES = ("FlaxOptimTrainState", "InferenceState")


def __getattr__(name: str) -> Any:
    """Say where T5X keeps what has no sharding in it."""
    hint = "; import it from `t5x.train_state`" if name in _TRAIN_STATES else ""
    raise AttributeError(f"module 'shardspec.compat.t5x' has no attribute '{name}'{hint}")
