"""How long a collective takes over the links between the devices of its mesh axes.

Devices of a group are joined by links of several kinds: the inside of a chip, the torus (ICI) or
NVLink, and DCN. A collective goes over one kind after the other, so that the slowest carries least:
a gather fetches over DCN first, while the parts are small, and fills up inside a slice. Each such
stretch is a leg.

On the torus a leg goes around a ring, through the devices in the order in which the mesh axis
counts them, both ways at once. A step to a device that is not a neighbour crosses several links,
which steps of other rings want at the same time: the walk routes every step of every group, and
the link that most of them share sets the pace. Where a group is several whole wrapped
dimensions, a ring runs along each of them at once. This is what tells apart two tiles of one size:
how often the walk has to go back, and what is left for the rings of the other mesh axes. There is
no constant in it but the speed of a link.

Source: "How to Scale Your Model" (jax-ml.github.io/scaling-book), parts 3 and 12: costs of
collectives on a ring, all-to-all, latency, NVLink domains. The walk is judged by the 17 measured
throughputs of T5 11B on a v4-512 in "JAX at scale on TPUs, outside of Google", which differ in
submesh and batch: 128 of 136 pairs are in their order (`benchmarks/t5_submeshes.py`), 117 by a
model that knows only how large the axes are.
"""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import add, mul
from typing import NamedTuple

from shardspec.ir.operations import CollectiveKind
from shardspec.ir.spec import Hardware
from shardspec.topology import machine as machines
from shardspec.topology import placement as placements
from shardspec.topology.assignment import is_ring, reach
from shardspec.topology.by_hand import free_digits
from shardspec.topology.machine import Coordinate, Digit, Link, Machine, PhysicalAxis, joined_digits
from shardspec.topology.placement import AxisPlacement, Placement, route_of

#: What one hop takes, however little is sent.
#: Source: "How to Scale Your Model", part 3: about 1 us a hop on ICI.
HOP_SECONDS = 1e-6

#: What one step of a ring takes between GPUs, and the start of each collective, beside its bytes.
#: Source: NVIDIA NCCL 2.12, src/graph/tuning.cc, by which NCCL chooses its algorithms: rings of
#: LL128, 10 us and 1.9 us a step on NVLink, 4 us on the network.
START_SECONDS = 10e-6
STEP_SECONDS: Mapping[Link, float] = {"nvlink": 1.9e-6, "dcn": 4e-6}

#: The fastest first.
LINKS: tuple[Link, ...] = ("chip", "nvlink", "ici", "dcn")


@dataclass(frozen=True, slots=True)
class Leg:
    """The links of one kind under a group of devices.

    Attributes:
      ways: how many parts of the group they join.
      bytes_per_s: of one device, one way, in a ring; what other groups take of a link counted.
      pairs_bytes_per_s: the same where every device sends to every other.
      shift_bytes_per_s: the same where every device sends to the next one only.
      diameter: hops to the device farthest away.
    """

    link: Link
    ways: int
    bytes_per_s: float
    pairs_bytes_per_s: float
    shift_bytes_per_s: float
    diameter: int = 0


def legs(placement: Placement, mesh_axes: Sequence[str]) -> tuple[Leg, ...] | None:
    """Return the legs of a collective over mesh axes, the fastest links first.

    None where the catalogue has no speed of a link that it goes over.
    """
    if placement.listed:  # groups are no translates of one another: those of the worst group
        lies = machines.stretches(placement.mesh, placement.listed, placement.machine, mesh_axes)
        ways, torus = lies.ways, partial(_listed_torus, placement, lies)
    else:
        placed = [placement.axis(name) for name in mesh_axes]
        digits = [digit for each in placed for digit in each.digits]
        ways = dict.fromkeys(LINKS, 1)
        for digit in digits:
            link = placement.machine[digit.axis].link
            ways[link] = ways.get(link, 1) * digit.size
        torus = partial(_torus, placement.hardware, _walk(placed))
    found: list[Leg] = []
    for link in LINKS:
        if ways[link] > 1:
            leg = torus() if link == "ici" else _joined(placement, ways[link], link)
            if leg is None:
                return None
            found.append(leg)
    return tuple(found) if ways.get("memory", 1) == 1 else None


def _listed_torus(placement: Placement, lies: machines.Stretches) -> Leg | None:
    """Return the leg over the torus of groups that were looked at one by one."""
    chip, ways = placement.hardware.chip, lies.ways["ici"]
    speed = chip.link_bytes_per_s
    if speed is None:
        return None
    pairs = speed / chip.devices_per_chip * lies.lanes * (ways - 1) / ways / lies.mean_hops
    ring, shift = speed * 2 / lies.both_ways, speed / lies.one_way
    return Leg("ici", ways, ring, pairs, shift, lies.diameter)


def walk_seconds(kind: CollectiveKind, payload_bytes: float, stretch: Sequence[Leg]) -> float:
    """Return how long one run of a collective takes over its legs.

    A ring of n parts passes on (n - 1) / n of what a leg carries, an all-reduce does so twice; the
    next, slower leg carries one part of n. Of what every device sends to every other, the part
    that leaves its own part of the group goes over the slower leg. What is small takes as long as
    its way: a hop has a least time.

    Args:
      payload_bytes: of the array on one device where it is largest, as `ring_bytes` has it.

    Invariants:
      monotone: more bytes never take less time.
    """
    traits, seconds, inside = kind.traits, 0.0, 1
    if traits.way == "shift":
        return max((payload_bytes / leg.shift_bytes_per_s for leg in stretch), default=0.0)
    for leg in stretch:
        sent = traits.turns * payload_bytes * (leg.ways - 1) / leg.ways
        is_ring = traits.way == "ring"
        sent /= leg.bytes_per_s * inside if is_ring else leg.pairs_bytes_per_s
        seconds += max(sent, traits.turns * leg.diameter * HOP_SECONDS)
        inside *= leg.ways
    return seconds


def start_seconds(placement: Placement, kind: CollectiveKind, stretch: Sequence[Leg]) -> float:
    """Return what a collective between GPUs takes beside its bytes.

    It counts where a product waits for one. Gradients and weights go many at a time.
    """
    if placement.hardware.chip.platform != "gpu":
        return 0.0
    steps = sum((leg.ways - 1) * STEP_SECONDS.get(leg.link, 0.0) for leg in stretch)
    return START_SECONDS + kind.traits.turns * steps


def _joined(placement: Placement, ways: int, link: Link) -> Leg | None:
    """Return a leg over links that join any two devices alike."""
    chip = placement.hardware.chip
    speed = {
        "chip": chip.pair_bytes_per_s or math.inf,
        "nvlink": chip.speed_between(ways),
        "dcn": placements.network_per_device(placement.hardware),
    }[link]
    if speed is None:
        return None
    shift = chip.speed_between(2) if link == "nvlink" else speed
    return Leg(link, ways, speed, speed, shift or speed)


class _Part(NamedTuple):
    """Digits that are counted along a ring, or along a route that a list states.

    Attributes:
      digits: they say where the groups of all other axes begin, too.
    """

    digits: tuple[Digit, ...]
    route: tuple[Coordinate, ...] = ()


#: Row by row, each digit is a part of its own.
_Walk = tuple[_Part, ...]


def _walk(placed: Sequence[AxisPlacement]) -> _Walk:
    """Return the walk of some mesh axes, the slowest part first."""
    found: list[_Part] = []
    for each in placed:
        digits = machines.chained(reversed(each.digits))[::-1]
        is_one = each.stated is not None or each.order == "ring"
        parts = [digits] if is_one and digits else [(digit,) for digit in digits]
        found += [_Part(part, each.stated or ()) for part in parts]
    return tuple(found)


@lru_cache(maxsize=1 << 12)
def _torus(hardware: Hardware, walk: _Walk) -> Leg | None:
    """Return the leg over the torus; the devices of one chip share its links."""
    machine, chip = machines.machine_of(hardware), hardware.chip
    own = [digit for part in walk for digit in part.digits]
    digits = [digit for digit in own if machine[digit.axis].link == "ici"]
    if chip.link_bytes_per_s is None:
        return None
    link = chip.link_bytes_per_s / chip.devices_per_chip
    runs = [(digit, machine[digit.axis]) for digit in joined_digits(digits)]
    ways = math.prod(digit.size for digit in digits)
    if all(is_ring(digit, axis) for digit, axis in runs):
        ring = sum(2 / digit.stride for digit, _ in runs)
        shift = 1 / max(digit.stride for digit, _ in runs)
    else:
        forward, both = _most_shared(machine, walk)
        ring, shift = 2 / both, 1 / forward
    distance = sum(_mean_distance(digit, axis) for digit, axis in runs)
    lanes = sum(2 if is_ring(digit, axis) else 1 for digit, axis in runs)
    return Leg(
        "ici",
        ways,
        link * ring,
        link * lanes * (ways - 1) / ways / distance,
        link * shift,
        sum(reach(digit, axis) for digit, axis in runs),
    )


#: A number for each place on the torus, x slowest, in 32 bits of one integer: two sums are one
#: addition, and to move all along a dimension takes two shifts.
_Grid = int


def _most_shared(machine: Machine, walk: _Walk) -> tuple[int, int]:
    """Return how many steps share the busiest link: of rings that go one way, and both ways.

    The walk is counted on the smallest torus that has it. A dimension that it does not go along is
    left out. Of several tiles along a dimension one is enough, a line that no step leaves. Every
    `n`-th place of a dimension is a dimension of its own, whose links `n` walks share.
    """
    joined = joined_digits(digit for part in walk for digit in part.digits)
    torus = [digit for digit in joined if machine[digit.axis].link == "ici"]
    every = {digit.axis: digit.stride for digit in reversed(torus)}
    seats = {at: seat for seat, at in enumerate(sorted(every))}
    lines = []
    for at, span in {digit.axis: digit.span for digit in torus}.items():
        wraps = machine[at].wraps and span == machine[at].extent
        lines.append(PhysicalAxis("", span // every[at], "ici", wraps))
    parts = []
    for digits, route in walk:
        own = [digit for digit in digits if digit.axis in seats]
        scaled = (Digit(seats[at], size, stride // every[at]) for at, size, stride in own)
        places = (tuple(place[at] // every[at] for at in seats) for place in route)
        parts += [_Part(tuple(scaled), tuple(dict.fromkeys(places)))] if own else []
    strides = [every[at] for at in seats]
    one_way, both_ways = _loads(tuple(lines), tuple(parts))
    return max(map(mul, one_way, strides)), max(map(mul, both_ways, strides))


@lru_cache(maxsize=1 << 12)
def _loads(axes: Machine, walk: _Walk) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many steps share the busiest link of each dimension: one way, and both ways."""
    extents = tuple(axis.extent for axis in axes)
    one_way: dict[tuple[int, int], _Grid] = {}
    other_way: dict[tuple[int, int], _Grid] = {}
    for step, starts in _starts_by_step(axes, walk).items():
        here = tuple(max(0, -by) for by in step)
        there = tuple(map(add, here, step))
        for way, start, end in ((one_way, here, there), (other_way, there, here)):
            for place, dim, sign in machines.links_between(start, end, axes):
                load = _from(starts, here, place, extents)
                way[dim, sign] = way.get((dim, sign), 0) + load
    both_ways = {
        wire: one_way.get(wire, 0) + other_way.get(wire, 0) for wire in one_way | other_way
    }
    return _most(one_way, extents), _most(both_ways, extents)


def _starts_by_step(axes: Machine, walk: _Walk) -> dict[Coordinate, _Grid]:
    """Return where rings take each of their steps; links on the way depend on the step alone.

    All groups go the same ring, each from a corner of its own. A ring counts as a number does: a
    part of it goes on at all values of the parts above, when the parts below start again.
    """
    bits = [32 * math.prod(axis.extent for axis in axes[at + 1 :]) for at in range(len(axes))]
    parts = [part.route or route_of(part.digits, axes, "ring") for part in walk]
    ends = [*itertools.accumulate((part[-1] for part in reversed(parts)), _plus)]
    found: dict[Coordinate, _Grid] = {}
    corners = 1
    for digit in free_digits([digit for part in walk for digit in part.digits], axes):
        by = digit.stride * bits[digit.axis]
        corners = sum(corners << value * by for value in range(digit.size))

    def take(start: Coordinate, end: Coordinate, corners: _Grid) -> None:
        step = tuple(
            (b - a) % axis.extent if axis.wraps else b - a
            for a, b, axis in zip(start, end, axes, strict=True)
        )
        found[step] = found.get(step, 0) + (corners << sum(map(mul, start, bits)))

    origin = (0,) * len(axes)
    take(ends[-1], origin, corners)
    for part, below in zip(parts, (*reversed(ends[:-1]), origin), strict=True):
        for here, there in itertools.pairwise(part):
            take(_plus(here, below), there, corners)
        corners = sum(corners << sum(map(mul, place, bits)) for place in part)
    return found


def _plus(place: Coordinate, offset: Coordinate) -> Coordinate:
    return tuple(map(add, place, offset))


def _most(loads: dict[tuple[int, int], _Grid], extents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the load of the busiest link of each dimension."""
    size, found = 4 * math.prod(extents), [0] * len(extents)
    for (dim, _), each in loads.items():
        found[dim] = max(found[dim], *array("I", each.to_bytes(size, sys.byteorder)))
    return tuple(found)


def _from(grid: _Grid, here: Coordinate, place: Coordinate, extents: tuple[int, ...]) -> _Grid:
    """Return a grid moved by the way from one place to another."""
    for dim, (start, end) in enumerate(zip(here, place, strict=True)):
        grid = _moved(grid, dim, end - start, extents)
    return grid


def _moved(grid: _Grid, dim: int, by: int, extents: tuple[int, ...]) -> _Grid:
    """Return a grid moved along a dimension, around its end."""
    by %= extents[dim]
    if by == 0:
        return grid
    bits = 32 * math.prod(extents[dim + 1 :])
    stays = grid & _mask(extents, dim, extents[dim] - by)
    return (stays << by * bits) | ((grid ^ stays) >> (extents[dim] - by) * bits)


@lru_cache(maxsize=1 << 8)
def _mask(extents: tuple[int, ...], dim: int, below: int) -> int:
    """Return the bits of places whose coordinate is below a bound."""
    lanes = 32 * math.prod(extents[dim + 1 :])
    lines = ((1 << 32 * math.prod(extents)) - 1) // ((1 << lanes * extents[dim]) - 1)
    return lines * ((1 << lanes * below) - 1)


@lru_cache(maxsize=1 << 10)
def _mean_distance(digit: Digit, axis: PhysicalAxis) -> float:
    """Return the mean hops between any two devices along a digit, itself included."""
    places = [value * digit.stride for value in range(digit.size)]
    pairs = itertools.product(places, places)
    return sum(axis.hops(one, other) for one, other in pairs) / digit.size**2
