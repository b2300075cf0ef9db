from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

pytest.importorskip("jax")

from shardspec import pipeline
from shardspec.jax_backend import target_devices
from shardspec.jax_backend.target_devices import device_extents, devices_by_coordinate, match_target
from tests.differential.test_t5x_vectors import StandInTpu, tpu_devices
from tests.topology.machines import hardware


@dataclass(frozen=True)
class SlicedTpu(StandInTpu):
    """A TPU device of one of several slices."""

    slice_index: int = 0


def _two_slices() -> list[SlicedTpu]:
    return [
        SlicedTpu(**{**dataclasses.asdict(device), "client": device.client}, slice_index=number)
        for number in (3, 1)
        for device in tpu_devices("TPU v5 lite", [2, 2, 1, 1], [2, 2, 1, 1])
    ]


def test_slices_are_numbered_in_order_of_their_index() -> None:
    devices = _two_slices()
    found = devices_by_coordinate(devices, hardware("tpu_v5e", (2, 2), slices=2))
    assert found is not None
    assert {place[0]: device.slice_index for place, device in found.items()} == {0: 1, 1: 3}
    assert [len(members) for members in target_devices.slices_of(devices)] == [4, 4]
    assert target_devices.describe_devices(devices) == (
        "8 devices of kind 'TPU v5 lite' in 2 slices in a topology of 2x2x1 chips"
    )


def test_the_count_of_slices_that_are_here_is_taken() -> None:
    """As after a restart on fewer: the spec has a target for each."""
    text = (
        'targets: {pod: {hardware: "{1..4} * tpu v5e 2x2", mesh: {replica: rest @ dcn, fsdp: 4}}}\n'
        "rules: [embed -> fsdp]\n"
    )
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    both = _two_slices()
    assert match_target(spec.targets, both).name == "pod[2]"
    left = [device for device in both if device.slice_index == 3]
    assert match_target(spec.targets, left).name == "pod[1]"


def test_a_slice_need_not_begin_at_the_origin() -> None:
    devices = [
        dataclasses.replace(device, coords=(device.coords[0] + 4, device.coords[1] + 2, 0))
        for device in tpu_devices("TPU v5 lite", [2, 4, 1, 1], [2, 2, 1, 1])
    ]
    assert device_extents(devices) == (2, 4, 1)
    assert devices_by_coordinate(devices, hardware("tpu_v5e", (2, 4))) is not None


def test_holes_and_doubles_are_no_machine() -> None:
    devices = tpu_devices("TPU v5 lite", [2, 4, 1, 1], [2, 2, 1, 1])
    machine = hardware("tpu_v5e", (2, 4))
    assert devices_by_coordinate(devices[1:], machine) is None
    assert devices_by_coordinate([devices[0], *devices[:-1]], machine) is None


def test_devices_without_coordinates_have_no_topology() -> None:
    import jax

    assert device_extents(jax.devices()) is None
    assert device_extents([]) is None


@dataclass(frozen=True)
class _Gpu:
    """A GPU of one node; processes are dealt out to nodes in turn."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"


def test_gpus_are_counted_node_by_node_whatever_process_they_belong_to() -> None:
    devices = [_Gpu(id=n, process_index=n, slice_index=n % 2) for n in range(16)]
    found = devices_by_coordinate(devices, hardware("h100", (8,), slices=2))
    assert found is not None
    assert {place[0] == device.slice_index for place, device in found.items()} == {True}
    assert [found[(0, gpu)].process_index for gpu in range(8)] == list(range(0, 16, 2))
