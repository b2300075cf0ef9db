"""How a mesh axis runs over a machine: digits of physical coordinates.

A physical axis of 8 chips shared by two mesh axes is a number of two digits: 8 = 4 x 2. Which
mesh axis owns which digit is the whole of a placement. The coordinate along the physical axis
is the sum of digit x stride over its digits, so every mesh axis contributes an offset of its
own, and the device at a mesh index is the sum of the offsets: no carry, ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Coordinate = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Digit:
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


def covers_once(digits: Sequence[Digit], extents: Sequence[int]) -> bool:
    """Say whether the digits of each physical axis count every coordinate of it exactly once."""
    for axis, extent in enumerate(extents):
        own = sorted(
            (digit for digit in digits if digit.axis == axis and digit.size > 1), key=_stride
        )
        reached = 1
        for digit in own:
            if digit.stride != reached:
                return False
            reached = digit.span
        if reached != extent:
            return False
    return True


def joined_digits(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Return digits of one physical axis that follow on each other as one, by axis and stride.

    >>> joined_digits([Digit(0, 2, 2), Digit(0, 2, 1), Digit(1, 2, 4)])
    (Digit(axis=0, size=4, stride=1), Digit(axis=1, size=2, stride=4))
    """
    joined: list[Digit] = []
    for digit in sorted(digits, key=lambda digit: (digit.axis, digit.stride)):
        below = joined[-1] if joined else None
        if digit.size == 1:
            continue
        if below is not None and below.axis == digit.axis and below.span == digit.stride:
            joined[-1] = Digit(digit.axis, below.size * digit.size, below.stride)
        else:
            joined.append(digit)
    return tuple(joined)


def digits_of(places: Iterable[Coordinate]) -> tuple[Digit, ...] | None:
    """Return the digits that count a group of devices; None where it is no such group.

    For judging an order that someone else made: only the set of places counts.

    >>> digits_of([(0, 5), (0, 1), (2, 1), (2, 5)])
    (Digit(axis=0, size=2, stride=2), Digit(axis=1, size=2, stride=4))
    """
    group = set(places)
    columns = [sorted(set(column)) for column in zip(*group, strict=True)]
    digits = [
        digit
        for axis, values in enumerate(columns)
        for digit in _digits_along(axis, [value - values[0] for value in values])
    ]
    corner = [values[0] for values in columns]
    moved = {tuple(map(int.__sub__, place, corner)) for place in group}
    return tuple(digits) if moved == set(digit_offsets(digits, len(columns))) else None


def _digits_along(axis: int, values: Sequence[int]) -> Iterator[Digit]:
    while len(values) > 1:
        stride = values[1]
        size = next((n for n, value in enumerate(values) if value != n * stride), len(values))
        yield Digit(axis, size, stride)
        values = values[::size]


def _stride(digit: Digit) -> int:
    return digit.stride
