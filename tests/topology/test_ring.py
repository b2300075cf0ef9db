from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from shardspec.topology.ring import ring_walk, snake

_BOXES = st.lists(st.integers(1, 6), min_size=1, max_size=4).filter(
    lambda sizes: math.prod(sizes) <= 400
)


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


@given(_BOXES)
def test_a_walk_visits_every_place_once_by_single_steps(sizes: list[int]) -> None:
    walk = ring_walk(sizes)
    assert len(set(walk)) == len(walk) == math.prod(sizes)
    assert all(_distance(a, b) == 1 for a, b in itertools.pairwise(walk))


@given(_BOXES)
def test_a_box_with_two_sides_and_an_even_count_closes(sizes: list[int]) -> None:
    walk = ring_walk(sizes)
    two_sides = sum(size > 1 for size in sizes) > 1
    if two_sides and math.prod(sizes) % 2 == 0:
        assert _distance(walk[0], walk[-1]) == 1


def test_a_snake_turns_at_the_end_of_a_row() -> None:
    assert snake((2, 2)) == [(0, 0), (0, 1), (1, 1), (1, 0)]


def test_a_ring_starts_at_the_corner() -> None:
    assert ring_walk((4, 2, 2))[0] == (0, 0, 0)
