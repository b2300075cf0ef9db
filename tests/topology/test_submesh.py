"""Tiles of a slice, checked against a formula of its own: brute force over coordinates."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.ir.spec import divisors
from shardspec.topology import assignment
from shardspec.topology.assignment import Tiling, choose_submesh, score_tile, tile_slice
from shardspec.topology.machine import digit_offsets, slice_extents, slice_host
from tests.topology.machines import SLICES, covers_once, hardware


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
    assert assignment.best_submesh(hardware(file, shape), size) == tile


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
    assert assignment.best_submesh(hardware("tpu_v5e", (2, 4)), 16) is None


_EXTENTS = st.tuples(*(st.sampled_from((1, 2, 4, 6, 8)),) * 3, st.sampled_from((1, 2)))


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    extents = draw(_EXTENTS)
    tile = tuple(draw(st.sampled_from(divisors(extent))) for extent in extents)
    host = (min(2, extents[0]), min(2, extents[1]), 1, extents[3])
    return extents, tile, host


@given(tilings())
def test_digits_cover_the_slice_once(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    extents, tile, host = case
    for kept in (host, None):
        tiling = tile_slice(extents, tile, kept)
        if isinstance(tiling, Tiling):
            assert covers_once((*tiling.data, *tiling.model), extents)
            assert math.prod(digit.size for digit in tiling.model) == math.prod(tile)


@given(tilings())
def test_every_group_is_a_translate_of_the_tile(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    extents, tile, host = case
    tiling = tile_slice(extents, tile, host)
    assume(isinstance(tiling, Tiling))
    box = set(itertools.product(*map(range, tile)))
    assert set(digit_offsets(tiling.model, 4)) == box


@given(tilings())
def test_hosts_stay_together(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    """The devices of a host are a full rectangle of the (data, model) array."""
    extents, tile, host = case
    tiling = tile_slice(extents, tile, host)
    assume(isinstance(tiling, Tiling))
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for (row, data), (column, model) in itertools.product(
        enumerate(digit_offsets(tiling.data, 4)), enumerate(digit_offsets(tiling.model, 4))
    ):
        spot = tuple(a + b for a, b in zip(data, model, strict=True))
        owner = tuple(a // held for a, held in zip(spot, host, strict=True))
        places.setdefault(owner, []).append((row, column))
    for seats in places.values():
        rows = {row for row, _ in seats}
        columns = {column for _, column in seats}
        assert max(rows) - min(rows) < len(rows)
        assert max(columns) - min(columns) < len(columns)
        assert len(rows) * len(columns) == len(seats)


@given(tilings())
def test_equal_axes_swap(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    """Exchanging x and y of slice, tile and host exchanges them in the tiles, and no more."""
    extents, tile, host = case
    swapped = [(size[1], size[0], *size[2:]) for size in case]
    ours, theirs = tile_slice(extents, tile, host), tile_slice(*swapped)
    assert isinstance(ours, Tiling) == isinstance(theirs, Tiling)
    assume(isinstance(ours, Tiling))
    model = {(y, x, z, core) for x, y, z, core in digit_offsets(theirs.model, 4)}
    assert set(digit_offsets(ours.model, 4)) == model


@pytest.mark.parametrize(
    ("extents", "tile", "order", "path"),
    [
        ((4, 4, 8, 1), (4, 1, 1, 1), (0, 2, 1, 3), "swap-yz"),
        ((4, 4, 8, 1), (1, 4, 8, 1), (0, 2, 1, 3), "swap-yz"),
        ((4, 4, 8, 1), (1, 4, 1, 1), (2, 1, 0, 3), "swap-xz"),
        ((4, 4, 8, 1), (4, 1, 8, 1), (2, 1, 0, 3), "swap-xz"),
        ((4, 4, 8, 1), (4, 2, 2, 1), (0, 1, 2, 3), None),
    ],
)
def test_rows_and_planes_turn_the_axes(
    extents: tuple[int, ...], tile: tuple[int, ...], order: tuple[int, ...], path: str | None
) -> None:
    assert assignment.axis_order(extents, tile) == (order, path)


@pytest.mark.parametrize(
    ("extents", "tile", "host", "reason", "said"),
    [
        ((4, 4, 8, 1), (3, 2, 2, 1), (2, 2, 1, 1), "factor", "x: 3 does not divide 4"),
        ((4, 4, 8, 1), (2, 2, 2, 2), (2, 2, 1, 1), "factor", "core: 2 does not divide 1"),
        ((2, 2, 1, 2), (2, 1, 1, 1), (2, 2, 1, 2), "core", "core is 1"),
        ((6, 6, 1, 2), (3, 2, 1, 2), (2, 2, 1, 2), "host", "to tile the mesh by hosts"),
    ],
)
def test_faults_say_which_dimension(
    extents: tuple[int, ...], tile: tuple[int, ...], host: tuple[int, ...], reason: str, said: str
) -> None:
    fault = tile_slice(extents, tile, host)
    assert isinstance(fault, assignment.TilingFault)
    assert fault.reason == reason
    assert said in fault.message
    assert fault.help


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from((1, 2, 3, 4)))
def test_host_factors_multiply_to_the_axis(tiles: int, tile: int, host: int) -> None:
    extent = tiles * tile * host
    factors = assignment.host_factors(extent, tile, host)
    if factors is None:
        assert tile % host != 0
        assert host % tile != 0
    else:
        assert math.prod(factors) == extent
        assert factors[2] * factors[3] == tile


@pytest.mark.parametrize(
    ("kind", "bounds", "size", "tile"),
    [
        ("TPU v3", (4, 4, 1, 2), 8, (2, 2, 1, 2)),
        ("TPU v3", (4, 4, 1, 2), 3, None),
        ("TPU v4", (4, 4, 8, 1), 8, (1, 1, 8, 1)),
        ("TPU v4", (1, 1, 1, 1), 8, (4, 2, 1, 1)),
        ("TPU v4", (4, 4, 8, 2), 8, None),
        ("TPU v4 lite", (2, 4, 1, 1), 16, (2, 2, 4, 1)),
        ("TPU v4", (8, 8, 8, 1), 16, (8, 2, 1, 1)),
        ("TPU v4", (4, 4, 16, 1), 16, (1, 1, 16, 1)),
        ("TPU v5 lite", (4, 4, 1, 1), 1, None),
    ],
)
def test_the_table(
    kind: str, bounds: tuple[int, ...], size: int, tile: tuple[int, ...] | None
) -> None:
    assert assignment.t5x_default_submesh(kind, bounds, size) == tile
