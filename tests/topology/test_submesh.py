from __future__ import annotations

import math

import pytest

from shardspec.topology.submesh import (
    best_submesh,
    choose_submesh,
    full_submesh,
    score_tile,
    slice_extents,
    slice_host,
)
from shardspec.topology.tiling import Tiling, tile_slice
from tests.topology.machines import SLICES, hardware


@pytest.mark.parametrize(("file", "shape"), SLICES)
def test_auto_is_valid_and_never_worse_than_t5x(file: str, shape: tuple[int, ...]) -> None:
    machine = hardware(file, shape)
    extents, host = slice_extents(machine), slice_host(machine)
    for size in (1, 2, 4, 8, 16, 32, 64):
        choice = choose_submesh(machine, size)
        if choice is None:
            assert machine.device_count % size or size > machine.device_count
            continue
        assert math.prod(choice.tile) == size
        assert isinstance(tile_slice(extents, choice.tile, host), Tiling)
        if choice.t5x_score is not None:
            assert choice.score <= choice.t5x_score


@pytest.mark.parametrize(
    ("file", "shape", "size", "tile"),
    [
        ("tpu_v4", (4, 8, 8), 16, (4, 2, 2, 1)),
        ("tpu_v4", (4, 4, 8), 8, (1, 1, 8, 1)),
        ("tpu_v4", (2, 2, 4), 8, (2, 2, 2, 1)),
        ("tpu_v3", (4, 4), 2, (1, 1, 1, 2)),
        ("tpu_v3", (4, 4), 8, (2, 2, 1, 2)),
        ("tpu_v5e", (16, 16), 16, (1, 16, 1, 1)),
    ],
)
def test_rings_first_then_compact(
    file: str, shape: tuple[int, ...], size: int, tile: tuple[int, ...]
) -> None:
    assert best_submesh(hardware(file, shape), size) == tile


def test_where_t5x_has_no_valid_default_ours_works() -> None:
    invalid = choose_submesh(hardware("tpu_v4", (2, 2, 4)), 8)
    assert invalid is not None
    assert invalid.t5x_tile == (4, 2, 1, 1)
    assert invalid.t5x_score is None
    absent = choose_submesh(hardware("tpu_v5e", (4, 4)), 4)
    assert absent is not None
    assert absent.t5x_tile is None


def test_a_turned_tile_may_gain_links() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    turned, straight = score_tile((4, 2, 2, 1), machine), score_tile((2, 2, 4, 1), machine)
    assert turned < straight
    assert (turned.links, straight.links) == (4, 3)


def test_no_tile_is_larger_than_a_slice() -> None:
    assert best_submesh(hardware("tpu_v5e", (2, 4)), 16) is None


def test_short_submeshes_are_filled_up() -> None:
    assert full_submesh((4, 2), hardware("tpu_v5e", (4, 4))) == (4, 2, 1, 1)
