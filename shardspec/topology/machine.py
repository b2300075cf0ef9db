"""The machine as a handful of physical axes, and how a mesh axis runs over them: digits.

A device is a coordinate on the axes slice, x, y, z, core; or node, gpu. DCN (or the network between
nodes) is an axis like the others, only slow; the devices of one TPU chip are one more, only fast.

A physical axis of 8 chips shared by two mesh axes is a number of two digits: 8 = 4 x 2. Which
mesh axis owns which digit is the whole of a placement. The coordinate along the physical axis
is the sum of digit x stride over its digits, so every mesh axis contributes an offset of its
own, and the device at a mesh index is the sum of the offsets: no carry, ever.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from shardspec.ir.spec import Hardware, Mesh

Coordinate = tuple[int, ...]
Link = Literal["dcn", "ici", "chip", "nvlink", "memory"]


class PhysicalAxis(NamedTuple):
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


def route_hops(route: Sequence[Coordinate], machine: Machine) -> tuple[int, ...]:
    """Return the hops from each place of a route to the next, the way back included."""
    if len(route) < 2:
        return ()
    following = (*route[1:], route[0])
    return tuple(
        sum(axis.hops(a, b) for axis, a, b in zip(machine, here, there, strict=True))
        for here, there in zip(route, following, strict=True)
    )


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


def slice_extents(hardware: Hardware) -> tuple[int, ...]:
    """Return (x, y, z, core) of one slice; (devices,) without a torus."""
    return tuple(axis.extent for axis in machine_of(hardware)[1:])


def slice_host(hardware: Hardware) -> tuple[int, ...]:
    """Return (x, y, z, core) of one host; (devices,) without a torus."""
    return tuple(axis.host for axis in machine_of(hardware)[1:])


class Digit(NamedTuple):
    """A stretch of one physical axis that belongs to one mesh axis.

    Attributes:
      axis: index of the physical axis.
      size: how many values the digit has.
      stride: steps along the physical axis from one value to the next.
    """

    axis: int
    size: int
    stride: int

    @property
    def span(self) -> int:
        """Return how many steps of the physical axis the digit and all below it cover."""
        return self.size * self.stride


def digit_offsets(digits: Iterable[Digit], rank: int) -> tuple[Coordinate, ...]:
    """Return the offset of every value of a mixed-radix number, the last digit fastest.

    Args:
      rank: number of physical axes.

    >>> digit_offsets([Digit(0, 2, 2), Digit(1, 2, 1)], 2)
    ((0, 0), (0, 1), (2, 0), (2, 1))
    """
    offsets: list[Coordinate] = [(0,) * rank]
    for digit in digits:
        steps = [digit.stride * value for value in range(digit.size)]
        axis = digit.axis
        offsets = [
            (*place[:axis], place[axis] + step, *place[axis + 1 :])
            for place, step in itertools.product(offsets, steps)
        ]
    return tuple(offsets)


def summed(routes: Iterable[Sequence[Coordinate]], rank: int) -> tuple[Coordinate, ...]:
    """Return the sum of an offset of each route, for all of them, the last route fastest."""
    places: list[Coordinate] = [(0,) * rank]
    for route in routes:
        places = [
            tuple(map(int.__add__, place, offset))
            for place, offset in itertools.product(places, route)
        ]
    return tuple(places)


def joined_digits(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Return digits of one physical axis that follow on each other as one, by axis and stride.

    >>> joined_digits([Digit(0, 2, 2), Digit(0, 2, 1), Digit(1, 2, 4)])
    (Digit(axis=0, size=4, stride=1), Digit(axis=1, size=2, stride=4))
    """
    return chained(sorted(digits, key=lambda digit: (digit.axis, digit.stride)))


def chained(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Return digits, the lowest first, with each that goes on where the last one ends joined to it.

    Digits of one value are left out.
    """
    joined: list[Digit] = []
    for digit in digits:
        below = joined[-1] if joined else None
        if digit.size == 1:
            continue
        if below is not None and below.axis == digit.axis and below.span == digit.stride:
            joined[-1] = Digit(digit.axis, below.size * digit.size, below.stride)
        else:
            joined.append(digit)
    return tuple(joined)


#: A link in one direction: where it starts, the dimension it goes along, and up or down.
Wire = tuple[Coordinate, int, int]


def links_between(
    start: Coordinate, end: Coordinate, axes: Sequence[PhysicalAxis]
) -> Iterator[Wire]:
    """Yield the links on the way: one dimension after the other, each the shorter way around.

    Up where both ways are as long.
    """
    at = list(start)
    for dim, axis in enumerate(axes):
        distance = abs(end[dim] - at[dim])
        goes_around = axis.wraps and 2 * distance > axis.extent
        is_up = (end[dim] > at[dim]) != goes_around
        if axis.wraps and 2 * distance == axis.extent:
            is_up = True
        for _ in range(axis.hops(at[dim], end[dim])):
            yield tuple(at), dim, 1 if is_up else -1
            at[dim] = (at[dim] + (1 if is_up else -1)) % axis.extent


# A mesh whose devices are listed: digits where the list has some, else what its groups touch.
#
# Most lists are an order that digits could have said, perhaps with a ring in it: then the groups
# of a mesh axis are translates of one another, and everything is known of them as of any
# placement. Of others each group is looked at, and figures are those of the worst one.


Group = tuple[Coordinate, ...]
#: Kinds of links, from those between the largest parts of a machine on.
_KINDS: tuple[Link, ...] = ("dcn", "ici", "nvlink", "memory", "chip")


class Laid(NamedTuple):
    """A mesh axis of a list: its digits, and the offset of each of its indices."""

    digits: tuple[Digit, ...]
    route: tuple[Coordinate, ...]


def in_digits(
    sizes: Sequence[int], places: Sequence[Coordinate], machine: Machine
) -> tuple[Laid, ...] | None:
    """Return each axis with its digits; None where groups are no translates of one another.

    Args:
      sizes: of the mesh axes.
      places: the device of each place of the mesh, row-major.
    """
    if any(places[0]):
        return None
    found = []
    below = len(places)
    for size in sizes:
        below //= size
        route = places[: size * below : below]
        digits = _digits(route, machine)
        if digits is None:
            return None
        found.append(Laid(digits, tuple(route)))
    are_translates = summed([each.route for each in found], len(machine)) == tuple(places)
    return tuple(found) if are_translates else None


def _digits(route: Sequence[Coordinate], machine: Machine) -> tuple[Digit, ...] | None:
    """Return the digits that reach these offsets, in any order; None where none do."""
    digits = []
    for index in range(len(machine)):
        reached, stride = sorted({place[index] for place in route}), 1
        while len(reached) > 1:
            step = reached[1]
            size = next(
                (at for at, value in enumerate(reached) if value != at * step), len(reached)
            )
            digits.append(Digit(index, size, stride * step))
            kept = [value for value in reached if value % (size * step) == 0]
            if len(kept) * size != len(reached):
                return None
            reached, stride = [value // (size * step) for value in kept], stride * size * step
    digits.sort(key=lambda digit: (digit.axis, -digit.stride))
    is_box = math.prod(digit.size for digit in digits) == len(route)
    return tuple(digits) if is_box and len(set(route)) == len(route) else None


def groups(mesh: Mesh, places: Sequence[Coordinate], mesh_axes: Sequence[str]) -> Iterator[Group]:
    """Yield the devices that differ in nothing but their index on these axes, in that order."""
    sizes = [axis.size for axis in mesh.axes]
    strides = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    own = [mesh.names.index(name) for name in mesh_axes]
    others = [at for at in range(len(sizes)) if at not in own]

    def starts(axes: Sequence[int]) -> list[int]:
        steps = ([index * strides[at] for index in range(sizes[at])] for at in axes)
        return [sum(each) for each in itertools.product(*steps)]

    inner = starts(own)
    for outer in starts(others):
        yield tuple(places[outer + at] for at in inner)


class Stretches(NamedTuple):
    """What the groups of mesh axes touch of the machine, the worst of them.

    Attributes:
      ways: how many parts of a group links of each kind join.
      one_way, both_ways: how many steps share the busiest link of the torus, of all groups' rings.
      hops: links from each device of a group to the next, and from the last to the first; the
        most of all groups, at each step.
      mean_hops: between any two devices of a group, on the torus.
      diameter: the most that two places of a group may be apart.
      lanes: directions that a device may send in at once.
    """

    ways: dict[Link, int]
    one_way: int
    both_ways: int
    hops: tuple[int, ...]
    hosts: int
    mean_hops: float
    diameter: int
    lanes: int


def stretches(
    mesh: Mesh, places: Sequence[Coordinate], machine: Machine, mesh_axes: Sequence[str]
) -> Stretches:
    """Return what the groups of these mesh axes touch, of a mesh with these devices."""
    found = tuple(groups(mesh, places, mesh_axes))
    torus = [at for at, axis in enumerate(machine) if axis.link == "ici"]
    there, back = Counter[object](), Counter[object]()
    for group in found:
        for one, other in zip(group, (*group[1:], group[0]), strict=True):
            there.update(_wires(one, other, torus, machine))
            back.update(_wires(other, one, torus, machine))
    steps = [route_hops(group, machine) for group in found]
    spread = [_spread(group, torus, machine) for group in found]
    return Stretches(
        _ways(found, machine),
        max(there.values(), default=1),
        max((there + back).values(), default=1),
        tuple(map(max, zip(*steps, strict=True))),
        max(len({_host(place, machine) for place in group}) for group in found),
        max(max(mean for mean, _ in spread), 1 / len(found[0])),
        max(far for _, far in spread),
        sum(2 if machine[at].wraps else 1 for at in torus) or 1,
    )


def _ways(found: Sequence[Group], machine: Machine) -> dict[Link, int]:
    """Return how many parts of a group each kind of link joins: the slowest, then what is left."""
    ways: dict[Link, int] = {}
    known = 1
    whole: tuple[int, ...] = ()
    for link in _KINDS:
        whole = (*whole, *(at for at, axis in enumerate(machine) if axis.link == link))
        parts = max(len({tuple(p[at] for at in whole) for p in group}) for group in found)
        ways[link] = -(-parts // known)
        known = max(known, parts)
    return ways


def _wires(
    start: Coordinate, end: Coordinate, torus: Sequence[int], machine: Machine
) -> Iterator[object]:
    """Yield the links of the torus between two devices of one slice."""
    if start[0] == end[0]:
        axes = [machine[at] for at in torus]
        here, there = (tuple(place[at] for at in torus) for place in (start, end))
        for wire in links_between(here, there, axes):
            yield start[0], wire


def _host(place: Coordinate, machine: Machine) -> Coordinate:
    return tuple(at // axis.host for at, axis in zip(place, machine, strict=True))


def _spread(group: Group, torus: Sequence[int], machine: Machine) -> tuple[float, int]:
    """Return the mean hops between any two devices on the torus, and the most there may be."""
    mean, far = 0.0, 0
    for at in torus:
        counts = Counter(place[at] for place in group)
        pairs = [
            (machine[at].hops(one, other), counts[one] * counts[other])
            for one, other in itertools.product(counts, counts)
        ]
        mean += sum(hops * many for hops, many in pairs) / len(group) ** 2
        far += max(hops for hops, _ in pairs)
    return mean, far
