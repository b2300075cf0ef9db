"""Which slices of a TPU generation exist, and which of them an accelerator type means.

libtpu accepts shapes that nobody can rent, so the table is the catalogue's own: the small
slices one by one, and above them every box of whole cubes, sizes in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceShapes:
    """The slice shapes of one generation, in chips.

    Attributes:
      listed: the slices that are given one by one.
      rank: dimensions of a slice.
      cube: edge of the cubes that larger slices are made of; None where there are none.
      most_chips: the largest slice made of cubes.
      one_host: slices that a single host of the same shape serves.
    """

    listed: tuple[Shape, ...]
    rank: int = 0
    cube: int | None = None
    most_chips: int = 0
    one_host: tuple[Shape, ...] = ()

    def has(self, shape: Shape) -> bool:
        """Say whether there is a slice of this shape."""
        return shape in self.listed or self._is_box(shape)

    def _is_box(self, shape: Shape) -> bool:
        cube = self.cube
        return (
            cube is not None
            and len(shape) == self.rank
            and tuple(sorted(shape)) == shape
            and all(size > 0 and size % cube == 0 for size in shape)
            and math.prod(shape) <= self.most_chips
        )

    def every(self) -> Iterator[Shape]:
        """Yield every shape, the listed ones first."""
        yield from self.listed
        if self.cube is not None:
            yield from _boxes(self.cube, self.rank, self.most_chips)

    def of_size(self, chips: int) -> Shape | None:
        """Return the most compact slice of so many chips: the default topology of that size."""
        found = [shape for shape in self.every() if math.prod(shape) == chips]
        return min(found, key=lambda shape: (sum(shape), max(shape)), default=None)

    def near(self, shape: Shape, count: int = 4) -> tuple[Shape, ...]:
        """Return the shapes most like `shape`: the same number of chips first, then by size."""
        chips = max(1, math.prod(shape))

        def distance(other: Shape) -> tuple[float, int]:
            ratio = abs(math.log(math.prod(other) / chips))
            pairs = zip(sorted(shape), sorted(other), strict=False)
            return ratio, sum(abs(mine - its) for mine, its in pairs)

        return tuple(sorted(self.every(), key=distance)[:count])

    def sizes_near(self, chips: int, count: int = 4) -> tuple[int, ...]:
        """Return the numbers of chips of existing slices nearest to `chips`, ascending."""
        sizes = {math.prod(shape) for shape in self.every()}
        ranked = sorted(sizes, key=lambda size: abs(math.log(size / max(1, chips))))
        return tuple(sorted(ranked[:count]))


def _boxes(cube: int, rank: int, most: int, least: int = 1) -> Iterator[Shape]:
    """Yield every ascending shape of multiples of `cube` with at most `most` chips."""
    if rank == 0:
        yield ()
        return
    size = max(cube, least)
    while size**rank <= most:
        for rest in _boxes(cube, rank - 1, most // size, size):
            yield (size, *rest)
        size += cube


def parse_shape(text: object) -> Shape:
    """Return the sizes of `4x8x8`; a bare number is a shape of one dimension."""
    return tuple(int(size) for size in str(text).split("x"))
