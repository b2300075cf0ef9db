"""The answers of T5X itself, device for device: meshes, layouts, rules, overrides."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")

from shardspec.compat import t5x  # noqa: E402

_VECTORS = json.loads((Path(__file__).parents[1] / "data" / "t5x_meshes.json").read_text())[
    "vectors"
]


@dataclass(frozen=True)
class Client:
    """What JAX's `Mesh` asks a device's client for."""

    process: int = 0

    def process_index(self) -> int:
        """Return the process this client runs in."""
        return self.process


@dataclass(frozen=True)
class StandInDevice:
    """A device with what T5X and JAX's `Mesh` look at; TPUs have coordinates."""

    id: int
    process_index: int
    platform: str
    device_kind: str
    client: Client = Client()


@dataclass(frozen=True)
class StandInTpu(StandInDevice):
    """A TPU core with its place in the torus."""

    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def tpu_devices(kind: str, topology: list[int], host: list[int]) -> list[StandInTpu]:
    """Return the devices of a slice; processes are numbered along x, then y, then z."""
    devices = []
    grid = [-(-size // held) for size, held in zip(topology, host, strict=True)]
    for number, (z, y, x, core) in enumerate(
        itertools.product(*(range(topology[axis]) for axis in (2, 1, 0, 3)))
    ):
        place = [value // held for value, held in zip((x, y, z), host, strict=False)]
        process = place[0] + grid[0] * (place[1] + grid[1] * place[2])
        devices.append(
            StandInTpu(number, process, "tpu", kind, coords=(x, y, z), core_on_chip=core)
        )
    return devices


@contextmanager
def machine(devices: list[Any], process: int = 0) -> Iterator[None]:
    """Make JAX show `devices`, seen from one process."""

    def local_devices(process_index: int | None = None, backend: str | None = None) -> list[Any]:
        wanted = process if process_index is None else process_index
        return [device for device in devices if device.process_index == wanted]

    count = len({device.process_index for device in devices})
    with (
        mock.patch.object(jax, "devices", return_value=devices),
        mock.patch.object(jax, "local_devices", local_devices),
        mock.patch.object(jax, "process_count", return_value=count),
        mock.patch.object(jax, "process_index", return_value=process),
        mock.patch.object(jax, "local_device_count", return_value=len(devices) // count),
    ):
        yield


def _place(device: Any) -> list[int]:
    if hasattr(device, "coords"):
        return [*device.coords, device.core_on_chip]
    return [device.process_index, device.id]


def _check_mesh(mesh: Any, expected: dict[str, Any]) -> None:
    assert list(mesh.axis_names) == expected["axis_names"]
    assert list(mesh.devices.shape) == expected["shape"]
    places = [_place(device) for device in mesh.devices.flat]
    digest = hashlib.sha256(json.dumps(places, separators=(",", ":")).encode()).hexdigest()
    if digest != expected["coords_sha256"]:
        nested = json.dumps([places], separators=(",", ":"))
        pytest.fail(f"another device order: {nested[:300]}")


def _slice(given: dict[str, Any]) -> list[StandInTpu]:
    devices = tpu_devices(given["device_kind"], given["topology"], given["host_layout"])
    order = given.get("device_order")
    if order == "reversed":
        return devices[::-1]
    if order is not None:
        import random

        random.Random(0).shuffle(devices)
    return devices


def _run_get_mesh(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    devices = _slice(given)
    local = [device for device in devices if device.process_index == 0]
    submesh = tuple(given["model_parallel_submesh"])
    mesh = t5x.get_mesh(submesh, devices, local, given["tile_by_host_if_needed"])
    assert expected is not None
    _check_mesh(mesh, expected)


def _run_default_mesh(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    with machine(_slice(given)):
        mesh = t5x.default_mesh(given["num_partitions"])
    assert expected is not None
    _check_mesh(mesh, expected)


def _run_gpu_mesh(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    local = given["local_device_count"]
    devices = [
        StandInDevice(number, number // local, "gpu", "NVIDIA H100 80GB HBM3")
        for number in range(local * given["process_count"])
    ]
    with machine(devices):
        mesh = t5x.default_mesh(given["num_partitions"])
    assert expected is not None
    _check_mesh(mesh, expected)


def _run_data_layout(given: dict[str, Any], expected: dict[str, Any] | None) -> None:
    rules = given.get("logical_axis_rules")
    if rules is not None:
        rules = [(name, tuple(axes) if isinstance(axes, list) else axes) for name, axes in rules]
    submesh = given.get("model_parallel_submesh")
    with machine(_slice(given), given["process_index"]):
        partitioner = t5x.PjitPartitioner(
            num_partitions=given.get("num_partitions"),
            model_parallel_submesh=tuple(submesh) if submesh else None,
            logical_axis_rules=rules,
        )
        if "host_index" in given:
            partitioner.get_data_layout(given["batch_size"], given["host_index"])
        layout = t5x.get_data_layout(
            partitioner.mesh,
            given["batch_size"],
            data_axis=partitioner.data_partition_spec[0],
            process_index=given["process_index"],
        )
    assert vars(layout) == expected


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    from flax.traverse_util import unflatten_dict

    return unflatten_dict({tuple(path.split("/")): value for path, value in flat.items()})


def _run_override_axes(given: dict[str, Any], expected: dict[str, Any] | None, note: str) -> None:
    import numpy as np
    from flax.linen.partitioning import AxisMetadata
    from flax.traverse_util import flatten_dict

    metadata = (lambda names: names) if "not AxisMetadata" in note else AxisMetadata
    params = {path: np.zeros(shape) for path, shape in given["params"].items()}
    variables: dict[str, Any] = {"params": _nested(params), "batch_stats": {"mean": np.zeros(2)}}
    if given["params_axes"] is not None:
        variables["params_axes"] = _nested(
            {path: metadata(tuple(names)) for path, names in given["params_axes"].items()}
        )
    overrides = [
        (pattern, tuple(names) if names is not None else None)
        for pattern, names in given["overrides"]
    ]
    result = t5x.override_params_axes_names(variables, overrides)
    assert expected is not None
    axes = flatten_dict(dict(result["params_axes"].unfreeze()), sep="/")
    assert {path: list(entry.names) for path, entry in axes.items()} == expected["params_axes"]
    assert sorted(set(result) - {"params_axes"}) == expected["other_collections_kept"]


def _run_standard_rules(given: dict[str, Any], expected: Any) -> None:
    rules = given["additional_rules"]
    if rules is not None:
        rules = [tuple(rule) for rule in rules]
    result = t5x.standard_logical_axis_rules(
        given["activation_partitioning_dims"], given["parameter_partitioning_dims"], rules
    )
    assert [list(rule) for rule in result] == expected


def _run(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], vector.get("expected")
    if vector["kind"] == "override_axes":
        _run_override_axes(given, expected, vector.get("note", ""))
    else:
        {
            "get_mesh": _run_get_mesh,
            "default_mesh": _run_default_mesh,
            "gpu_mesh": _run_gpu_mesh,
            "data_layout": _run_data_layout,
            "standard_rules": _run_standard_rules,
        }[vector["kind"]](given, expected)


@pytest.mark.parametrize("vector", _VECTORS, ids=lambda vector: vector["id"])
def test_t5x_vector(vector: dict[str, Any]) -> None:
    """T5X's answer is ours, faults and their text included."""
    if "error" not in vector:
        _run(vector)
        return
    kind, _, text = vector["error"].partition(": ")
    kinds = {"AssertionError": AssertionError, "ValueError": ValueError, "error": re.error}
    expected = {**kinds, "NotImplementedError": NotImplementedError}[kind]
    with pytest.raises(expected) as caught:
        _run(vector)
    assert str(caught.value) == text
