"""What is known of how fast a kind of chip is, beyond the figures of its datasheet.

A matmul reaches the speed of the machine only where its sizes are large enough: one dimension that
a mesh axis made thin, and the multipliers wait. How much of the speed is left is a table, which a
compiler's estimates fill, or measurements, for matmuls [m, k] x [k, n] over a grid of sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MatmulTable:
    """The share of the roofline that matmuls of one dtype reach, by their sizes.

    The roofline is the longer of what the FLOPs take at the peak, and what the bytes of both
    operands and the result take to and from memory.

    Attributes:
      dtype: of the operands.
      m: rows of the left operand, ascending.
      k: what is contracted.
      n: columns of the right operand.
      shares: in (0, 1], for each m each k, and for each of these each n.
      spread: of measured ones, the median over the sizes of what lies between the fastest and the
        slowest run, as a share of the median run.
      operations: that it is of, where it is of those of a run; else 0.

    Invariants:
      exact: at a point of the grid, `share` is what the table holds there.
      between: elsewhere it is none but between the shares at the corners around it, and where these
        ascend along a size, so does it.
    """

    dtype: str
    m: Sizes
    k: Sizes
    n: Sizes
    shares: tuple[float, ...]
    spread: float = 0.0
    operations: int = 0

    def share(self, m: float, k: float, n: float) -> float:
        """Return the share at sizes that need not be on the grid; beyond its edge that of the edge.

        Times grow by factors, and so do sizes: between points both are taken by their logarithms.
        """
        return _share(self, m, k, n)


@lru_cache(maxsize=1 << 16)
def _share(table: MatmulTable, m: float, k: float, n: float) -> float:
    columns, planes = len(table.n), len(table.k) * len(table.n)
    around = product(_around(table.m, m), _around(table.k, k), _around(table.n, n))
    corners = [
        (table.shares[row * planes + inner * columns + column], by_m * by_k * by_n)
        for (row, by_m), (inner, by_k), (column, by_n) in around
    ]
    shares = [share for share, _ in corners]
    if len(corners) == 1:
        return shares[0]
    found = math.exp(sum(weight * math.log(share) for share, weight in corners))
    return min(max(shares), max(min(shares), found))


def _around(sizes: Sequence[int], size: float) -> tuple[tuple[int, float], ...]:
    """Return the points next to a size by their numbers, with what each counts for."""
    above = bisect_right(sizes, size)
    if above == 0:
        return ((0, 1.0),)
    if above == len(sizes) or sizes[above - 1] == size:
        return ((above - 1, 1.0),)
    low, high = sizes[above - 1], sizes[above]
    weight = math.log(size / low) / math.log(high / low)
    return (above - 1, 1.0 - weight), (above, weight)


class Spread(NamedTuple):
    """A figure that was measured several times.

    Attributes:
      operations: that it is of, where it is of those of a run; else 0.

    Invariants:
      range: low <= median <= high.
    """

    median: float
    low: float
    high: float
    operations: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """How long a collective takes, by what it carries.

    Attributes:
      kind: as XLA spells it.
      mesh_axes: over which it goes.
      payloads: bytes of the array on one device where it is largest, ascending.
      seconds: of each of these.

    Invariants:
      exact: at a payload that was measured, `at` is its median.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    payloads: Sizes
    seconds: tuple[Spread, ...]

    def at(self, payload_bytes: float) -> float:
        """Return the seconds of one run.

        Between two payloads both are taken by their logarithms. What is smaller than the smallest
        takes as long as that: it is the way that takes the time; above the largest, time grows as
        bytes do.
        """
        around = _around(self.payloads, payload_bytes)
        found = math.exp(sum(weight * math.log(self.seconds[at].median) for at, weight in around))
        return found * max(1.0, payload_bytes / self.payloads[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How fast the devices of one kind of chip are, found out on a day.

    Attributes:
      chip: as the catalogue calls it: `v5e`.
      device_kind: as JAX calls it.
      date: `2026-11-22`.
      how: by what the figures were found, for people.
      versions: of what took part, by package.
      machine: what was measured, as `hardware:` of a spec has it; empty where nothing was.
      mesh: of the target whose axes the collectives go over.
      flops_per_s: of one device, the most that a matmul reached, by dtype; only of chips that the
        catalogue has no peak of.
      hbm_bytes_per_s: of one device.
      exposed: the share of the collectives that no computation hid, of a run.
      title: of another chip than the catalogue's, which is like it but for `figures`.
      figures: of one chip, in place of the catalogue's, by the names that `Chip` has for them.
    """

    chip: str
    device_kind: str
    date: str
    how: str
    versions: tuple[tuple[str, str], ...] = ()
    matmuls: tuple[MatmulTable, ...] = ()
    machine: str = ""
    mesh: str = ""
    flops_per_s: tuple[tuple[str, float], ...] = ()
    hbm_bytes_per_s: Spread | None = None
    curves: tuple[Curve, ...] = ()
    exposed: Spread | None = None
    title: str = ""
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def described(self) -> Calibration:
        """Return what is stated of the chip, without what was measured."""
        told = (self.chip, self.device_kind, self.date, self.how)
        return Calibration(*told, title=self.title, figures=self.figures)

    @property
    def is_measured(self) -> bool:
        """Say whether devices were measured, and no compiler asked."""
        return bool(self.machine)

    @property
    def is_stated(self) -> bool:
        """Say whether it states figures of a chip in place of the catalogue's."""
        return bool(self.title or self.figures)

    @property
    def is_own(self) -> bool:
        """Say whether it is the user's: measured, or stated in place of the catalogue."""
        return self.is_measured or self.is_stated

    def __str__(self) -> str:
        """Return where the figures are from."""
        if self.is_measured:
            return f"calibrated {self.date} by {self.how}"
        return f"figures of {self.title or self.chip} stated {self.date} by {self.how}"

    def curve(self, kind: str, mesh_axes: tuple[str, ...]) -> Curve | None:
        """Return how long a collective over mesh axes takes; None where it was not measured."""
        found = self.nearest(kind, mesh_axes)
        is_it = found is not None and found.kind == kind and set(found.mesh_axes) == set(mesh_axes)
        return found if is_it else None

    def nearest(self, kind: str, mesh_axes: tuple[str, ...]) -> Curve | None:
        """Return the curve of the likest collective: first by its mesh axes, then by its kind."""

        def unlike(each: Curve) -> tuple[int, bool]:
            return len(set(each.mesh_axes) ^ set(mesh_axes)), each.kind != kind

        return min(self.curves, key=unlike, default=None)
