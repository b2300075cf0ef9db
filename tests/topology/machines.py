"""Machines and meshes for the topology's tests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Target, divisors
from shardspec.language.catalogue import catalogue_entry
from shardspec.topology.machine import Coordinate, Digit, digit_offsets

#: (catalogue file, topology): every generation, wrapped and not, hosts that fit and that do not.
SLICES = (
    ("tpu_v2", (4, 4)),
    ("tpu_v3", (2, 2)),
    ("tpu_v3", (4, 4)),
    ("tpu_v3", (4, 8)),
    ("tpu_v4", (2, 2, 1)),
    ("tpu_v4", (2, 2, 4)),
    ("tpu_v4", (4, 4, 4)),
    ("tpu_v4", (4, 4, 8)),
    ("tpu_v4", (4, 8, 8)),
    ("tpu_v5e", (2, 4)),
    ("tpu_v5e", (4, 4)),
    ("tpu_v5e", (16, 16)),
    ("tpu_v5p", (4, 4, 12)),
    ("tpu_v5p", (4, 4, 8)),
    ("tpu_v6e", (8, 16)),
    ("tpu_v7x", (2, 2, 2)),
    ("tpu_v7x", (4, 4, 4)),
)


def hardware(file: str, topology: tuple[int, ...], slices: int = 1) -> Hardware:
    """Return a machine of the catalogue."""
    return Hardware(catalogue_entry(file).chip, slices, topology)


def target(machine: Hardware, *axes: MeshAxis) -> Target:
    """Return a target with these mesh axes."""
    return Target("t", Mesh(axes), machine)


def sized(machine: Hardware, **sizes: int) -> Target:
    """Return a target with plain sizes."""
    return target(machine, *(MeshAxis(name, size) for name, size in sizes.items()))


@st.composite
def machines(draw: st.DrawFn) -> Hardware:
    """A TPU machine of one to four slices, a few GPU nodes, or CPU devices."""
    kind = draw(st.sampled_from(("tpu", "tpu", "tpu", "gpu", "cpu")))
    if kind == "cpu":
        return hardware("cpu", (draw(st.sampled_from((1, 3, 8, 12))),))
    if kind == "gpu":
        return hardware("h100", (8,), draw(st.integers(1, 6)))
    file, topology = draw(st.sampled_from(SLICES))
    return hardware(file, topology, draw(st.sampled_from((1, 1, 2, 3, 4))))


@st.composite
def targets(draw: st.DrawFn) -> Target:
    """A machine and a mesh of one to four axes whose sizes multiply to its devices."""
    machine = draw(machines())
    left = machine.device_count
    axes = []
    if machine.slice_count > 1 and draw(st.booleans()):
        axes.append(MeshAxis("replica", machine.slice_count, "dcn"))
        left //= machine.slice_count
    for name in ("data", "fsdp", "expert")[: draw(st.integers(0, 3))]:
        size = draw(st.sampled_from(divisors(left)))
        axes.append(MeshAxis(name, size))
        left //= size
    axes.append(MeshAxis("model", left))
    assert math.prod(axis.size for axis in axes) == machine.device_count
    return target(machine, *axes)


@st.composite
def tiled_targets(draw: st.DrawFn) -> Target:
    """A TPU slice, and a model axis that asks for a tile which divides it."""
    file, topology = draw(st.sampled_from(SLICES))
    machine = hardware(file, topology)
    extents = (*(*topology, 1)[:3], machine.chip.devices_per_chip)
    tile = tuple(draw(st.sampled_from(divisors(extent))) for extent in extents)
    size = math.prod(tile)
    rest = machine.device_count // size
    return target(machine, MeshAxis("data", rest), MeshAxis("model", size, submesh=tile))


def covers_once(digits: Iterable[Digit], extents: Sequence[int]) -> bool:
    """Say whether the digits of each physical axis count every coordinate of it exactly once."""
    return sorted(digit_offsets(digits, len(extents))) == [*itertools.product(*map(range, extents))]


def digits_of(places: Iterable[Coordinate]) -> tuple[Digit, ...] | None:
    """Return the digits that count a group of devices; None where it is no such group.

    For judging an order that someone else made: only the set of places counts.

    >>> digits_of([(0, 5), (0, 1), (2, 1), (2, 5)])
    (Digit(axis=0, size=2, stride=2), Digit(axis=1, size=2, stride=4))
    """
    group = set(places)
    columns = [sorted(set(column)) for column in zip(*group, strict=True)]
    digits = [
        digit
        for axis, values in enumerate(columns)
        for digit in _digits_along(axis, [value - values[0] for value in values])
    ]
    corner = [values[0] for values in columns]
    moved = {tuple(map(int.__sub__, place, corner)) for place in group}
    return tuple(digits) if moved == set(digit_offsets(digits, len(columns))) else None


def _digits_along(axis: int, values: Sequence[int]) -> Iterator[Digit]:
    while len(values) > 1:
        stride = values[1]
        size = next((n for n, value in enumerate(values) if value != n * stride), len(values))
        yield Digit(axis, size, stride)
        values = values[::size]
