from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.mesh import divisors


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 5000), st.integers(1, 100))
def test_a_limit_cuts_the_large_ones(number: int, limit: int) -> None:
    assert divisors(number, limit) == tuple(d for d in divisors(number) if d <= limit)
