"""A walk through the chips of a tile in which neighbours touch: `order: ring`.

T5X counts a tile row by row, so at the end of every row the next chip is a row's length away.
A Hamiltonian cycle visits the same chips with one hop a step, the last step included. There is
one in every box with an even number of chips and two sides; else this gives a path (one hop a
step, but the ends do not meet).
"""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, ...]


def ring_walk(sizes: Sequence[int]) -> tuple[Place, ...]:
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


def snake(sizes: Sequence[int]) -> list[Place]:
    """Return a path through a box that turns around at the end of every row."""
    path: list[Place] = [()]
    for size in sizes:
        path = [
            (*place, value)
            for turn, place in enumerate(path)
            for value in (range(size) if turn % 2 == 0 else reversed(range(size)))
        ]
    return path


def _cycle(sizes: Sequence[int]) -> list[Place]:
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


def _insert(place: Place, index: int, value: int) -> Place:
    return (*place[:index], value, *place[index:])
