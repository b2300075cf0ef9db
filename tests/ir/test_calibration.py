"""Laws of tables of sizes: between points and beyond them."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread

sizes = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5, unique=True).map(
    lambda found: tuple(sorted(found))
)
anywhere = st.floats(0.5, 1 << 22)


@st.composite
def tables(draw: st.DrawFn, *, ascending: bool = False) -> MatmulTable:
    m, k, n = draw(sizes), draw(sizes), draw(sizes)
    count = len(m) * len(k) * len(n)
    shares = draw(st.lists(st.floats(1e-4, 1.0), min_size=count, max_size=count))
    if ascending:
        row = len(k) * len(n)
        for at in range(row, count):
            shares[at] = max(shares[at], shares[at - row])
    return MatmulTable("bf16", m, k, n, tuple(shares))


@given(tables())
def test_exact_at_the_points(table: MatmulTable) -> None:
    points = product(table.m, table.k, table.n)
    assert [table.share(*point) for point in points] == list(table.shares)


@given(tables(), anywhere, anywhere, anywhere)
def test_between_the_shares_of_the_table(table: MatmulTable, m: float, k: float, n: float) -> None:
    assert 0 < min(table.shares) <= table.share(m, k, n) <= max(table.shares) <= 1


@given(tables(ascending=True), anywhere, anywhere, anywhere, st.floats(1.0, 100.0))
def test_ascending_where_the_table_is(
    table: MatmulTable, m: float, k: float, n: float, more: float
) -> None:
    assert table.share(m * more, k, n) >= table.share(m, k, n) * (1 - 1e-12)


@given(tables(), anywhere, anywhere, anywhere)
def test_beyond_the_edge_it_is_that_of_the_edge(
    table: MatmulTable, m: float, k: float, n: float
) -> None:
    inside = (
        min(max(size, points[0]), points[-1])
        for size, points in ((m, table.m), (k, table.k), (n, table.n))
    )
    assert table.share(m, k, n) == pytest.approx(table.share(*inside))


def test_halfway_is_halfway_by_logarithms() -> None:
    table = MatmulTable("bf16", (8,), (64,), (64, 1024), (0.1, 0.9))
    assert table.share(8, 64, 256) == pytest.approx(math.sqrt(0.09))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    payloads = draw(sizes)
    count = len(payloads)
    medians = draw(st.lists(st.floats(1e-7, 10.0), min_size=count, max_size=count))
    spreads = tuple(Spread(each, each / 2, each * 2) for each in medians)
    return Curve("all-gather", ("data",), payloads, spreads)


@given(curves())
def test_a_curve_is_exact_at_what_was_measured(curve: Curve) -> None:
    found = [curve.at(payload) for payload in curve.payloads]
    assert found == pytest.approx([each.median for each in curve.seconds])


@given(curves(), anywhere)
def test_a_curve_lies_between_and_beyond(curve: Curve, payload: float) -> None:
    medians = [each.median for each in curve.seconds]
    found = curve.at(payload)
    assert min(medians) * (1 - 1e-9) <= found
    if payload <= curve.payloads[0]:
        assert found == pytest.approx(medians[0])
    if payload >= curve.payloads[-1]:
        assert found == pytest.approx(medians[-1] * payload / curve.payloads[-1])


def test_a_collective_is_found_by_its_axes_in_any_order() -> None:
    curve = Curve("all-gather", ("data", "model"), (1,), (Spread(1.0, 1.0, 1.0),))
    made = Calibration("cpu", "cpu", "2026-11-22", "x", machine="8 cpu", curves=(curve,))
    assert made.curve("all-gather", ("model", "data")) is curve
    assert made.curve("all-gather", ("data",)) is None
    assert made.curve("all-reduce", ("data", "model")) is None
