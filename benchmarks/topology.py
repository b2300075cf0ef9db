"""Placing meshes: how long it takes, and how the result compares with JAX's own.

    python benchmarks/topology.py            # both parts
    python benchmarks/topology.py --timing   # only the times

The comparison takes every slice up to a size and a range of mesh shapes, and prints one line per
mesh: whether JAX's `create_device_mesh` works, and which of the two lies better by the score of
`shardspec.topology.assignment` (fewer open rings, more links at work, shorter, fewer hosts; the
last mesh axis counts first). Devices are stand-ins with coordinates; no TPU is needed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Target, shape_text
from shardspec.language.catalogue import catalogue_entry
from shardspec.topology.assignment import AxisScore, score_axis
from shardspec.topology.machine import machine_of
from shardspec.topology.placement import Placement, place
from tests.topology.machines import digits_of

_FILES = ("tpu_v2", "tpu_v3", "tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x")
_MOST_CHIPS = 256
_LARGE = (
    ("tpu_v5p", (16, 20, 28), ((560, 16), (35, 16, 16), (10, 4, 7, 32), (2, 5, 7, 2, 8, 8))),
    ("tpu_v7x", (16, 24, 24), ((1152, 16), (64, 18, 16), (8, 18, 8, 16), (2, 3, 3, 2, 8, 64))),
)


@dataclass(frozen=True)
class StandIn:
    """What JAX's mesh_utils looks at in a TPU device."""

    id: int
    process_index: int
    platform: str
    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int


def devices_of(hardware: Hardware) -> list[StandIn]:
    """Return stand-ins for the devices of one slice."""
    _, x, y, z, core = machine_of(hardware)
    ranges = (range(axis.extent) for axis in (z, y, x, core))
    devices = []
    for number, (at_z, at_y, at_x, at_core) in enumerate(itertools.product(*ranges)):
        process = at_x // x.host + x.extent * (at_y // y.host + y.extent * at_z)
        kind = hardware.chip.device_kinds[0]
        devices.append(StandIn(number, process, "tpu", kind, (at_x, at_y, at_z), at_core))
    return devices


def target_of(hardware: Hardware, sizes: tuple[int, ...]) -> Target:
    """Return a target with mesh axes of these sizes."""
    axes = tuple(MeshAxis(f"axis{index}", size) for index, size in enumerate(sizes))
    return Target("benchmark", Mesh(axes), hardware)


def time_large_slices() -> None:
    """Print how long the largest slices take: our stage alone, and with JAX devices."""
    import jax  # loaded here, so that no timing holds the import

    from shardspec.jax_backend.target_devices import device_mesh

    assert jax.__version__
    print("chips   devices  mesh                     place    with devices")
    for file, shape, meshes in _LARGE:
        hardware = Hardware(catalogue_entry(file).chip, 1, shape)
        devices: Any = devices_of(hardware)
        for sizes in meshes:
            target = target_of(hardware, sizes)
            start = time.perf_counter()
            placement = place(target)
            assert isinstance(placement, Placement)
            placement.coordinates()
            middle = time.perf_counter()
            device_mesh(target, devices)
            end = time.perf_counter()
            print(
                f"{hardware.chip_count:<7} {hardware.device_count:<8} "
                f"{'x'.join(map(str, sizes)):<24} "
                f"{middle - start:.3f} s  {end - middle:.3f} s"
            )


def mesh_shapes(devices: int) -> Iterator[tuple[int, ...]]:
    """Yield meshes of two axes, and of three with a middle axis of 4."""
    for size in range(1, devices + 1):
        if devices % size == 0:
            yield (devices // size, size)
            if (devices // size) % 4 == 0:
                yield (devices // size // 4, 4, size)


def our_scores(hardware: Hardware, sizes: tuple[int, ...]) -> tuple[AxisScore, ...] | None:
    """Return our scores, last axis first; None where we fail."""
    placement = place(target_of(hardware, sizes))
    if not isinstance(placement, Placement):
        return None
    return tuple(
        score_axis(placed.digits, placement.machine) for placed in reversed(placement.axes)
    )


def jax_scores(hardware: Hardware, sizes: tuple[int, ...]) -> tuple[AxisScore, ...] | str:
    """Return JAX's scores, last axis first; how it failed where it does."""
    from jax.experimental import mesh_utils

    devices: Any = devices_of(hardware)
    try:
        grid = mesh_utils.create_device_mesh(sizes, devices)
    except NotImplementedError:
        return "raises"
    machine = machine_of(hardware)
    scores = []
    for axis in reversed(range(len(sizes))):
        row: list[Any] = [0] * len(sizes)
        row[axis] = slice(None)
        places = [(0, *device.coords, device.core_on_chip) for device in grid[tuple(row)]]
        digits = digits_of(places)
        if digits is None:
            return "no box"
        scores.append(score_axis(digits, machine))
    return tuple(scores)


def compare_with_jax() -> None:
    """Print a line per slice and mesh, then the sums."""
    verdicts: Counter[str] = Counter()
    print(
        "slice             mesh            JAX      ours     last axis: links at work, JAX / ours"
    )
    for file in _FILES:
        entry = catalogue_entry(file)
        for shape in entry.shapes.every():
            hardware = Hardware(entry.chip, 1, shape)
            if hardware.chip_count > _MOST_CHIPS:
                continue
            for sizes in mesh_shapes(hardware.device_count):
                verdicts[_compared(hardware, sizes)] += 1
    print()
    print("; ".join(f"{verdict}: {count}" for verdict, count in sorted(verdicts.items())))


def _compared(hardware: Hardware, sizes: tuple[int, ...]) -> str:
    """Print one comparison and return its verdict."""
    ours, theirs = our_scores(hardware, sizes), jax_scores(hardware, sizes)
    name = f"{hardware.chip.name} {shape_text(hardware.topology)}"
    start = f"{name:<17} {'x'.join(map(str, sizes)):<15}"
    if ours is None:
        print(f"{start} {'?':<8} raises")
        return "ours fails"
    if isinstance(theirs, str):
        print(f"{start} {theirs:<8} works    - / {ours[0].links:g}")
        return f"JAX {theirs}, ours works"
    better = "better" if ours < theirs else "equal" if ours == theirs else "WORSE"
    print(f"{start} {'works':<8} {better:<8} {theirs[0].links:g} / {ours[0].links:g}")
    return f"both work, ours {better}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Placing meshes: time, and beside JAX.")
    parser.add_argument("--timing", action="store_true", help="only the times")
    arguments = parser.parse_args()
    time_large_slices()
    if not arguments.timing:
        print()
        compare_with_jax()


if __name__ == "__main__":
    main()
