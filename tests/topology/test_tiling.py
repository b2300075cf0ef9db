"""Tiles of a slice, checked against a formula of its own: brute force over coordinates."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.topology.digit import covers_once, digit_offsets
from shardspec.topology.tiling import Tiling, TilingFault, axis_order, host_factors, tile_slice
from tests.topology.machines import divisors

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
    if isinstance(tiling, TilingFault):
        return
    box = set(itertools.product(*map(range, tile)))
    assert set(digit_offsets(tiling.model, 4)) == box


@given(tilings())
def test_hosts_stay_together(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    """The devices of a host are a full rectangle of the (data, model) array."""
    extents, tile, host = case
    tiling = tile_slice(extents, tile, host)
    if isinstance(tiling, TilingFault):
        return
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
    if isinstance(ours, Tiling) and isinstance(theirs, Tiling):
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
    assert axis_order(extents, tile) == (order, path)


@pytest.mark.parametrize(
    ("extents", "tile", "host", "reason", "said"),
    [
        ((4, 4, 8, 1), (4, 2, 2), (2, 2, 1, 1), "rank", "(x, y, z, core)"),
        ((4, 4, 8, 1), (3, 2, 2, 1), (2, 2, 1, 1), "factor", "x has 4 and 3 does not divide it"),
        ((4, 4, 8, 1), (2, 2, 2, 2), (2, 2, 1, 1), "factor", "core has 1"),
        ((2, 2, 1, 2), (2, 1, 1, 1), (2, 2, 1, 2), "core", "core is 1"),
        ((6, 6, 1, 2), (3, 2, 1, 2), (2, 2, 1, 2), "host", "x is 3 and a host has 2"),
    ],
)
def test_faults_say_which_dimension(
    extents: tuple[int, ...], tile: tuple[int, ...], host: tuple[int, ...], reason: str, said: str
) -> None:
    fault = tile_slice(extents, tile, host)
    assert isinstance(fault, TilingFault)
    assert fault.reason == reason
    assert said in fault.message
    assert fault.help


def test_megacore_is_named_where_core_exceeds_one() -> None:
    fault = tile_slice((4, 4, 8, 1), (2, 2, 2, 2), None)
    assert isinstance(fault, TilingFault)
    assert "core counts the JAX devices of a chip" in fault.help


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from((1, 2, 3, 4)))
def test_host_factors_multiply_to_the_axis(tiles: int, tile: int, host: int) -> None:
    extent = tiles * tile * host
    factors = host_factors(extent, tile, host)
    if factors is None:
        assert tile % host != 0
        assert host % tile != 0
    else:
        assert math.prod(factors) == extent
        assert factors[2] * factors[3] == tile
