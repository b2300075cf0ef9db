"""Where each JAX device stands on the machine's physical axes.

TPU devices say it themselves: slice, coordinates, core. GPUs and CPU devices do not; they are
counted node by node (JAX calls the GPUs of one node a slice), in order of process and id. No
order depends on how the devices are listed, so every process finds the same one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardspec.ir.grouping import counted
from shardspec.ir.hardware import Hardware
from shardspec.topology.machine import Coordinate, machine_of

if TYPE_CHECKING:
    import jax

Triple = tuple[int, int, int]


def devices_by_coordinate(
    devices: Sequence[jax.Device], hardware: Hardware
) -> Mapping[Coordinate, jax.Device] | None:
    """Return each device by its coordinate on `machine_of(hardware)`.

    None where the devices are not that machine: another number, another shape, holes. A slice
    whose axes come in another order (8x4 for 4x8) is turned.
    """
    extents = tuple(axis.extent for axis in machine_of(hardware))
    if len(devices) != hardware.device_count:
        return None
    if hardware.chip.platform != "tpu":
        ordered = [device for members in slices_of(devices) for device in _by_process(members)]
        return dict(zip(itertools.product(*map(range, extents)), ordered, strict=True))
    turn = _turn(devices, (extents[1], extents[2], extents[3]))
    if turn is None:
        return None
    slices = slices_of(devices)
    found: dict[Coordinate, jax.Device] = {}
    for number, members in enumerate(slices):
        low = _low_corner(members)
        for device in members:
            place = [device.coords[axis] - low[axis] for axis in range(3)]
            core = getattr(device, "core_on_chip", 0)
            found[(number, *(place[axis] for axis in turn), core)] = device
    complete = len(found) == len(devices) and set(found) == set(
        itertools.product(*map(range, extents))
    )
    return found if complete else None


def slices_of(devices: Iterable[jax.Device]) -> list[list[jax.Device]]:
    """Return the devices of each slice, by slice index; one slice where devices have none."""
    groups: dict[int, list[jax.Device]] = {}
    for device in devices:
        groups.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    return [groups[index] for index in sorted(groups)]


def _by_process(devices: Iterable[jax.Device]) -> list[jax.Device]:
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def device_extents(devices: Sequence[jax.Device]) -> Triple | None:
    """Return the chips along x, y and z of one slice, or None where devices do not say."""
    coords = [tuple(getattr(device, "coords", None) or ()) for device in devices]
    if not coords or any(len(place) != 3 for place in coords):
        return None
    return _extents_of(devices)


def _extents_of(devices: Sequence[jax.Device]) -> Triple:
    low = _low_corner(devices)
    x, y, z = (max(device.coords[axis] for device in devices) - low[axis] + 1 for axis in range(3))
    return x, y, z


def _low_corner(devices: Iterable[jax.Device]) -> Triple:
    places = [device.coords for device in devices]
    x, y, z = (min(place[axis] for place in places) for axis in range(3))
    return x, y, z


def _turn(devices: Sequence[jax.Device], wanted: Triple) -> Triple | None:
    """Return which of the devices' axes are our x, y and z; the order they have, if it fits."""
    extents = device_extents(devices)
    if extents is None:
        return None
    for x, y, z in itertools.permutations(range(3)):
        if (extents[x], extents[y], extents[z]) == wanted:
            return x, y, z
    return None


def describe_devices(devices: Sequence[jax.Device]) -> str:
    """Return `8 devices of kind 'cpu'`, with slices and topology where they are known."""
    if not devices:
        return "no devices"
    kinds = sorted({device.device_kind for device in devices})
    shape = device_extents(devices)
    where = f" in a topology of {'x'.join(map(str, shape))} chips" if shape else ""
    count = len(slices_of(devices))
    slices = f" in {count} slices" if count > 1 else ""
    amount = counted(len(devices), "device")
    return f"{amount} of kind {', '.join(map(repr, kinds))}{slices}{where}"
