"""Our slices beside libtpu's own: the real compiler's devices, on a machine without TPUs.

Needs the extra `tpu-aot` (the package libtpu, Linux only). libtpu reads its environment when it
is loaded; without these settings it looks for a TPU machine around it, and for its lock file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

if sys.platform != "linux" or importlib.util.find_spec("libtpu") is None:
    pytest.skip("needs the extra tpu-aot: libtpu, on Linux", allow_module_level=True)

os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5e-8",
    TPU_WORKER_ID="0",
)

from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import Hardware, MeshAxis, shape_text
from shardspec.jax_backend.target_devices import device_mesh, devices_by_coordinate, match_target
from shardspec.language.catalogue import catalogue_entry
from shardspec.topology.by_hand import device_coordinates
from shardspec.topology.machine import host_shape, machine_of
from tests.topology.machines import hardware, sized, target

#: Catalogue file -> libtpu's name of the generation, and what makes it one device per chip.
_GENERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpu_v2": ("v2", {}),
    "tpu_v3": ("v3", {}),
    "tpu_v4": ("v4", {"chip_config_name": "megacore"}),
    "tpu_v5e": ("v5e", {}),
    "tpu_v5p": ("v5p", {}),
    "tpu_v6e": ("v6e", {}),
    "tpu_v7x": ("tpu7x", {}),
}


def libtpu_devices(machine: Hardware, file: str) -> list[Any]:
    """Return libtpu's devices of a machine."""
    from jax.experimental import topologies

    name, options = _GENERATIONS[file]
    bounds = (*host_shape(machine), 1, 1)[:3]
    if machine.slice_count > 1:
        options = {**options, "num_slices": machine.slice_count}
    described = topologies.get_topology_desc(
        f"{name}:{shape_text(machine.topology)}",
        platform="tpu",
        chips_per_host_bounds=bounds,
        **options,
    )
    return list(described.devices)


def _machines(most_chips: int) -> list[tuple[str, Hardware]]:
    found = []
    for file in _GENERATIONS:
        entry = catalogue_entry(file)
        for shape in entry.shapes.every():
            hosts = shape if shape in entry.shapes.one_host else ()
            machine = Hardware(entry.chip, 1, shape, host_shape=hosts)
            if machine.chip_count <= most_chips:
                found.append((file, machine))
    return found


_MACHINES = _machines(512)


@pytest.mark.parametrize(
    ("file", "machine"), _MACHINES, ids=[f"{f}-{shape_text(m.topology)}" for f, m in _MACHINES]
)
def test_a_slice_is_what_libtpu_says(file: str, machine: Hardware) -> None:
    devices = libtpu_devices(machine, file)
    assert len(devices) == machine.device_count
    assert {device.device_kind for device in devices} <= set(machine.chip.device_kinds)
    found = devices_by_coordinate(devices, machine)
    assert found is not None
    axes = machine_of(machine)
    hosts: dict[tuple[int, ...], set[int]] = {}
    for place, device in found.items():
        assert tuple(device.coords) == place[1:4]
        assert device.core_on_chip == place[4]
        owner = tuple(value // axis.host for value, axis in zip(place, axes, strict=True))
        hosts.setdefault(owner, set()).add(device.process_index)
    processes = [process for owned in hosts.values() for process in owned]
    assert len(processes) == len(set(processes)) == len(hosts)
    numbered = [found[place].id for place in device_coordinates(machine)]
    assert numbered == [*range(machine.device_count)]


@pytest.mark.parametrize(
    ("file", "machine"), _MACHINES, ids=[f"{f}-{shape_text(m.topology)}" for f, m in _MACHINES]
)
def test_our_mesh_is_accepted(file: str, machine: Hardware) -> None:
    devices = libtpu_devices(machine, file)
    model = min(machine.device_count, 8)
    wanted = sized(machine, data=machine.device_count // model, model=model)
    mesh = device_mesh(wanted, devices[::-1])
    assert dict(mesh.shape) == {"data": machine.device_count // model, "model": model}
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}


def _compiled(mesh: Any) -> str:
    """Compile a matmul with its weights gathered over the last mesh axis."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    names = mesh.axis_names
    split = NamedSharding(mesh, PartitionSpec(names[:-1], None))
    weights = NamedSharding(mesh, PartitionSpec(None, names[-1]))
    x = jax.ShapeDtypeStruct((4096, 512), "bfloat16", sharding=split)
    w = jax.ShapeDtypeStruct((512, 1024), "bfloat16", sharding=weights)
    step = jax.jit(lambda x, w: x @ w, out_shardings=split)
    compiled = step.lower(x, w).compile()
    return str(compiled.memory_analysis())


@pytest.mark.parametrize(
    ("file", "shape", "slices", "axes"),
    [
        ("tpu_v2", (4, 4), 1, (MeshAxis("data", 8), MeshAxis("model", 4))),
        ("tpu_v3", (4, 4), 1, (MeshAxis("data", 4), MeshAxis("model", 8, auto=True))),
        ("tpu_v4", (4, 8, 8), 1, (MeshAxis("data", 16), MeshAxis("m", 16, submesh=(4, 2, 2, 1)))),
        ("tpu_v5e", (8, 8), 1, (MeshAxis("data", 16), MeshAxis("model", 4))),
        ("tpu_v5p", (4, 4, 4), 1, (MeshAxis("d", 4), MeshAxis("f", 4), MeshAxis("model", 4))),
        ("tpu_v6e", (16, 16), 1, (MeshAxis("data", 64), MeshAxis("model", 4))),
        ("tpu_v7x", (2, 2, 2), 1, (MeshAxis("data", 4), MeshAxis("model", 4))),
        ("tpu_v5e", (4, 4), 2, (MeshAxis("r", 2, "dcn"), MeshAxis("d", 4), MeshAxis("model", 4))),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
@pytest.mark.parametrize("order", ["t5x", "ring"])
def test_a_program_on_our_mesh_compiles(
    file: str, shape: tuple[int, ...], slices: int, axes: tuple[MeshAxis, ...], order: str
) -> None:
    machine = hardware(file, shape, slices)
    wanted = target(machine, *axes)
    devices = libtpu_devices(machine, file)
    mesh = device_mesh(wanted, devices, order="ring" if order == "ring" else "t5x")
    assert "generated_code_size" in _compiled(mesh)


def test_slices_are_told_apart() -> None:
    machine = hardware("tpu_v5p", (4, 4, 4), slices=2)
    devices = libtpu_devices(machine, "tpu_v5p")
    wanted = target(machine, MeshAxis("r", 2, "dcn"), MeshAxis("model", 64))
    mesh = device_mesh(wanted, devices)
    assert [{d.slice_index for d in row} for row in mesh.devices] == [{0}, {1}]


def test_auto_finds_the_target_and_says_both_sides_where_there_is_none() -> None:
    here = sized(hardware("tpu_v5e", (4, 4)), data=4, model=4)
    other = sized(hardware("tpu_v4", (2, 2, 4)), data=4, model=4)
    devices = libtpu_devices(hardware("tpu_v5e", (4, 4)), "tpu_v5e")
    assert match_target([other, here], devices) is here
    with pytest.raises(ShardspecError) as caught:
        match_target([other], devices)
    assert "'TPU v5 lite'" in str(caught.value)
    assert "TPU v4 2x2x4" in str(caught.value)


def test_v4_without_megacore_is_explained() -> None:
    from jax.experimental import topologies

    devices = topologies.get_topology_desc("v4:2x2x1", platform="tpu").devices
    assert len(devices) == 8
    cores = sized(hardware("tpu_v4_nomegacore", (2, 2, 1)), data=4, model=2)
    mesh = device_mesh(cores, devices)
    assert all(len({tuple(device.coords) for device in row}) == 1 for row in mesh.devices)
    with pytest.raises(ShardspecError, match="megacore"):
        device_mesh(sized(hardware("tpu_v4", (2, 2, 1)), data=4), devices)


def test_t5xs_mesh_over_two_slices() -> None:
    from shardspec.compat import t5x
    from tests.differential.test_t5x_vectors import machine

    devices = libtpu_devices(hardware("tpu_v5e", (4, 4), slices=2), "tpu_v5e")
    with machine(devices):
        mesh = t5x.default_mesh(1, ici_mesh_shape=(1, 4, 4), dcn_mesh_shape=(2, 1, 1))
    assert dict(mesh.shape) == {"replica": 2, "data": 4, "model": 4}
    assert [{device.slice_index for device in part.flat} for part in mesh.devices] == [{0}, {1}]
