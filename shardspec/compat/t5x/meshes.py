"""`get_mesh` and `default_mesh` of T5X: the same meshes, the same faults.

Every check that is an `assert` there raises AssertionError here, also under `python -O`.
Numbers and rules come from `topology`; only real devices and JAX's `Mesh` are added.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardspec.topology.submesh import axis_order, host_factors, t5x_default_submesh

if TYPE_CHECKING:
    import jax
    import numpy as np

#: (x, y, z, cores), or (processes, devices of a process).
HardwareMesh = tuple[int, ...]

_HOST_FAULT = (
    "to tile the mesh by hosts, each dimension of the model parallel submesh must be either a "
    "factor or a multiple of the corresponding dimension of the per-host submesh"
)


def global_mesh_defined() -> bool:
    """Say whether code runs inside `with mesh:` or `jax.set_mesh`."""
    import jax
    from jax.interpreters import pxla

    around: Any = jax.sharding.get_abstract_mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as `with mesh:` itself is
        older = getattr(pxla, "thread_resources", None)
    return not around.empty or (older is not None and not older.env.physical_mesh.empty)


def get_coords(device: Any) -> HardwareMesh:
    """Return (x, y, z, core) of a device, or (process, index in the process) without coords."""
    import jax

    if hasattr(device, "coords"):
        return (*device.coords, device.core_on_chip)
    return (device.process_index, device.id % jax.local_device_count())


def bounds_from_last_device(last_device: Any) -> HardwareMesh:
    """Return the extents of the hardware whose far corner is `last_device`."""
    import jax

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
    import jax
    import numpy as np

    devices = input_devices or jax.devices(backend)
    local_devices = input_local_devices or jax.local_devices(0, backend)
    extents = bounds_from_last_device(sorted(devices, key=get_coords)[-1])
    host = bounds_from_last_device(sorted(local_devices, key=get_coords)[-1])
    _check_factors(extents, model_parallel_submesh, host)
    grid = np.empty(extents, dtype=object)
    for device in devices:
        grid[get_coords(device)] = device
    ordered = _ordered(grid, model_parallel_submesh, host if tile_by_host_if_needed else None)
    return jax.sharding.Mesh(
        ordered.reshape(-1, np.prod(model_parallel_submesh)), ("data", "model")
    )


def _check_factors(extents: HardwareMesh, tile: Sequence[int], host: HardwareMesh) -> None:
    if any(extent % size for extent, size in zip(extents, tile, strict=False)):
        raise AssertionError(
            f"each dimension of the model parallel submesh {tile} must be a factor of the "
            f"corresponding dimension of the global device mesh {extents}"
        )
    if any(extent % size for extent, size in zip(extents, host, strict=False)):
        raise AssertionError


def _ordered(
    grid: np.ndarray[Any, Any], tile: Sequence[int], host: Sequence[int] | None
) -> np.ndarray[Any, Any]:
    """Return the devices in mesh order: data digits first, then model digits."""
    rank = grid.ndim
    if rank == 4:
        mx, my, mz, core = tile
        order, path = axis_order(grid.shape, (mx, my, mz, core))
        if path:
            if core != grid.shape[3]:
                raise AssertionError((core, grid.shape[3]))
            grid, tile, host = grid.transpose(order), [tile[axis] for axis in order], None
    if host is None:
        plain = [(size // part, part) for size, part in zip(grid.shape, tile, strict=False)]
        split = grid.reshape([factor for pair in plain for factor in pair])
        return split.transpose([block + 2 * axis for block in range(2) for axis in range(rank)])
    factors = list(map(_factors_or_raise, grid.shape, tile, host))
    split = grid.reshape([factor for row in factors for factor in row])
    return split.transpose([block + 4 * axis for block in range(4) for axis in range(rank)])


def _factors_or_raise(extent: int, tile: int, host: int) -> tuple[int, int, int, int]:
    factors = host_factors(extent, tile, host)
    if factors is None:
        raise AssertionError(_HOST_FAULT)
    return factors


def get_cpu_mesh() -> jax.sharding.Mesh:
    """Return all devices as (data, model) = (processes, devices of a process)."""
    import jax
    import numpy as np

    grid = np.empty((jax.process_count(), jax.local_device_count()), dtype=object)
    for device in jax.devices():
        grid[device.process_index, device.id % jax.local_device_count()] = device
    return jax.sharding.Mesh(grid, ("data", "model"))


def get_gpu_mesh(num_partitions: int) -> jax.sharding.Mesh:
    """Return a (data, model) mesh whose model axis fills NVLink nodes before it crosses them."""
    import jax
    import numpy as np

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
    grid = np.empty((groups * copies, num_partitions), dtype=object)
    seen: dict[int, int] = dict.fromkeys(range(hosts), 0)
    for device in sorted(jax.devices(), key=lambda device: device.id):
        process = device.process_index
        index, seen[process] = seen[process], seen[process] + 1
        row = (process // across) * copies + index // inside
        grid[row, (process % across) * inside + index % inside] = device
    return jax.sharding.Mesh(grid, ("data", "model"))


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
    import jax

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
    import jax
    from jax.experimental import mesh_utils

    grid = mesh_utils.create_hybrid_device_mesh(ici_mesh_shape, dcn_mesh_shape, devices=devices)
    return jax.sharding.Mesh(grid, ("replica", "data", "model"))
