from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import shape_text
from shardspec.language.catalogue import SliceShapes, catalogue_entry, parse_shape

_CUBES = SliceShapes(((2, 2, 1), (2, 4, 4)), rank=3, cube=4, most_chips=1024)


def test_boxes_of_cubes_exist_in_ascending_order_only() -> None:
    assert _CUBES.has((4, 4, 12))
    assert not _CUBES.has((8, 4, 4))
    assert not _CUBES.has((4, 4, 6))
    assert not _CUBES.has((8, 16, 16))
    assert _CUBES.has((2, 2, 1))
    assert not _CUBES.has((2, 2, 2))


def test_every_shape_exists() -> None:
    shapes = list(_CUBES.every())
    assert len(set(shapes)) == len(shapes) > 20
    assert all(_CUBES.has(shape) for shape in shapes)


@given(st.tuples(*(st.integers(1, 70),) * 3))
def test_near_shapes_exist(shape: tuple[int, int, int]) -> None:
    near = _CUBES.near(shape)
    assert len(near) == 4
    assert all(_CUBES.has(other) for other in near)


@given(st.sampled_from(list(_CUBES.every())).flatmap(st.permutations))
def test_equal_sizes_come_first(shape: list[int]) -> None:
    assert math.prod(_CUBES.near(shape)[0]) == math.prod(shape)


def test_a_size_means_its_most_compact_slice() -> None:
    assert _CUBES.of_size(512) == (8, 8, 8)
    assert _CUBES.of_size(256) == (4, 8, 8)
    assert _CUBES.of_size(7) is None


def test_v5p_sizes_are_the_topologies_people_get() -> None:
    """Accelerator type -> topology. Source: AI-Hypercomputer/maxtext, accelerator_to_spec_map."""
    known = """
        8 2x2x1 32 2x2x4 64 2x4x4 384 4x4x12 640 4x4x20 768 4x8x12 1152 4x12x12 1280 4x8x20
        1536 8x8x12 1920 4x12x20 3072 8x12x16 3456 12x12x12 4480 4x20x28 5376 8x12x28
        6144 12x16x16 6400 8x20x20 6912 12x12x24 8960 8x20x28 9216 12x16x24 10368 12x12x36
        11520 12x20x24 11904 4x12x124 12288 16x16x24 13824 12x24x24 17920 16x20x28
    """.split()  # noqa: SIM905
    shapes = catalogue_entry("tpu_v5p").shapes
    for cores, text in zip(known[::2], known[1::2], strict=True):
        assert shapes.of_size(int(cores) // 2) == parse_shape(text), cores


def test_shapes_print_as_they_are_written() -> None:
    assert shape_text(parse_shape("4x8x8")) == "4x8x8"
    assert parse_shape(72) == (72,)
