"""A submesh (x, y, z, core) as the tile of the model axis: T5X's order, device for device.

The slice is cut into tiles of the submesh's shape. Inside a tile runs the model axis, over the
tiles the data axis. Each physical axis gets up to four digits, from the most significant down:
data over hosts, data inside a host, model over hosts, model inside a host; the split at hosts
keeps every host's devices a contiguous rectangle of the mesh. Two tile shapes (a whole row, a
whole plane) do without it: they turn the axes so that z is more major.

Source: google-research/t5x, partitioning.get_mesh, whose facts these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardspec.topology.digit import Digit

Path = Literal["plain", "tile-by-host", "swap-yz", "swap-xz"]
Factors = tuple[int, int, int, int]
_AXIS_NAMES = ("x", "y", "z", "core")


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tiling of one slice.

    Attributes:
      data: digits of the index of a tile, most significant first.
      model: digits of the index within a tile.
      path: which of the four ways made it.
    """

    data: tuple[Digit, ...]
    model: tuple[Digit, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class TilingFault:
    """Why a submesh does not tile a slice.

    Attributes:
      reason: `rank`, `factor` (does not divide the slice), `core` (a turned tile must take
        whole chips) or `host` (neither a factor nor a multiple of the host).
      message: the fact with its numbers.
      help: what would fit.
    """

    reason: Literal["rank", "factor", "core", "host"]
    message: str
    help: str


def axis_order(extents: Sequence[int], tile: Sequence[int]) -> tuple[tuple[int, ...], Path | None]:
    """Return the order of x, y, z, core that the tile asks for, and why it is turned.

    The path is None where the axes keep their order. Only (x, y, z, core) is ever turned.
    """
    gx, gy, gz, _ = extents
    mx, my, mz, _ = tile
    if (mx == gx > 1 and my == mz == 1) or (mx == 1 and my == gy > 1 and mz == gz > 1):
        return (0, 2, 1, 3), "swap-yz"
    if (my == gy > 1 and mx == mz == 1) or (my == 1 and mx == gx > 1 and mz == gz > 1):
        return (2, 1, 0, 3), "swap-xz"
    return (0, 1, 2, 3), None


def host_factors(extent: int, tile: int, host: int) -> Factors | None:
    """Return the sizes of the four digits of one axis, or None where hosts do not fit.

    >>> host_factors(8, 4, 2), host_factors(8, 2, 4), host_factors(6, 3, 2)
    ((2, 1, 2, 2), (2, 2, 1, 2), None)
    """
    tiles = extent // tile
    if tile >= host:
        return (tiles, 1, tile // host, host) if tile % host == 0 else None
    if host % tile:
        return None
    return (tiles // (host // tile), host // tile, 1, tile)


def tile_slice(
    extents: Sequence[int], tile: Sequence[int], host: Sequence[int] | None
) -> Tiling | TilingFault:
    """Return the tiling of a slice of `extents` by `tile`, in T5X's order, or why there is none.

    Args:
      host: extents of one host, to keep its devices together; None to leave hosts out.
    """
    if len(tile) != len(extents):
        return _rank_fault(extents, tile)
    if any(size < 1 or extent % size for extent, size in zip(extents, tile, strict=True)):
        return _factor_fault(extents, tile)
    order, path = axis_order(extents, tile) if len(extents) == 4 else (range(len(extents)), None)
    if path and tile[3] != extents[3]:
        return _core_fault(extents, tile)
    if path or host is None:
        factors = {axis: (extents[axis] // tile[axis], 1, tile[axis], 1) for axis in order}
        return _tiling(order, factors, path or "plain")
    fitted = {axis: host_factors(extents[axis], tile[axis], host[axis]) for axis in order}
    whole = {axis: factors for axis, factors in fitted.items() if factors is not None}
    if len(whole) < len(fitted):
        return _host_fault(tile, host)
    return _tiling(order, whole, "tile-by-host")


def _tiling(order: Sequence[int], factors: dict[int, Factors], path: Path) -> Tiling:
    """Return the digits: all data-over-hosts first, then data inside hosts; model alike."""
    kinds: list[tuple[Digit, ...]] = []
    for kind in range(4):
        digits = []
        for axis in order:
            stride = 1
            for below in factors[axis][kind + 1 :]:
                stride *= below
            digits.append(Digit(axis, factors[axis][kind], stride))
        kinds.append(tuple(digit for digit in digits if digit.size > 1))
    return Tiling((*kinds[0], *kinds[1]), (*kinds[2], *kinds[3]), path)


def _rank_fault(extents: Sequence[int], tile: Sequence[int]) -> TilingFault:
    names = ", ".join(_names(len(extents)))
    message = f"a submesh here has {len(extents)} sizes ({names}), not {len(tile)}"
    return TilingFault(
        "rank", message, f"write `submesh {'x'.join(map(str, extents))}` for all of it"
    )


def _factor_fault(extents: Sequence[int], tile: Sequence[int]) -> TilingFault:
    names = _names(len(extents))
    rows = [
        (name, extent, size)
        for name, extent, size in zip(names, extents, tile, strict=True)
        if size < 1 or extent % size
    ]
    facts = ", ".join(
        f"{name} has {extent} and {size} does not divide it" for name, extent, size in rows
    )
    fits = "; ".join(f"{name} in {_divisors(extent)}" for name, extent, _ in rows)
    if any(name == "core" and extent == 1 for name, extent, _ in rows):
        fits += " (core counts the JAX devices of a chip: one on this chip)"
    return TilingFault("factor", f"the submesh does not tile the slice: {facts}", fits)


def _core_fault(extents: Sequence[int], tile: Sequence[int]) -> TilingFault:
    message = (
        f"a submesh that is one whole row or plane of the slice must take all {extents[3]} devices "
        f"of a chip, but core is {tile[3]}"
    )
    whole = next(
        (
            (*tile[:axis], tile[axis] // extents[3], *tile[axis + 1 : 3], extents[3])
            for axis in range(3)
            if tile[axis] % extents[3] == 0 and tile[3] == 1
        ),
        (*tile[:3], extents[3]),
    )
    return TilingFault("core", message, f"write `submesh {'x'.join(map(str, whole))}`")


def _host_fault(tile: Sequence[int], host: Sequence[int]) -> TilingFault:
    names = _names(len(host))
    rows = [
        f"{name} is {size} and a host has {held}"
        for name, size, held in zip(names, tile, host, strict=True)
        if size % held and held % size
    ]
    message = f"the submesh cuts hosts apart: {', '.join(rows)}"
    return TilingFault("host", message, "each size must divide the host's, or be a multiple of it")


def _names(rank: int) -> tuple[str, ...]:
    return _AXIS_NAMES if rank == 4 else ("host", "device") if rank == 2 else _AXIS_NAMES[:rank]


def _divisors(number: int) -> str:
    return "{" + ", ".join(str(size) for size in range(1, number + 1) if number % size == 0) + "}"
