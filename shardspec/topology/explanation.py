"""What a placement means: what each mesh axis runs over and costs, and what is worth saying of it.

Every value is derived from the digits of the placement; none is stored with it. A drawing shows
the last axis inside a slice with more than one device; a group is one ring of that axis, the
devices that differ in nothing but their index on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from shardspec.ir.spec import Chip, Hardware, Mesh, MeshAxis, Target
from shardspec.topology import machine as machines
from shardspec.topology.assignment import AxisScore, is_ring, score_axis
from shardspec.topology.placement import AxisPlacement, Placement, place
from shardspec.topology.submesh import Tile, better_submeshes

if TYPE_CHECKING:
    from shardspec.topology.machine import Stretches

RunShape = Literal["ring", "line", "switch", "direct", "chip"]
Bottleneck = Literal["dcn", "ici", "chip", "nvlink", "memory", "none"]


@dataclass(frozen=True, slots=True)
class Run:
    """One stretch of a physical axis under a mesh axis.

    Attributes:
      size: devices along it.
      stride: steps from one to the next; more than 1 means that other groups lie between.
      extent: size of the whole physical axis.
      shape: `ring` if its ends are joined, `line` if not, `switch` or `direct` where every
        pair is, by a switch or by links of their own, `chip` for the devices of one chip.
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
        on its links, all of them at work: what there is. What one ring reaches of it in the order
        of the devices is `walk.legs`. None where the catalogue has no figure.
      bottleneck: what bytes_per_s is a figure of.
      fabric: what the links between the GPUs of a node are called.

    Where devices are listed in no order of digits there are no runs, hops, hosts and slices are
    those of the worst group, and bytes_per_s is what rings in the order of the list reach.
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
    fabric: str = "NVLink"

    @property
    def shape(self) -> str:
        """Return `ring`, `line`, `torus`, `grid`, `switch`, `chip`, `mixed` or `one device`."""
        shapes = [run.shape for run in self.runs if run.shape != "chip"]
        if not shapes:
            return "chip" if self.runs else "one device" if self.size == 1 else "listed"
        if len(shapes) == 1:
            return shapes[0]
        if set(shapes) == {"ring"}:
            return "torus"
        return "grid" if {"switch", "direct"}.isdisjoint(shapes) else "mixed"

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the hops from each device to the next, without the way back."""
        return self.hops[:-1]


def explain_axes(placement: Placement) -> tuple[AxisExplanation, ...]:
    """Return what every mesh axis runs over, in mesh order."""
    return tuple(_explain(placed, placement) for placed in placement.axes)


def _explain(placed: AxisPlacement, placement: Placement) -> AxisExplanation:
    if placement.listed:
        return _explain_listed(placed.axis, placement)
    machine = placement.machine
    digits = [digit for digit in placed.digits if digit.size > 1]
    asks_dcn = placed.axis.network == "dcn"
    score = score_axis(digits, machine, asks_dcn=asks_dcn)
    crossed = {machine[digit.axis].link for digit in digits}
    gpus = math.prod(each.size for each in digits if machine[each.axis].link == "nvlink")
    speed, bottleneck = _bandwidth(crossed, score.links, gpus, placement.hardware)
    chip, joined = placement.hardware.chip, machines.joined_digits(digits)
    runs = tuple(_run(digit, machine[digit.axis], chip) for digit in joined)
    return AxisExplanation(
        name=placed.axis.name,
        size=placed.axis.size,
        runs=runs,
        hops=machines.route_hops(placed.route, machine),
        wrapped=bool(runs) and all(run.shape != "line" for run in runs),
        hosts=score.hosts,
        slices=slices_of(placed, placement),
        bytes_per_s=speed,
        bottleneck=bottleneck,
        score=score,
        fabric=placement.hardware.chip.fabric,
    )


def slices_of(placed: AxisPlacement, placement: Placement) -> int:
    """Return how many slices or nodes one group of a mesh axis lies in."""
    if placement.listed:
        return _stretches(placed.axis, placement).ways["dcn"]
    machine = placement.machine
    return math.prod(digit.size for digit in placed.digits if machine[digit.axis].link == "dcn")


def _stretches(axis: MeshAxis, placement: Placement) -> Stretches:
    from shardspec.topology.machine import stretches

    return stretches(placement.mesh, placement.listed, placement.machine, [axis.name])


def _explain_listed(axis: MeshAxis, placement: Placement) -> AxisExplanation:
    """Return what the groups of an axis touch that are no translates of one another."""
    lies = _stretches(axis, placement)
    links = 2 / lies.both_ways
    crossed = {link for link, ways in lies.ways.items() if ways > 1}
    speed, slowest = _bandwidth(crossed, links, lies.ways["nvlink"], placement.hardware)
    score = AxisScore(lies.ways["dcn"], 1, 1, -links, lies.diameter, lies.hosts)
    return AxisExplanation(
        axis.name,
        axis.size,
        runs=(),
        hops=lies.hops,
        wrapped=False,
        hosts=lies.hosts,
        slices=lies.ways["dcn"],
        bytes_per_s=speed,
        bottleneck=slowest,
        score=score,
        fabric=placement.hardware.chip.fabric,
    )


def _run(digit: machines.Digit, axis: machines.PhysicalAxis, chip: Chip) -> Run:
    shape: RunShape = "ring" if is_ring(digit, axis) else "line"
    if axis.link != "ici":
        has_links = axis.link == "nvlink" and not chip.has_switch
        shape = "chip" if axis.link == "chip" else "direct" if has_links else "switch"
    return Run(axis.name, digit.size, digit.stride, axis.extent, shape)


def _bandwidth(
    crossed: Collection[machines.Link], links: float, gpus: int, hardware: Hardware
) -> tuple[float | None, Bottleneck]:
    """Return the slowest part of what an axis crosses and its speed for one device, one way."""
    link_speed = hardware.chip.link_bytes_per_s
    speeds: dict[machines.Link, float | None] = {
        "dcn": network_per_device(hardware),
        "ici": None if link_speed is None else link_speed * links,
        "nvlink": hardware.chip.speed_between(gpus),
        "chip": hardware.chip.pair_bytes_per_s,
        "memory": None,
    }
    slowest = next((link for link in speeds if link in crossed), None)
    return (None, "none") if slowest is None else (speeds[slowest], slowest)


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


@dataclass(frozen=True, slots=True)
class DcnFact:
    """A mesh axis is split over DCN, or the network, without `@ dcn`.

    Attributes:
      inside: ways inside a slice; above 1 every ring of the axis leaves and enters slices.
      across: ways over DCN.
    """

    axis: MeshAxis
    inside: int
    across: int


@dataclass(frozen=True, slots=True)
class RingFact:
    """A mesh axis asks for a tile, and another tile of the same size has more links at work.

    Attributes:
      tile: the better one, as `submesh` spells it.
      now, then: the axis as it lies, and on that tile.
      slower: (before, after) of the other axes that would lose links by it.
    """

    axis: MeshAxis
    tile: Tile
    now: AxisExplanation
    then: AxisExplanation
    slower: tuple[tuple[AxisExplanation, AxisExplanation], ...] = ()


def core_note(hardware: Hardware) -> str:
    """Return what `core` of a submesh counts on this machine, and how large it may be."""
    chip = hardware.chip
    if chip.platform != "tpu":
        return f"{chip.title} has no core dimension"
    what = "`core` counts the JAX devices of one chip that a tile takes"
    if chip.devices_per_chip == 1:
        reason = (
            "its two cores work as one (megacore)" if chip.cores_per_chip > 1 else "it has one core"
        )
        return f"{what}; a {chip.title} chip is one device, since {reason}, so core is 1"
    parts = "two cores" if chip.pair_bytes_per_s is None else "two chiplets"
    return (
        f"{what}; a {chip.title} chip shows {chip.devices_per_chip} devices ({parts}), so core may "
        f"be up to {chip.devices_per_chip}. Raise it first: it needs no ICI"
    )


def dcn_facts(placement: Placement) -> Iterator[DcnFact]:
    """Yield every mesh axis that crosses slices though it does not say `@ dcn`.

    Between GPU nodes an axis with nothing inside a node has no other way to lie, and is left
    out.
    """
    for placed in placement.axes:
        if placed.axis.network == "dcn" or placed.axis.over:
            continue
        across = math.prod(
            digit.size for digit in placed.digits if placement.machine[digit.axis].link == "dcn"
        )
        inside = placed.axis.size // across
        if across > 1 and (inside > 1 or placement.hardware.chip.platform == "tpu"):
            yield DcnFact(placed.axis, inside, across)


def ring_fact(target: Target, placement: Placement) -> RingFact | None:
    """Return that the tile a mesh axis asks for could lie on better rings, where it could.

    Plain sizes and `auto` are laid out best already, so only a `submesh` is looked at. Better
    is by the score and by links at work, both: no tile is called better that moves fewer bytes.
    """
    owners = [axis for axis in target.mesh.axes if axis.submesh is not None]
    found = (_better_tile(target, placement, owner) for owner in owners)
    return next(filter(None, found), None)


def _better_tile(target: Target, placement: Placement, owner: MeshAxis) -> RingFact | None:
    before = {explained.name: explained for explained in explain_axes(placement)}
    now = before[owner.name]
    for tile in better_submeshes(placement.hardware, owner.size, now.score):
        other = place(_turned(target, owner, tile), "ring" if placement.order == "ring" else "t5x")
        if not isinstance(other, Placement):
            continue
        after = {explained.name: explained for explained in explain_axes(other)}
        then = after[owner.name]
        if then.score < now.score and then.score.links > now.score.links:
            slower = tuple(
                (before[name], after[name])
                for name in before
                if name != owner.name and after[name].score.links < before[name].score.links
            )
            return RingFact(owner, tile, now, then, slower)
    return None


def _turned(target: Target, owner: MeshAxis, tile: Tile) -> Target:
    axes = (replace(axis, submesh=tile) if axis is owner else axis for axis in target.mesh.axes)
    return replace(target, mesh=Mesh(tuple(axes), target.mesh.wholes))


@dataclass(frozen=True, slots=True)
class Seat:
    """A device's place in a drawing.

    Attributes:
      group: row-major index over all other mesh axes.
      position: index on the drawn axis.
    """

    group: int
    position: int

    @property
    def letters(self) -> str:
        """Return the group as letters: A to Z, AA to ZZ.

        >>> Seat(0, 0).letters, Seat(27, 0).letters
        ('A', 'AB')
        """
        number, letters = self.group, ""
        while number >= 0:
            letters = chr(ord("A") + number % 26) + letters
            number = number // 26 - 1
        return letters

    def __str__(self) -> str:
        """Return `A0`."""
        return f"{self.letters}{self.position}"


def drawn_axis(placement: Placement) -> str | None:
    """Return the mesh axis that a drawing shows; None where every axis has size 1."""
    axes = [placed.axis for placed in placement.axes if placed.axis.size > 1]
    inside = [axis for axis in axes if axis.network == "ici"] or axes
    return inside[-1].name if inside else None


def seats(placement: Placement, axis: str | None = None) -> dict[machines.Coordinate, Seat]:
    """Return the seat of every device, for the mesh axis `axis` or the one that is drawn."""
    name = axis or drawn_axis(placement)
    sizes = [placed.axis.size for placed in placement.axes]
    names = [placed.axis.name for placed in placement.axes]
    if name is None:
        return dict.fromkeys(placement.coordinates(), Seat(0, 0))
    index = names.index(name)
    below, size = math.prod(sizes[index + 1 :]), sizes[index]
    found = {}
    for number, coordinate in enumerate(placement.coordinates()):
        outer, inner = divmod(number, below * size)
        position, after = divmod(inner, below)
        found[coordinate] = Seat(outer * below + after, position)
    return found
