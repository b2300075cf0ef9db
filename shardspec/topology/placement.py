"""A target's mesh laid onto its hardware: which device stands at which mesh index, and why.

The answer is not a list of devices but the digits each mesh axis runs over; the list is derived
from them, and so is every sentence of an explanation.

T5X counts a tile row by row, so at the end of every row the next chip is a row's length away. Under
`order: ring` a mesh axis walks through its tile so that neighbours touch: a Hamiltonian cycle
visits the same chips with one hop a step, the last step included. There is one in every box with
an even number of chips and two sides; else the walk is a path (one hop a step, but the ends do not
meet).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Target, divisors
from shardspec.topology.assignment import Request, assign_digits
from shardspec.topology.machine import Coordinate, Digit, Machine, digit_offsets, machine_of, summed
from shardspec.topology.sizes import StatedAxis, wrong_product
from shardspec.topology.submesh import Tile, Tiling, best_submesh, slice_text, tile_fault, tiling_on

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
    from shardspec.topology.by_hand import device_coordinates
    from shardspec.topology.machine import in_digits

    numbered = tuple(device_coordinates(hardware))
    places = tuple(numbered[number] for number in target.devices)
    axes = target.mesh.axes
    found = in_digits([axis.size for axis in axes], places, machine)
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
    from shardspec.topology.by_hand import digits_over, fault_on, free_digits

    fault = fault_on(mesh, hardware)
    if fault is not None:
        return fault
    stated = {axis.name: digits_over(axis, machine) for axis in mesh.axes if axis.over}
    others = [axis for axis in mesh.axes if not axis.over]
    free = free_digits([digit for digits in stated.values() for digit in digits], machine)
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
        return tile_fault(axis, hardware) or axis.submesh
    found = best_submesh(hardware, axis.size)
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
    tiling = tiling_on(hardware, tile)
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
