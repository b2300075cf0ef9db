"""A mesh whose devices are listed: digits where the list has some, else what its groups touch.

Most lists are an order that digits could have said, perhaps with a ring in it: then the groups of a
mesh axis are translates of one another, and everything is known of them as of any placement. Of
others each group is looked at, and figures are those of the worst one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.ir.spec import Mesh
from shardspec.topology.machine import (
    Coordinate,
    Digit,
    Link,
    Machine,
    links_between,
    route_hops,
    summed,
)

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
