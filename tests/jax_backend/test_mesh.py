from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")

import shardspec  # noqa: E402
from shardspec.diagnostics import ShardspecError  # noqa: E402
from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Stretch, Target  # noqa: E402
from shardspec.jax_backend.target_devices import device_mesh, hardware_of, match_target  # noqa: E402
from shardspec.topology.placement import Order  # noqa: E402
from tests.differential.test_t5x_vectors import StandInDevice, tpu_devices  # noqa: E402
from tests.topology.machines import hardware, sized, target  # noqa: E402

_CPU = hardware("cpu", (8,))


def test_cpu_devices_come_in_order_of_id() -> None:
    mesh = device_mesh(sized(_CPU, data=4, model=2))
    assert [device.id for device in mesh.devices.flat] == list(range(8))
    assert mesh.axis_names == ("data", "model")
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@given(st.randoms(use_true_random=False), st.sampled_from(("t5x", "ring")))
@settings(deadline=None, max_examples=25)
def test_the_order_of_the_list_does_not_matter(shuffler: random.Random, order: Order) -> None:
    devices = list(tpu_devices("TPU v4", [4, 4, 8, 1], [2, 2, 1, 1]))
    wanted = target(
        hardware("tpu_v4", (4, 4, 8)), MeshAxis("data", 16), MeshAxis("model", 8, auto=True)
    )
    straight = device_mesh(wanted, devices, order=order)
    shuffler.shuffle(devices)
    assert (device_mesh(wanted, devices, order=order).devices == straight.devices).all()


def test_a_slice_that_lies_the_other_way_is_turned() -> None:
    devices = tpu_devices("TPU v5 lite", [8, 4, 1, 1], [2, 2, 1, 1])
    mesh = device_mesh(sized(hardware("tpu_v5e", (4, 8)), data=8, model=4), devices)
    assert len({device.id for device in mesh.devices.flat}) == 32


@pytest.mark.parametrize("order", ["t5x", "ring"])
@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        (
            tpu_devices("TPU v4", [4, 4, 4, 1], [2, 2, 1, 1]),
            target(
                hardware("tpu_v4", (4, 4, 4)),
                MeshAxis("data", 8),
                MeshAxis("model", 8, submesh=(2, 2, 2, 1)),
            ),
        ),
        (
            tpu_devices("TPU v3", [4, 4, 1, 2], [2, 2, 1, 2]),
            sized(hardware("tpu_v3", (4, 4)), data=4, model=8),
        ),
        (
            [StandInDevice(n, n // 4, "gpu", "NVIDIA H100 80GB HBM3") for n in range(32)],
            sized(hardware("h100", (8,), 4), data=8, model=4),
        ),
        (
            [StandInDevice(n, n // 2, "cpu", "cpu") for n in range(8)],
            sized(_CPU, data=4, model=2),
        ),
    ],
    ids=["v4", "v3", "gpu", "cpu"],
)
def test_every_process_makes_the_same_mesh(
    devices: list[StandInDevice], wanted: Target, order: Order
) -> None:
    """A process lists its own devices first, then the others, as it finds them."""
    processes = sorted({device.process_index for device in devices})
    assert len(processes) > 1
    meshes = []
    for own in processes:
        seen = sorted(devices, key=lambda device: (device.process_index != own, -device.id))
        meshes.append(device_mesh(wanted, seen, order=order).devices)
    assert all((mesh == meshes[0]).all() for mesh in meshes)
    assert {device.id for device in meshes[0].flat} == {device.id for device in devices}


def test_gpus_fill_a_node_first() -> None:
    devices = [StandInDevice(n, n // 8, "gpu", "NVIDIA H100 80GB HBM3") for n in range(16)]
    mesh = device_mesh(sized(hardware("h100", (8,), 2), data=2, model=8), devices)
    assert [{device.process_index for device in row} for row in mesh.devices] == [{0}, {1}]


def test_too_few_devices_are_said_with_the_arithmetic() -> None:
    with pytest.raises(ShardspecError, match=r"needs 4 \* 4 = 16 devices, but there are 8"):
        device_mesh(Target("t", Mesh((MeshAxis("a", 4), MeshAxis("b", 4)))))
    with pytest.raises(ShardspecError, match="`t` needs 16 devices, but there are 8"):
        device_mesh(Target("t", Mesh((MeshAxis("a", 16),))))


def test_another_machine_of_the_same_size_is_refused() -> None:
    devices = tpu_devices("TPU v4", [2, 2, 2, 1], [2, 2, 1, 1])
    with pytest.raises(ShardspecError, match="in a topology of 2x2x2 chips"):
        device_mesh(sized(hardware("tpu_v5e", (2, 4)), data=8), devices)


def test_a_mesh_alone_is_laid_on_the_machine_that_is_there() -> None:
    devices = tpu_devices("TPU v4", [4, 4, 4, 1], [2, 2, 1, 1])
    bare = Target("t", Mesh((MeshAxis("data", 16), MeshAxis("model", 4))))
    same = sized(hardware("tpu_v4", (4, 4, 4)), data=16, model=4)
    assert (device_mesh(bare, devices).devices == device_mesh(same, devices).devices).all()
    machine = hardware_of(devices)
    assert machine is not None
    assert machine.topology == (4, 4, 4)
    assert hardware_of(jax.devices()) is None


def test_a_target_is_found_by_kind_and_topology() -> None:
    devices = tpu_devices("TPU v4", [2, 2, 4, 1], [2, 2, 1, 1])
    right = sized(hardware("tpu_v4", (2, 2, 4)), data=16)
    targets = [sized(_CPU, data=8), sized(hardware("tpu_v5e", (4, 4)), data=16), right]
    assert match_target(targets, devices) is right
    assert match_target(targets, jax.devices()) is targets[0]


_CPUS = [StandInDevice(n, 0, "cpu", "cpu") for n in range(8)]
_H100 = [StandInDevice(n, 0, "gpu", "NVIDIA H100 80GB HBM3") for n in range(8)]
_A100 = [StandInDevice(n, 0, "gpu", "NVIDIA A100-SXM4-80GB") for n in range(8)]
_V4 = tpu_devices("TPU v4", [2, 2, 4, 1], [2, 2, 1, 1])


@pytest.mark.parametrize(
    ("wanted", "fits", "others"),
    [
        (_CPU, _CPUS, [_H100, _CPUS[:7], [*_CPUS[:7], _H100[7]], []]),
        (hardware("h100", (8,)), _H100, [_A100, _H100[:7], [*_H100[:7], _A100[7]], []]),
        (
            hardware("tpu_v4", (2, 2, 4)),
            _V4,
            [
                tpu_devices("TPU v4", [4, 4, 1, 1], [2, 2, 1, 1]),  # another shape
                tpu_devices("TPU v5", [2, 2, 4, 1], [2, 2, 1, 1]),  # another kind
                [*_V4[:15], _V4[0]],  # a hole
            ],
        ),
    ],
    ids=["cpu", "gpu", "tpu"],
)
def test_a_target_fits_one_kind_one_number_and_one_shape(
    wanted: Hardware, fits: list[Any], others: list[list[Any]]
) -> None:
    stated = sized(wanted, data=wanted.device_count)
    assert match_target([stated], fits) is stated
    for devices in others:
        with pytest.raises(ShardspecError, match="no target fits the devices here"):
            match_target([stated], devices)


def test_a_bare_mesh_fits_by_number_and_comes_last() -> None:
    bare = Target("bare", Mesh((MeshAxis("a", 8),)))
    stated = sized(_CPU, data=8)
    assert match_target([bare, stated], jax.devices()) is stated
    assert match_target([bare], jax.devices()) is bare


def test_no_target_names_both_sides() -> None:
    with pytest.raises(ShardspecError) as caught:
        match_target([sized(hardware("tpu_v4", (2, 2, 4)), data=16)], jax.devices())
    text = str(caught.value)
    assert "8 devices of kind 'cpu'" in text
    assert "target `t` wants TPU v4 2x2x4, 16 devices" in text
    assert "XLA_FLAGS" not in text
    with pytest.raises(ShardspecError, match="no target fits the devices here: no devices"):
        match_target([sized(_CPU, data=8)], [])


def test_one_cpu_is_told_how_to_be_more() -> None:
    bare = Target("bare", Mesh((MeshAxis("a", 2), MeshAxis("b", 4))))
    for wanted in (bare, sized(_CPU, data=8)):
        with pytest.raises(ShardspecError) as caught:
            match_target([wanted], jax.devices()[:1])
        assert "no target fits the devices here: 1 device of kind 'cpu'" in str(caught.value)
        assert "--xla_force_host_platform_device_count=8`" in str(caught.value)
    with pytest.raises(ShardspecError, match=r"but there is 1\n.*device_count=8`"):
        device_mesh(bare, jax.devices()[:1])


_RING = """
shardspec: 1
hardware: tpu v4 4x4x4
mesh: {data: rest, model: submesh 2x2x2x1}
policy: {order: ORDER}
"""


@pytest.mark.parametrize("order", ["t5x", "ring"])
def test_the_order_of_the_policy_is_the_order_of_the_mesh(order: Order) -> None:
    spec = shardspec.loads(_RING.replace("ORDER", order))
    devices = tpu_devices("TPU v4", [4, 4, 4, 1], [2, 2, 1, 1])
    resolver = shardspec.Resolver(spec, devices=devices)
    asked = device_mesh(resolver.target, devices, order=order)
    assert (resolver.mesh.devices == asked.devices).all()
    model = [device.coords for device in resolver.mesh.devices[0]]
    following = (*model[1:], model[0])
    steps = {
        sum(abs(a - b) for a, b in zip(here, there, strict=True))
        for here, there in zip(model, following, strict=True)
    }
    assert steps == ({1} if order == "ring" else {1, 2, 3})


def test_axes_keep_their_types() -> None:
    axes = (
        MeshAxis("data", 2),
        MeshAxis("model", 2, axis_type="explicit"),
        MeshAxis("stage", 2, axis_type="manual"),
    )
    mesh = device_mesh(target(_CPU, *axes))
    types = jax.sharding.AxisType
    assert mesh.axis_types == (types.Auto, types.Explicit, types.Manual)


def made(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "s.yaml"
    path.write_text(f"hardware: 8 cpu\n{text}\nrules: [mlp -> model]\n", encoding="utf-8")
    return shardspec.Resolver(path).mesh


@given(st.permutations(range(8)))
@settings(max_examples=10, deadline=None)
def test_listed_devices_are_those_of_jax(numbers: list[int]) -> None:
    wanted = dataclasses.replace(sized(_CPU, data=2, model=4), devices=tuple(numbers))
    chosen = [jax.devices()[number] for number in numbers]
    types = (jax.sharding.AxisType.Auto,) * 2
    theirs = jax.make_mesh((2, 4), ("data", "model"), types, devices=chosen)
    assert device_mesh(wanted) == theirs


def test_directions_are_those_of_mesh_utils(tmp_path: Path) -> None:
    from jax.experimental import mesh_utils

    theirs = mesh_utils.create_device_mesh((2, 4), jax.devices())
    assert (
        made(tmp_path, "mesh: {data: over device2/4, model: over device4}").devices == theirs
    ).all()
    turned = made(tmp_path, "mesh: {data: over device4, model: over device2/4}")
    assert (turned.devices == theirs.T).all()


def test_a_list_without_hardware_is_of_ids() -> None:
    mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
    listed = device_mesh(Target("t", mesh, devices=tuple(reversed(range(8)))))
    assert [device.id for device in listed.devices.flat] == [*reversed(range(8))]


def test_directions_of_a_torus_are_a_transposition() -> None:
    """The oracle: devices by coordinates, cut, turned and joined by numpy."""
    devices = tpu_devices("TPU v4", [4, 4, 8, 1], [2, 2, 1, 1])
    cube = np.empty((4, 4, 8), dtype=object)
    for device in devices:
        cube[tuple(device.coords)] = device
    cut = cube.reshape(2, 2, 4, 8)  # x2/2, x2, y, z
    wanted = target(
        hardware("tpu_v4", (4, 4, 8)),
        MeshAxis("data", 16, over=(Stretch("z"), Stretch("x", 2, 2))),
        MeshAxis("model", 8, over=(Stretch("x", 2), Stretch("y"))),
    )
    turned = cut.transpose(3, 0, 1, 2).reshape(16, 8)
    assert (device_mesh(wanted, devices[::-1]).devices == turned).all()
