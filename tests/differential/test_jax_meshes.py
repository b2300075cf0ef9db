"""Beside JAX's `create_device_mesh`: at least as good by the score, and working where it raises."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("jax")

from shardspec.ir.spec import divisors
from shardspec.topology.assignment import AxisScore, score_axis
from shardspec.topology.placement import Placement, place
from tests.differential.test_t5x_vectors import tpu_devices
from tests.topology.machines import digits_of, hardware, sized

SLICES = (
    ("tpu_v3", (4, 4)),
    ("tpu_v4", (2, 2, 4)),
    ("tpu_v4", (4, 4, 4)),
    ("tpu_v4", (4, 4, 8)),
    ("tpu_v5p", (4, 8, 8)),
    ("tpu_v5e", (4, 4)),
    ("tpu_v5e", (4, 8)),
    ("tpu_v6e", (8, 8)),
    ("tpu_v6e", (16, 16)),
    ("tpu_v7x", (4, 4, 4)),
)


def jax_scores(file: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Return the scores of JAX's mesh, last axis first; None where JAX raises."""
    from jax.experimental import mesh_utils

    machine = hardware(file, shape)
    extents = [*((*shape, 1)[:3]), machine.chip.devices_per_chip]
    devices: list[Any] = list(
        tpu_devices(machine.chip.device_kinds[0], extents, [2, 2, 1, extents[3]])
    )
    try:
        grid = mesh_utils.create_device_mesh(sizes, devices)
    except NotImplementedError:
        return None
    places = {device.id: (0, *device.coords, device.core_on_chip) for device in devices}
    scores = []
    for axis in reversed(range(len(sizes))):
        row: Any = [0] * len(sizes)
        row[axis] = slice(None)
        digits = digits_of(places[device.id] for device in grid[tuple(row)])
        if digits is None:
            return None
        scores.append(score_axis(digits, _machine(file, shape)))
    return tuple(scores)


def _machine(file: str, shape: tuple[int, ...]) -> Any:
    from shardspec.topology.machine import machine_of

    return machine_of(hardware(file, shape))


def our_scores(file: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[AxisScore, ...]:
    """Return the scores of our mesh, last axis first."""
    machine = hardware(file, shape)
    names = ("a", "b", "c", "d")
    placement = place(sized(machine, **dict(zip(names, sizes, strict=False))))
    assert isinstance(placement, Placement)
    return tuple(
        score_axis(placed.digits, placement.machine) for placed in reversed(placement.axes)
    )


def mesh_shapes(devices: int) -> list[tuple[int, ...]]:
    """Return every mesh of two axes, and those of three with powers of four in the middle."""
    pairs: list[tuple[int, ...]] = [(devices // size, size) for size in divisors(devices)]
    triples: list[tuple[int, ...]] = [
        (devices // (size * middle), middle, size)
        for middle in (2, 4, 16)
        if devices % middle == 0
        for size in divisors(devices // middle)
    ]
    return pairs + triples


@pytest.mark.parametrize(("file", "shape"), SLICES)
def test_at_least_as_good_as_jax(file: str, shape: tuple[int, ...]) -> None:
    machine = hardware(file, shape)
    compared = 0
    for sizes in mesh_shapes(machine.device_count):
        ours = our_scores(file, shape, sizes)
        theirs = jax_scores(file, shape, sizes)
        if theirs is not None:
            compared += 1
            assert ours <= theirs, (sizes, ours, theirs)
    assert compared


@pytest.mark.parametrize(
    ("file", "shape", "sizes"),
    [
        ("tpu_v6e", (16, 16), (64, 4)),
        ("tpu_v6e", (16, 16), (32, 8)),
        ("tpu_v6e", (8, 8), (16, 4)),
        ("tpu_v6e", (8, 8), (32, 2)),
    ],
)
def test_where_jax_raises_ours_works(
    file: str, shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert jax_scores(file, shape, sizes) is None
    scores = our_scores(file, shape, sizes)
    assert scores[0].links > 0
    assert math.prod(sizes) == hardware(file, shape).device_count
