"""A target's mesh laid onto its hardware: which device stands at which mesh index, and why.

The answer is not a list of devices but the digits each mesh axis runs over; the list is derived
from them, and so is every sentence of an explanation.

T5X counts a tile row by row, so at the end of every row the next chip is a row's length away. Under
`order: ring` a mesh axis walks through its tile so that neighbours touch: a Hamiltonian cycle
visits the same chips with one hop a step, the last step included. There is one in every box with
an even number of chips and two sides; else the walk is a path (one hop a step, but the ends do not
meet).

What a placement means: what each mesh axis runs over and costs, and what is worth saying of it.

Every value is derived from the digits of the placement; none is stored with it. A drawing shows
the last axis inside a slice with more than one device; a group is one ring of that axis, the
devices that differ in nothing but their index on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.ir.spec import Chip, Hardware, Mesh, MeshAxis, Target, divisors
from shardspec.topology import assignment, by_hand
from shardspec.topology import machine as machines
from shardspec.topology.assignment import Request, Tile, Tiling, assign_digits, slice_text
from shardspec.topology.machine import Coordinate, Digit, Machine, digit_offsets, machine_of, summed
from shardspec.topology.sizes import StatedAxis, wrong_product

Order = Literal["t5x", "ring"]
Counting = Literal["t5x", "ring", "listed"]


@dataclass(frozen=True, slots=True)
class AxisPlacement:
    """One mesh axis on the machine.

    Attributes:
      digits: the stretches of physical axes it runs over, most significant first.
      order: how it counts the chips of its stretches.
      stated: its route, where that is none of an order.
    """

    axis: MeshAxis
    digits: tuple[Digit, ...]
    machine: Machine = field(repr=False)
    order: Order = "t5x"
    stated: tuple[Coordinate, ...] | None = field(default=None, repr=False)

    @property
    def route(self) -> tuple[Coordinate, ...]:
        """Return the offset of each index; a device is the sum of one offset per mesh axis."""
        if self.stated is not None:
            return self.stated
        return route_of(self.digits, self.machine, self.order)


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh laid onto a machine.

    Attributes:
      axes: in mesh order.
      path: how a submesh was tiled, where there is one.
      listed: the devices of a list in whose order there are no digits: then the axes have none,
        and no route.

    Invariants:
      once: every device stands at exactly one mesh index.
      translate: the groups of a mesh axis are translates of one another.
    """

    hardware: Hardware
    machine: Machine
    axes: tuple[AxisPlacement, ...]
    order: Counting = "t5x"
    path: str | None = None
    listed: tuple[Coordinate, ...] = field(default=(), repr=False)

    @property
    def mesh(self) -> Mesh:
        """Return the mesh, every size known."""
        return Mesh(tuple(placed.axis for placed in self.axes))

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinate of every device, in row-major order of the mesh."""
        if self.listed:
            return self.listed
        return summed([placed.route for placed in self.axes], len(self.machine))

    def axis(self, name: str) -> AxisPlacement:
        """Return the placement of the mesh axis `name`."""
        return next(placed for placed in self.axes if placed.axis.name == name)


def place(target: Target, order: Order = "t5x") -> Placement | Diagnostic:
    """Return the target's mesh on its hardware, or what does not fit.

    Args:
      order: how a mesh axis counts the chips of its tile: row by row as T5X does, or along a
        ring in which neighbours touch.
    """
    hardware = target.hardware
    if hardware is None:
        message = f"target `{target.name}` has a mesh and no hardware to lay it on"
        return point(codes.UNSOLVED_SIZE, message, target.span, help=quote.hardware("tpu v4 4x8x8"))
    axes = target.mesh.axes
    if target.mesh.device_count != hardware.device_count:
        stated = tuple(StatedAxis(axis, str(axis.size)) for axis in axes)
        span = axes[0].span if axes else target.span
        return wrong_product(target.name, stated, hardware, span)
    machine = machine_of(hardware)
    if target.devices and len(target.devices) != hardware.device_count:
        count = f"{len(target.devices)} devices are listed, and {hardware} has"
        message = f"target `{target.name}`: {count} {hardware.device_count}"
        return point(codes.DEVICE_ORDER, message, target.span, help="list each of them once")
    if target.devices:
        return _place_listed(target, hardware, machine)
    tiled = [axis for axis in axes if axis.submesh is not None or axis.auto]
    for axis in tiled:
        if axis.network == "dcn":
            message = f"`{axis.name}` is a tile, which lies inside one slice, and says `@ dcn`"
            return point(codes.SUBMESH_TILING, message, axis.span, help="leave out `@ dcn`")
    if len(tiled) > 1 or any(axis.over for axis in axes):
        return _place_by_hand(target.mesh, hardware, machine, order)
    tile = _tile_of(tiled[0], hardware) if tiled else None
    if isinstance(tile, Diagnostic):
        return tile
    if tiled and tile is not None:
        return _place_tiled(target.mesh, hardware, machine, tiled[0], tile, order)
    digits = assign_digits(tuple(map(_request, axes)), machine)
    assert digits is not None, "sizes that multiply to the devices always have digits"
    return _placement(hardware, machine, target.mesh, digits, order, None)


def placed(target: Target, order: Order = "t5x") -> Placement | None:
    """Return how a mesh lies on its hardware; None where it cannot, or there is none."""
    found = None if target.hardware is None else place(target, order)
    return found if isinstance(found, Placement) else None


def _place_listed(target: Target, hardware: Hardware, machine: Machine) -> Placement:
    """Return the placement of a mesh whose devices are listed, row by row."""
    numbered = tuple(by_hand.device_coordinates(hardware))
    places = tuple(numbered[number] for number in target.devices)
    axes = target.mesh.axes
    found = machines.in_digits([axis.size for axis in axes], places, machine)
    if found is None:
        bare = tuple(AxisPlacement(axis, (), machine, stated=()) for axis in axes)
        return Placement(hardware, machine, bare, "listed", listed=places)
    laid = tuple(
        AxisPlacement(axis, digits, machine, stated=route)
        for axis, (digits, route) in zip(axes, found, strict=True)
    )
    return Placement(hardware, machine, laid, "listed")


def _place_by_hand(
    mesh: Mesh, hardware: Hardware, machine: Machine, order: Order
) -> Placement | Diagnostic:
    """Return a placement where axes state their stretches, or several their tiles.

    What they leave is shared by the others as ever; T5X knows one tile, so its order is not asked.
    """
    fault = by_hand.fault_on(mesh, hardware)
    if fault is not None:
        return fault
    stated = {axis.name: by_hand.digits_over(axis, machine) for axis in mesh.axes if axis.over}
    others = [axis for axis in mesh.axes if not axis.over]
    free = by_hand.free_digits([digit for digits in stated.values() for digit in digits], machine)
    is_torus = hardware.chip.torus_rank > 0
    requests = tuple(
        _request(axis, axis.submesh and (1, *axis.submesh), is_inside=axis.auto and is_torus)
        for axis in others
    )
    found = assign_digits(requests, machine, free)
    if found is None:
        owner = next((axis for axis in others if axis.auto), others[0])
        message = f"no tile of {owner.size} devices fits {slice_text(hardware)} beside the others"
        help = (
            f"write {quote.size(owner.name, owner.size)}, which may lie anywhere, or another size"
        )
        return point(codes.SUBMESH_TILING, message, owner.span, help=help)
    stated.update(zip((axis.name for axis in others), found, strict=True))
    return _placement(
        hardware, machine, mesh, tuple(stated[name] for name in mesh.names), order, None
    )


def _request(axis: MeshAxis, factors: Tile | None = None, *, is_inside: bool = False) -> Request:
    return Request(axis.size, axis.network == "dcn", factors, is_inside)


def _tile_of(axis: MeshAxis, hardware: Hardware) -> Tile | Diagnostic | None:
    """Return the (x, y, z, core) tile of an axis that asks for one, or why it does not tile.

    None for `auto` where there is no torus to cut: then any order inside a node will do.
    """
    if axis.submesh is not None:
        return assignment.tile_fault(axis, hardware) or axis.submesh
    found = assignment.best_submesh(hardware, axis.size)
    if found is not None or hardware.chip.torus_rank == 0:
        return found
    message = f"no tile of {axis.size} devices fits {slice_text(hardware)}"
    sizes = ", ".join(map(str, divisors(hardware.devices_per_slice)[:16]))
    return point(codes.SUBMESH_TILING, message, axis.span, help=f"sizes with a tile: {sizes}")


def _place_tiled(
    mesh: Mesh, hardware: Hardware, machine: Machine, owner: MeshAxis, tile: Tile, order: Order
) -> Placement | Diagnostic:
    """Return a placement in which `owner` runs over tiles.

    With one other axis inside the slice this is T5X's order; with more, the tile is fixed and
    the others share what is left.
    """
    others = [axis for axis in mesh.axes if axis is not owner and axis.network == "ici"]
    tiling = assignment.tiling_on(hardware, tile)
    across = math.prod(axis.size for axis in mesh.axes if axis.network == "dcn")
    if isinstance(tiling, Tiling) and len(others) <= 1 and across in (1, hardware.slice_count):
        digits = _t5x_digits(mesh, machine, owner, tiling, hardware.slice_count // across)
        return _placement(hardware, machine, mesh, digits, order, tiling.path)
    tiles = [(1, *tile) if axis is owner else None for axis in mesh.axes]
    assigned = assign_digits(tuple(map(_request, mesh.axes, tiles)), machine)
    if assigned is None:
        message = f"the mesh does not fit {slice_text(hardware)} beside this submesh"
        return point(codes.SUBMESH_TILING, message, owner.span, help="let one axis be `rest`")
    return _placement(hardware, machine, mesh, assigned, order, None)


def _t5x_digits(
    mesh: Mesh, machine: Machine, owner: MeshAxis, tiling: Tiling, spare_slices: int
) -> tuple[tuple[Digit, ...], ...]:
    """Return T5X's digits; slices that no axis asked for are the data axis's most significant."""
    result: list[tuple[Digit, ...]] = []
    reached = machine[0].extent
    for axis in mesh.axes:
        if axis.network == "dcn":
            reached //= axis.size
            result.append((Digit(0, axis.size, reached),) if axis.size > 1 else ())
            continue
        digits = tiling.model if axis is owner else tiling.data
        shifted = tuple(Digit(digit.axis + 1, digit.size, digit.stride) for digit in digits)
        spare = axis is not owner and spare_slices > 1
        result.append(((Digit(0, spare_slices, 1), *shifted)) if spare else shifted)
    return tuple(result)


def _placement(
    hardware: Hardware,
    machine: Machine,
    mesh: Mesh,
    digits: tuple[tuple[Digit, ...], ...],
    order: Order,
    path: str | None,
) -> Placement:
    axes = tuple(
        AxisPlacement(axis, own, machine, "t5x" if axis.over else order)
        for axis, own in zip(mesh.axes, digits, strict=True)
    )
    return Placement(hardware, machine, axes, order, path)


def route_of(digits: Sequence[Digit], machine: Machine, order: Order) -> tuple[Coordinate, ...]:
    """Return the offsets of a mesh axis in counting order, or along a ring of chips."""
    torus = [digit for digit in digits if machine[digit.axis].link == "ici"]
    if order == "t5x" or len(torus) < 2:
        return digit_offsets(digits, len(machine))
    merged = _merged(torus)
    before = digit_offsets([d for d in digits if machine[d.axis].link == "dcn"], len(machine))
    after = digit_offsets([d for d in digits if machine[d.axis].link == "chip"], len(machine))
    walk = []
    for step in ring_walk([len(values) for values in merged.values()]):
        place = [0] * len(machine)
        for (axis, values), index in zip(merged.items(), step, strict=True):
            place[axis] = values[index]
        walk.append(tuple(place))
    return tuple(
        tuple(map(sum, zip(*parts, strict=True)))
        for parts in itertools.product(before, walk, after)
    )


def _merged(digits: list[Digit]) -> dict[int, list[int]]:
    """Return physical axis -> every coordinate that the digits on it reach, ascending."""
    reached: dict[int, list[int]] = {}
    for digit in digits:
        steps = reached.get(digit.axis, [0])
        reached[digit.axis] = sorted(
            step + digit.stride * value for step in steps for value in range(digit.size)
        )
    return reached


def ring_walk(sizes: Sequence[int]) -> tuple[Coordinate, ...]:
    """Return every place of a box once, each a neighbour of the one before.

    The last is also a neighbour of the first, where that can be.

    >>> ring_walk((2, 3))
    ((0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0))
    """
    sides = [index for index, size in enumerate(sizes) if size > 1]
    box = [sizes[index] for index in sides]
    walk = _cycle(box) if len(box) > 1 and not all(size % 2 for size in box) else snake(box)
    places = []
    for step in walk:
        place = [0] * len(sizes)
        for index, value in zip(sides, step, strict=True):
            place[index] = value
        places.append(tuple(place))
    return tuple(places)


def snake(sizes: Sequence[int]) -> list[Coordinate]:
    """Return a path through a box that turns around at the end of every row."""
    path: list[Coordinate] = [()]
    for size in sizes:
        path = [
            (*place, value)
            for turn, place in enumerate(path)
            for value in (range(size) if turn % 2 == 0 else reversed(range(size)))
        ]
    return path


def _cycle(sizes: Sequence[int]) -> list[Coordinate]:
    """Return a closed walk: back and forth through all columns but one, home through that.

    One even side is the rows; a path through the box of the other sides is the columns.
    """
    even = next(index for index, size in enumerate(sizes) if size % 2 == 0)
    rows = sizes[even]
    columns = snake([size for index, size in enumerate(sizes) if index != even])
    cells = [(row, column) for row, column in snake((rows, len(columns) - 1))]
    out = [(row, column + 1) for row, column in cells]
    home = [(row, 0) for row in reversed(range(rows))]
    return [_insert(columns[column], even, row) for row, column in (*home[-1:], *out, *home[:-1])]


def _insert(place: Coordinate, index: int, value: int) -> Coordinate:
    return (*place[:index], value, *place[index:])


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
    score: assignment.AxisScore
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
    score = assignment.score_axis(digits, machine, asks_dcn=asks_dcn)
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


def _stretches(axis: MeshAxis, placement: Placement) -> machines.Stretches:
    return machines.stretches(placement.mesh, placement.listed, placement.machine, [axis.name])


def _explain_listed(axis: MeshAxis, placement: Placement) -> AxisExplanation:
    """Return what the groups of an axis touch that are no translates of one another."""
    lies = _stretches(axis, placement)
    links = 2 / lies.both_ways
    crossed = {link for link, ways in lies.ways.items() if ways > 1}
    speed, slowest = _bandwidth(crossed, links, lies.ways["nvlink"], placement.hardware)
    score = assignment.AxisScore(lies.ways["dcn"], 1, 1, -links, lies.diameter, lies.hosts)
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
    shape: RunShape = "ring" if assignment.is_ring(digit, axis) else "line"
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
    for tile in assignment.better_submeshes(placement.hardware, owner.size, now.score):
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
