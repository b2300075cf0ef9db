"""The machine as a handful of physical axes: slice, x, y, z, core; or node, gpu.

A device is a coordinate on them. DCN (or the network between nodes) is an axis like the others,
only slow; the devices of one TPU chip are one more, only fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardspec.ir.hardware import Hardware

Link = Literal["dcn", "ici", "chip", "nvlink", "memory"]


@dataclass(frozen=True, slots=True)
class PhysicalAxis:
    """One direction in which devices are counted.

    Attributes:
      link: what joins neighbours: DCN or network, ICI, the inside of a chip, NVLink's switch,
        or the memory of a CPU host.
      wraps: whether its ends are joined.
      host: how many consecutive coordinates share a host.
    """

    name: str
    extent: int
    link: Link
    wraps: bool = False
    host: int = 1

    def hops(self, start: int, end: int) -> int:
        """Return the links crossed from one coordinate to another; a switch is one link."""
        distance = abs(start - end)
        if self.link in ("chip", "memory"):
            return 0
        if self.link in ("dcn", "nvlink"):
            return min(distance, 1)
        return min(distance, self.extent - distance) if self.wraps else distance


Machine = tuple[PhysicalAxis, ...]


def machine_of(hardware: Hardware) -> Machine:
    """Return the physical axes of a machine, the slowest first."""
    chip = hardware.chip
    count = hardware.slice_count
    hosts = host_shape(hardware)
    if chip.platform == "cpu":
        devices = hardware.topology[0]
        return (
            PhysicalAxis("process", count, "dcn"),
            PhysicalAxis("device", devices, "memory", host=devices),
        )
    if chip.platform == "gpu":
        gpus = hardware.topology[0]
        return (
            PhysicalAxis("node", count, "dcn"),
            PhysicalAxis("gpu", gpus, "nvlink", host=min(gpus, hosts[0])),
        )
    return (
        PhysicalAxis("slice", count, "dcn"),
        *_torus(hardware, hosts),
        PhysicalAxis("core", chip.devices_per_chip, "chip", host=chip.devices_per_chip),
    )


def _torus(hardware: Hardware, hosts: tuple[int, ...]) -> Machine:
    """Return x, y and z; z has extent 1 on a 2D torus."""
    shape = (*hardware.topology, 1, 1, 1)[:3]
    wraps = (*hardware.chip.wraps(hardware.topology), False, False, False)
    held = (*hosts, 1, 1, 1)
    return tuple(
        PhysicalAxis(name, shape[index], "ici", wraps[index] and shape[index] > 1, held[index])
        for index, name in enumerate("xyz")
    )


def host_shape(hardware: Hardware) -> tuple[int, ...]:
    """Return the chips of one host along each dimension of the topology."""
    if hardware.host_shape:
        return hardware.host_shape
    shape = hardware.chip.host_shape
    padded = (*shape, *(1,) * len(hardware.topology))
    return tuple(map(min, zip(padded, hardware.topology, strict=False)))
