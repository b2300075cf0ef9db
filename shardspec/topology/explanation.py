"""What a placement means, axis by axis: rings and lines, hops, hosts, slices, bytes per second.

Every value is derived from the digits of the placement; none is stored with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shardspec.ir.hardware import Hardware
from shardspec.topology.digit import Coordinate, Digit, joined_digits
from shardspec.topology.machine import Machine, PhysicalAxis
from shardspec.topology.placement import AxisPlacement, Placement
from shardspec.topology.score import AxisScore, is_ring, score_axis

RunShape = Literal["ring", "line", "switch", "chip"]
Bottleneck = Literal["dcn", "ici", "chip", "nvlink", "memory", "none"]


@dataclass(frozen=True, slots=True)
class Run:
    """One stretch of a physical axis under a mesh axis.

    Attributes:
      size: devices along it.
      stride: steps from one to the next; more than 1 means that other groups lie between.
      extent: size of the whole physical axis.
      shape: `ring` if its ends are joined, `line` if not, `switch` where every pair is,
        `chip` for the devices of one chip.
    """

    physical_axis: str
    size: int
    stride: int
    extent: int
    shape: RunShape

    def __str__(self) -> str:
        """Return `x 4 of 8, every 2nd, line`."""
        part = f"{self.size} of {self.extent}" if self.size < self.extent else f"{self.size}"
        every = "" if self.stride == 1 else f", every {_ordinal(self.stride)}"
        return f"{self.physical_axis} {part}{every}, {self.shape}"


@dataclass(frozen=True, slots=True)
class AxisExplanation:
    """What one mesh axis runs over and what that costs.

    Attributes:
      hops: ICI links between each device of a group and the next; the last entry leads from
        the last device back to the first. A switch or DCN counts as one, a chip's inside as 0.
      wrapped: whether every stretch of torus is closed.
      hosts: hosts that one group touches, at most.
      slices: slices (GPUs: NVLink domains) that one group touches.
      bytes_per_s: per device and one way, of a ring all-gather over this axis with nothing else
        on its links; None where the catalogue has no figure.
      bottleneck: what bytes_per_s is a figure of.
    """

    name: str
    size: int
    runs: tuple[Run, ...]
    hops: tuple[int, ...]
    wrapped: bool
    hosts: int
    slices: int
    bytes_per_s: float | None
    bottleneck: Bottleneck
    score: AxisScore

    @property
    def shape(self) -> str:
        """Return `ring`, `line`, `torus`, `grid`, `switch`, `chip`, `mixed` or `one device`."""
        shapes = [run.shape for run in self.runs if run.shape != "chip"]
        if not shapes:
            return "chip" if self.runs else "one device"
        if len(shapes) == 1:
            return shapes[0]
        if set(shapes) == {"ring"}:
            return "torus"
        return "mixed" if "switch" in shapes else "grid"

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the hops from each device to the next, without the way back."""
        return self.hops[:-1]


def explain_axes(placement: Placement) -> tuple[AxisExplanation, ...]:
    """Return what every mesh axis runs over, in mesh order."""
    return tuple(_explain(placed, placement) for placed in placement.axes)


def _explain(placed: AxisPlacement, placement: Placement) -> AxisExplanation:
    machine = placement.machine
    digits = [digit for digit in placed.digits if digit.size > 1]
    asks_dcn = placed.axis.network == "dcn"
    score = score_axis(digits, machine, asks_dcn=asks_dcn)
    speed, bottleneck = _bandwidth(digits, score, placement)
    runs = tuple(_run(digit, machine[digit.axis]) for digit in joined_digits(digits))
    return AxisExplanation(
        name=placed.axis.name,
        size=placed.axis.size,
        runs=runs,
        hops=route_hops(placed.route, machine),
        wrapped=bool(runs) and all(run.shape != "line" for run in runs),
        hosts=score.hosts,
        slices=math.prod(digit.size for digit in digits if machine[digit.axis].link == "dcn"),
        bytes_per_s=speed,
        bottleneck=bottleneck,
        score=score,
    )


def route_hops(route: tuple[Coordinate, ...], machine: Machine) -> tuple[int, ...]:
    """Return the hops from each place of a route to the next, the way back included."""
    if len(route) < 2:
        return ()
    following = (*route[1:], route[0])
    return tuple(
        sum(axis.hops(a, b) for axis, a, b in zip(machine, here, there, strict=True))
        for here, there in zip(route, following, strict=True)
    )


def _run(digit: Digit, axis: PhysicalAxis) -> Run:
    shape: RunShape = "ring" if is_ring(digit, axis) else "line"
    if axis.link != "ici":
        shape = "chip" if axis.link == "chip" else "switch"
    return Run(axis.name, digit.size, digit.stride, axis.extent, shape)


def _bandwidth(
    digits: list[Digit], score: AxisScore, placement: Placement
) -> tuple[float | None, Bottleneck]:
    """Return the slowest part of an axis and its speed for one device, one way."""
    hardware, machine = placement.hardware, placement.machine
    links = {machine[digit.axis].link for digit in digits}
    chip = hardware.chip
    if "dcn" in links:
        return network_per_device(hardware), "dcn"
    if "ici" in links:
        return (
            None if chip.link_bytes_per_s is None else chip.link_bytes_per_s * score.links
        ), "ici"
    if "nvlink" in links:
        return chip.link_bytes_per_s, "nvlink"
    if "chip" in links:
        return chip.pair_bytes_per_s, "chip"
    return None, ("memory" if "memory" in links else "none")


def network_per_device(hardware: Hardware) -> float | None:
    """Return a device's share of its host's network, bytes/s one way; None without a figure.

    The catalogue's figure is for a host of the chip's own shape, so a slice that takes half a
    host has half of it.
    """
    chip = hardware.chip
    if chip.network_bytes_per_s is None:
        return None
    return chip.network_bytes_per_s / (math.prod(chip.host_shape) * chip.devices_per_chip)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"
