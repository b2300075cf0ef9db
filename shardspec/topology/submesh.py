"""Tiles (x, y, z, core) of a slice: how a mesh axis runs over one, which fit, and the best.

The slice is cut into tiles of the submesh's shape. Inside a tile runs the model axis, over the
tiles the data axis. Each physical axis gets up to four digits, from the most significant down:
data over hosts, data inside a host, model over hosts, model inside a host; the split at hosts
keeps every host's devices a contiguous rectangle of the mesh. Two tile shapes (a whole row, a
whole plane) do without it: they turn the axes so that z is more major. For `auto N` all tiles of
N devices that divide the slice are compared by `score_axis`.

Source: google-research/t5x, partitioning.get_mesh and partitioning.default_mesh, whose facts these
are: the order of devices, and the table of submeshes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.ir.spec import Hardware, MeshAxis, divisors, shape_text
from shardspec.topology.assignment import AxisScore, factorings, score_axis
from shardspec.topology.machine import Digit, machine_of, slice_extents, slice_host

Path = Literal["plain", "tile-by-host", "swap-yz", "swap-xz"]
Tile = tuple[int, ...]
Factors = tuple[int, int, int, int]
_AXIS_NAMES = ("x", "y", "z", "core")
_HOST_FAULT = (
    "to tile the mesh by hosts, each dimension of the model parallel submesh must be either a "
    "factor or a multiple of the corresponding dimension of the per-host submesh"
)


class Tiling(NamedTuple):
    """A tiling of one slice.

    Attributes:
      data: digits of the index of a tile, most significant first.
      model: digits of the index within a tile.
      path: which of the four ways made it.
    """

    data: tuple[Digit, ...]
    model: tuple[Digit, ...]
    path: Path


class TilingFault(NamedTuple):
    """Why a submesh does not tile a slice.

    Attributes:
      reason: `factor` (does not divide the slice), `core` (a turned tile must take whole chips) or
        `host` (neither a factor nor a multiple of the host).
      message: the fact with its numbers.
      help: what would fit.
    """

    reason: Literal["factor", "core", "host"]
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
    extents: Sequence[int], tile: Tile, host: Sequence[int] | None
) -> Tiling | TilingFault:
    """Return the tiling of a slice of `extents` by `tile`, in T5X's order, or why there is none.

    Args:
      host: extents of one host, to keep its devices together; None to leave hosts out.
    """
    if any(size < 1 or extent % size for extent, size in zip(extents, tile, strict=True)):
        return _factor_fault(extents, tile)
    order, path = axis_order(extents, tile) if len(extents) == 4 else (range(len(extents)), None)
    if path and tile[3] != extents[3]:
        return _core_fault(extents, tile)
    hosts = (1,) * len(extents) if path or host is None else host
    fitted = {axis: host_factors(extents[axis], tile[axis], hosts[axis]) for axis in order}
    whole = {axis: factors for axis, factors in fitted.items() if factors is not None}
    if len(whole) < len(fitted):
        return TilingFault("host", _HOST_FAULT, "take a tile that leaves hosts whole")
    return _tiling(order, whole, path or ("plain" if host is None else "tile-by-host"))


def _tiling(order: Sequence[int], factors: dict[int, Factors], path: Path) -> Tiling:
    """Return the digits: all data-over-hosts first, then data inside hosts; model alike."""
    kinds: list[tuple[Digit, ...]] = []
    for kind in range(4):
        digits = (
            Digit(axis, factors[axis][kind], math.prod(factors[axis][kind + 1 :])) for axis in order
        )
        kinds.append(tuple(digit for digit in digits if digit.size > 1))
    return Tiling((*kinds[0], *kinds[1]), (*kinds[2], *kinds[3]), path)


def _factor_fault(extents: Sequence[int], tile: Tile) -> TilingFault:
    bad = [
        f"{name}: {want} does not divide {have}"
        for name, want, have in zip(_AXIS_NAMES, tile, extents, strict=False)
        if want < 1 or have % want
    ]
    message = f"submesh {shape_text(tile)} does not tile the slice: {'; '.join(bad)}"
    return TilingFault("factor", message, _fitting_tiles(extents, tile))


def _fitting_tiles(extents: Sequence[int], tile: Tile) -> str:
    """Return the tiles of the wanted size that do divide, or the divisors of each dimension."""
    fits = sorted(
        factorings(math.prod(tile), extents),
        key=lambda fit: sum(abs(a - b) for a, b in zip(fit, tile, strict=True)),
    )
    if fits:
        return f"these do: {', '.join(map(shape_text, fits[:4]))}"
    options = (", ".join(map(str, divisors(extent))) for extent in extents)
    rows = (f"{name}: {text}" for name, text in zip(_AXIS_NAMES, options, strict=False))
    return f"per dimension, one of {'; '.join(rows)}"


def _core_fault(extents: Sequence[int], tile: Tile) -> TilingFault:
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
    return TilingFault("core", message, f"write `submesh {shape_text(whole)}`")


def tiling_on(hardware: Hardware, tile: Tile) -> Tiling | TilingFault:
    """Return the tiling of one slice, hosts kept together where the tile lets them be."""
    extents = slice_extents(hardware)
    found = tile_slice(extents, tile, slice_host(hardware))
    cuts_hosts = isinstance(found, TilingFault) and found.reason == "host"
    return tile_slice(extents, tile, None) if cuts_hosts else found


def tile_fault(axis: MeshAxis, hardware: Hardware, *, is_alone: bool = True) -> Diagnostic | None:
    """Return what keeps the submesh of a mesh axis from tiling one slice.

    Args:
      is_alone: whether it is the only thing that a mesh states of its order; then T5X's order is
        taken, which has rules of its own.
    """
    tile, chip = axis.submesh or (), hardware.chip
    if chip.torus_rank == 0:
        message = f"`submesh` is a tile of a TPU torus, and {chip.title} has none"
        return point(codes.SUBMESH_TILING, message, axis.span, help=f"write `{axis.size}`")
    if len(tile) != len(_AXIS_NAMES):
        text = f"submesh {shape_text(tile)}"
        message = f"a submesh is (x, y, z, core), and `{text}` has {len(tile)} numbers"
        return point(codes.SUBMESH_TILING, message, axis.span, help="as in `submesh 4x2x2x1`")
    fault = tiling_on(hardware, tile)
    if isinstance(fault, Tiling) or (fault.reason != "factor" and not is_alone):
        return None
    if fault.reason == "core":
        message = f"{fault.message} ({slice_text(hardware)})"
        return point(codes.SUBMESH_TILING, message, axis.span, help=fault.help)
    extents = slice_extents(hardware)
    notes: tuple[str, ...] = ()
    if tile[3] > extents[3] == 1:
        joined = ", its two cores joined (megacore)" if chip.cores_per_chip > 1 else ""
        counts = f"`core` counts the JAX devices of one chip; {chip.title} shows one{joined}"
        notes = (f"{counts}, so core must be 1",)
    label = f"one slice is {shape_text(extents)} (x, y, z, core)"
    return point(
        codes.SUBMESH_TILING, fault.message, axis.span, label, notes=notes, help=fault.help
    )


def slice_text(hardware: Hardware) -> str:
    """Return a slice as a person says it: `TPU v3 4x4, 2 devices a chip`."""
    cores = hardware.chip.devices_per_chip
    per_chip = f", {cores} devices a chip" if cores > 1 else ""
    return f"{hardware.chip.title} {shape_text(hardware.topology)}{per_chip}"


class SubmeshChoice(NamedTuple):
    """Our tile beside T5X's own.

    Attributes:
      t5x_tile: None where T5X has no entry.
      t5x_score: None where T5X's tile does not tile the slice.
    """

    tile: Tile
    score: AxisScore
    t5x_tile: Tile | None
    t5x_score: AxisScore | None


def score_tile(tile: Sequence[int], hardware: Hardware) -> AxisScore:
    """Return the score of a model axis that runs over such tiles."""
    machine = machine_of(hardware)
    digits = [Digit(index + 1, size, 1) for index, size in enumerate(tile) if size > 1]
    return score_axis(digits, machine)


def best_submesh(hardware: Hardware, partitions: int) -> Tile | None:
    """Return the best tile of so many devices; None where none divides the slice."""
    return next(iter(_ranked(hardware, partitions)), None)


def better_submeshes(hardware: Hardware, partitions: int, score: AxisScore) -> tuple[Tile, ...]:
    """Return the tiles of so many devices that beat `score`, with more links; the best first."""
    scored = ((tile, score_tile(tile, hardware)) for tile in _ranked(hardware, partitions))
    return tuple(tile for tile, own in scored if own < score and own.links > score.links)


def tilings(hardware: Hardware, partitions: int) -> list[Tile]:
    """Return the tiles of so many devices that divide the slice."""
    extents, host = slice_extents(hardware), slice_host(hardware)
    tiles = factorings(partitions, extents)
    return [tile for tile in tiles if isinstance(tile_slice(extents, tile, host), Tiling)]


def _ranked(hardware: Hardware, partitions: int) -> list[Tile]:
    """Return the tiles of so many devices that divide the slice, the best first."""
    tiles = tilings(hardware, partitions)
    return sorted(tiles, key=lambda tile: (score_tile(tile, hardware), tile))


def choose_submesh(hardware: Hardware, partitions: int) -> SubmeshChoice | None:
    """Return the best tile and what T5X would have taken; None where no tile fits."""
    tile = best_submesh(hardware, partitions)
    if tile is None:
        return None
    theirs, extents = None, slice_extents(hardware)
    if hardware.chip.torus_rank:
        kind = hardware.chip.device_kinds[0]
        theirs = t5x_default_submesh(kind, extents, partitions)
    valid = theirs is not None and isinstance(
        tile_slice(extents, theirs, slice_host(hardware)), Tiling
    )
    their_score = score_tile(theirs, hardware) if theirs is not None and valid else None
    return SubmeshChoice(tile, score_tile(tile, hardware), theirs, their_score)


_CORE_PAIRS: dict[int, Tile] = {
    1: (1, 1, 1, 1),
    2: (1, 1, 1, 2),
    4: (2, 1, 1, 2),
    8: (2, 2, 1, 2),
    16: (4, 2, 1, 2),
}


def t5x_default_submesh(device_kind: str, bounds: Sequence[int], partitions: int) -> Tile | None:
    """Return T5X's pick, valid or not; None where its table has no entry.

    Args:
      device_kind: as JAX reports it.
      bounds: (x, y, z, core) of the slice.
    """
    if device_kind in ("TPU v2", "TPU v3"):
        return _CORE_PAIRS.get(partitions)
    if device_kind in ("TPU v4", "TPU v4 lite") and bounds[3] == 1:
        return _for_v4(bounds, partitions)
    return None


def _for_v4(bounds: Sequence[int], partitions: int) -> Tile | None:
    x, _, z, _ = bounds
    picks: dict[int, Tile] = {
        1: (1, 1, 1, 1),
        2: (1, 2, 1, 1),
        4: (4, 1, 1, 1) if x >= 4 else (2, 2, 1, 1),
        8: (1, 1, 8, 1) if z >= 8 else (4, 2, 1, 1),
    }
    if z >= 16:
        picks[16] = (1, 1, 16, 1)
    elif x >= 8:
        picks[16] = (8, 2, 1, 1)
    else:
        picks[16] = (4, 4, 1, 1) if x >= 4 else (2, 2, 4, 1)
    return picks.get(partitions)
