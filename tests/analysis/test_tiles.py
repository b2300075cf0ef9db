from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis.memory import tiled_bytes
from shardspec.ir.spec import array_bytes

shapes = st.lists(st.sampled_from((0, 1, 3, 7, 8, 12, 64, 100, 128, 200, 4096)), max_size=4)


@given(shapes.map(tuple), st.sampled_from(("f32", "bf16", "s8", "bool")))
def test_at_least_its_own_bytes_and_the_order_does_not_count(
    shape: tuple[int, ...], dtype: str
) -> None:
    tiled = tiled_bytes(shape, dtype)
    assert tiled is not None
    assert tiled >= array_bytes(shape, dtype)
    assert tiled == tiled_bytes(tuple(reversed(shape)), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8"])
@pytest.mark.parametrize("shape", [(8, 128), (4096, 64), (16, 4096), (4096, 2, 3, 32), (1024,)])
def test_full_tiles_cost_nothing(shape: tuple[int, ...], dtype: str) -> None:
    if dtype == "s8" and shape == (4096, 2, 3, 32):
        shape = (4096, 32)
    assert tiled_bytes(shape, dtype) == array_bytes(shape, dtype)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((), (512, 512, 512)), ((1000,), (4096, 2048, 1024)), ((1025,), (8192, 4096, 2048))],
)
def test_numbers_and_vectors(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert tuple(tiled_bytes(shape, dtype) for dtype in ("f32", "bf16", "s8")) == sizes


def test_dtypes_that_are_not_known_are_not_judged() -> None:
    assert tiled_bytes((3, 5), "s4") is None
    assert tiled_bytes((3, 5), "f64") is None
    assert tiled_bytes((3, 5), "mine") is None
