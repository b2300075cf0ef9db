from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Mesh, MeshAxis, divisors


@given(st.lists(st.sampled_from("abc"), max_size=4))
def test_distinct(names: list[str]) -> None:
    """No two axes of a mesh have the same name."""
    axes = tuple(MeshAxis(name, 2) for name in names)
    if len(set(names)) == len(names):
        assert Mesh(axes).names == tuple(names)
    else:
        with pytest.raises(AssertionError, match="twice"):
            Mesh(axes)


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 5000), st.integers(1, 100))
def test_a_limit_cuts_the_large_ones(number: int, limit: int) -> None:
    assert divisors(number, limit) == tuple(d for d in divisors(number) if d <= limit)


def test_a_heading_counts_axes_that_split_nothing_where_they_are_many() -> None:
    sizes = {"data": 1, "fsdp": 8, "stage": 1, "tensor": 4, "context": 1, "expert": 1}
    many = Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))
    assert many.heading == "fsdp=8 tensor=4, 4 axes of size 1"
    few = Mesh(many.axes[:4])
    assert few.heading == str(few) == "data=1 fsdp=8 stage=1 tensor=4"
    none = Mesh(tuple(MeshAxis(name, 1) for name in sizes))
    assert none.heading == str(none)
