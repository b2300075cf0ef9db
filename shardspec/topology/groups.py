"""Which group every device belongs to, and where in it: what a drawing shows.

The axis that is drawn is the last one inside a slice with more than one device; a group is one
ring of that axis, the devices that differ in nothing but their index on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardspec.topology.digit import Coordinate
from shardspec.topology.placement import Placement


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


def seats(placement: Placement, axis: str | None = None) -> dict[Coordinate, Seat]:
    """Return the seat of every device, for the mesh axis `axis` or the one that is drawn."""
    name = axis or drawn_axis(placement)
    sizes = [placed.axis.size for placed in placement.axes]
    names = [placed.axis.name for placed in placement.axes]
    if name is None:
        return {place: Seat(0, 0) for place in placement.coordinates()}
    index = names.index(name)
    below, size = math.prod(sizes[index + 1 :]), sizes[index]
    found = {}
    for number, place in enumerate(placement.coordinates()):
        outer, inner = divmod(number, below * size)
        position, after = divmod(inner, below)
        found[place] = Seat(outer * below + after, position)
    return found
