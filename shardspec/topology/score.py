"""How good a mesh axis lies on the machine: one stated score, smaller is better.

In this order: no DCN inside an axis that did not ask for it; all devices of a chip together
(their own link is faster than ICI); whole wrapped rings; then compact, which is most links at
work and then the shortest diameter; then fewest hosts. Mesh axes are compared from the last to
the first, since by convention the last talks most.

Links are counted as in a ring all-gather: a closed ring sends both ways (2), a line is worth 1,
a ring that takes every second chip shares each link with another ring (half as much). Two
devices of a chip whose rings differ share the chip's links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardspec.topology.digit import Digit, joined_digits
from shardspec.topology.machine import Machine, PhysicalAxis


@dataclass(frozen=True, slots=True, order=True)
class AxisScore:
    """The score of one mesh axis; tuples of these compare placements.

    Attributes:
      dcn_ways: how many ways the axis is split over DCN, unasked; 1 is none.
      chip_groups: groups of the axis that meet in one chip; 1 where it has the chip to itself.
      open_runs: 0 where every stretch of torus is a whole ring (or a whole row of two), else 1.
      minus_links: links at work per device, negated; minus infinity inside a chip or switch.
      diameter: hops between the two devices farthest apart.
      hosts: hosts that one group touches.
    """

    dcn_ways: int
    chip_groups: int
    open_runs: int
    minus_links: float
    diameter: int
    hosts: int

    @property
    def links(self) -> float:
        """Return the ICI links at work per device."""
        return -self.minus_links


def is_ring(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit goes all the way around its physical axis."""
    return axis.wraps and digit.span == axis.extent and digit.size > 2


def is_whole(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit is a whole wrapped row of chips, or a whole row of two."""
    return digit.size == axis.extent and (axis.wraps or digit.size == 2)


def score_axis(digits: Sequence[Digit], machine: Machine, *, asks_dcn: bool = False) -> AxisScore:
    """Return the score of a mesh axis that runs over `digits`.

    Args:
      asks_dcn: whether the spec says `@ dcn`, so that DCN costs nothing.
    """
    digits = joined_digits(digits)
    torus = [digit for digit in digits if machine[digit.axis].link == "ici"]
    dcn = math.prod(digit.size for digit in digits if machine[digit.axis].link == "dcn")
    links = sum((2 if is_ring(digit, machine[digit.axis]) else 1) / digit.stride for digit in torus)
    shared = links_shared(digits, machine)
    return AxisScore(
        dcn_ways=1 if asks_dcn else dcn,
        chip_groups=shared,
        open_runs=int(not all(is_whole(digit, machine[digit.axis]) for digit in torus)),
        minus_links=-links / shared if torus else -math.inf,
        diameter=sum(_reach(digit, machine[digit.axis]) for digit in torus),
        hosts=host_count(digits, machine),
    )


def links_shared(digits: Iterable[Digit], machine: Machine) -> int:
    """Return how many groups of a mesh axis use the links of one chip at once."""
    cores = math.prod(axis.extent for axis in machine if axis.link == "chip")
    own = math.prod(digit.size for digit in digits if machine[digit.axis].link == "chip")
    return max(1, cores // own)


def _reach(digit: Digit, axis: PhysicalAxis) -> int:
    steps = digit.size // 2 if is_ring(digit, axis) else digit.size - 1
    return steps * digit.stride


def host_count(digits: Sequence[Digit], machine: Machine) -> int:
    """Return the hosts that a group touches, at most, wherever the group lies."""
    count = 1
    for index, axis in enumerate(machine):
        own = [digit for digit in digits if digit.axis == index and digit.size > 1]
        if own:
            count *= _hosts_along(own, axis)
    return count


def _hosts_along(digits: Sequence[Digit], axis: PhysicalAxis) -> int:
    steps = {0}
    for digit in digits:
        steps = {step + digit.stride * value for step in steps for value in range(digit.size)}
    taken = {digit.stride: digit.size for digit in digits}
    bases = [0]
    stride = 1
    while stride < axis.extent:
        size = taken.get(stride)
        if size is not None:
            stride *= size
            continue
        above = min((other for other in taken if other > stride), default=axis.extent)
        bases = [base + stride * value for base in bases for value in range(above // stride)]
        stride = above
    return max(len({(base + step) // axis.host for step in steps}) for base in bases)
