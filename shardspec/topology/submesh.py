"""`auto N`: the best tile for N partitions on any slice, valid by construction.

All (x, y, z, core) tiles that divide the slice are compared by `score_axis`; T5X's table is
only looked up to say how ours compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.ir.hardware import Hardware
from shardspec.topology.digit import Digit
from shardspec.topology.machine import host_shape, machine_of
from shardspec.topology.score import AxisScore, score_axis
from shardspec.topology.t5x_defaults import t5x_default_submesh
from shardspec.topology.tiling import Tiling, tile_slice

Tile = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SubmeshChoice:
    """Our tile beside T5X's own.

    Attributes:
      t5x_tile: None where T5X has no entry.
      t5x_score: None where T5X's tile does not tile the slice.
    """

    tile: Tile
    score: AxisScore
    t5x_tile: Tile | None
    t5x_score: AxisScore | None


def slice_extents(hardware: Hardware) -> tuple[int, ...]:
    """Return (x, y, z, core) of one slice; (devices,) without a torus."""
    return tuple(axis.extent for axis in machine_of(hardware)[1:])


def slice_host(hardware: Hardware) -> tuple[int, ...]:
    """Return (x, y, z, core) of one host; (devices,) without a torus."""
    if hardware.chip.torus_rank == 0:
        return host_shape(hardware)
    chips = (*host_shape(hardware), 1, 1, 1)[:3]
    return (*chips, hardware.chip.devices_per_chip)


def full_submesh(submesh: Sequence[int], hardware: Hardware) -> Tile:
    """Return a submesh with all four sizes: `4x2` on a 2D torus is (4, 2, 1, 1).

    Without core the tile takes one device of a chip; without z, one plane.
    """
    rank = len(slice_extents(hardware))
    return (*submesh, *(1,) * (rank - len(submesh)))


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


def _ranked(hardware: Hardware, partitions: int) -> list[Tile]:
    """Return the tiles of so many devices that divide the slice, the best first."""
    extents, host = slice_extents(hardware), slice_host(hardware)
    tiles = [
        tile
        for tile in _tiles(partitions, extents)
        if isinstance(tile_slice(extents, tile, host), Tiling)
    ]
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


def _tiles(size: int, extents: Sequence[int]) -> list[Tile]:
    if not extents:
        return [()] if size == 1 else []
    return [
        (factor, *rest)
        for factor in range(1, min(size, extents[0]) + 1)
        if size % factor == 0 and extents[0] % factor == 0
        for rest in _tiles(size // factor, extents[1:])
    ]
