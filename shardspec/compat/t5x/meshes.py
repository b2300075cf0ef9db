"""`get_mesh` and `default_mesh` of T5X: the same meshes, the same faults.

Every check that is an `assert` there raises AssertionError here, also under `python -O`.
Numbers and rules come from `topology`; only real devices and JAX's `Mesh` are added.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.interpreters import pxla

from shardspec.topology.machine import digit_offsets
from shardspec.topology.submesh import TilingFault, t5x_default_submesh, tile_slice

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
