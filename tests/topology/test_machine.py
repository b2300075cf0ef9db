from __future__ import annotations

from shardspec.topology.machine import (
    Digit,
    PhysicalAxis,
    digit_offsets,
    host_shape,
    joined_digits,
    machine_of,
)
from tests.topology.machines import covers_once, hardware


def test_a_cube_wraps_and_less_does_not() -> None:
    assert [axis.wraps for axis in machine_of(hardware("tpu_v4", (4, 4, 8)))[1:4]] == [True] * 3
    assert [axis.wraps for axis in machine_of(hardware("tpu_v4", (2, 4, 4)))[1:4]] == [False] * 3
    assert [axis.wraps for axis in machine_of(hardware("tpu_v5e", (8, 16)))[1:4]] == [
        False,
        True,
        False,
    ]


def test_a_host_is_no_larger_than_its_slice() -> None:
    assert host_shape(hardware("tpu_v4", (1, 1, 1))) == (1, 1, 1)
    assert host_shape(hardware("tpu_v4", (2, 2, 4))) == (2, 2, 1)
    assert host_shape(hardware("gb200", (72,))) == (4,)


def test_hops_go_the_short_way_round() -> None:
    ring = PhysicalAxis("x", 8, "ici", wraps=True)
    assert [ring.hops(0, end) for end in range(8)] == [0, 1, 2, 3, 4, 3, 2, 1]
    line = PhysicalAxis("x", 8, "ici")
    assert line.hops(0, 7) == 7
    assert PhysicalAxis("gpu", 8, "nvlink").hops(0, 7) == 1
    assert PhysicalAxis("core", 2, "chip").hops(0, 1) == 0


def test_a_flat_torus_has_a_z_of_one() -> None:
    names = [(axis.name, axis.extent) for axis in machine_of(hardware("tpu_v3", (4, 8)))]
    assert names == [("slice", 1), ("x", 4), ("y", 8), ("z", 1), ("core", 2)]


def test_offsets_count_like_a_number() -> None:
    assert digit_offsets([Digit(1, 3, 2), Digit(0, 2, 1)], 2) == (
        (0, 0), (1, 0), (0, 2), (1, 2), (0, 4), (1, 4),
    )  # fmt: skip


def test_digits_that_leave_a_gap_do_not_cover() -> None:
    assert covers_once([Digit(0, 2, 1), Digit(0, 2, 2)], (4,))
    assert not covers_once([Digit(0, 2, 2)], (4,))
    assert not covers_once([Digit(0, 2, 1), Digit(0, 2, 1)], (4,))


def test_a_gap_keeps_digits_apart() -> None:
    apart = (Digit(0, 2, 1), Digit(0, 2, 4))
    assert joined_digits(apart[::-1]) == apart
