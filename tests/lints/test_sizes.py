from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.ir.plan import divides
from shardspec.lints.evidence.sizes import axis_sizes, copies, near_multiples, padded

small = st.integers(1, 200)


@given(small, small)
def test_padded_is_the_next_multiple(size: int, step: int) -> None:
    found = padded(size, step)
    assert found % step == 0
    assert size <= found < size + step
    assert found in (size, *near_multiples(size, step))


@given(small, st.sampled_from((1, 2, 4, 64)), small)
def test_copies_fill_the_devices(size: int, unit: int, ways: int) -> None:
    times = copies(size, unit, ways)
    units = size // unit
    if times is not None:
        assert units * unit == size
        assert units * times == ways
        assert units > 1
        assert times > 1
        assert divides(units, size, unit)
        assert not divides(ways, size, unit)
    else:
        assert not (size % unit == 0 and 1 < units < ways and ways % units == 0)


@given(small, st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 3)))
def test_axis_sizes_are_all_that_divide(size: int, unit: int, others: int) -> None:
    assume(size % unit == 0 and divides(others, size, unit))
    every = [n for n in range(1, size + 1) if size % (n * others * unit) == 0]
    assert list(axis_sizes(size, unit, others)) == every
