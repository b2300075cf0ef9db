from __future__ import annotations

import math

from shardspec.topology.assignment import (
    Request,
    assign_digits,
    host_count,
    links_shared,
    score_axis,
)
from shardspec.topology.machine import Digit, machine_of
from tests.topology.machines import covers_once, hardware


def test_the_last_axis_chooses_first() -> None:
    machine = machine_of(hardware("tpu_v5p", (4, 4, 8)))
    digits = assign_digits((Request(16), Request(8)), machine)
    assert digits is not None
    assert digits[1] == (Digit(3, 8, 1),)
    assert covers_once([digit for own in digits for digit in own], [a.extent for a in machine])


def test_sizes_that_do_not_multiply_have_no_assignment() -> None:
    machine = machine_of(hardware("tpu_v5e", (4, 4)))
    assert assign_digits((Request(4), Request(2)), machine) is None
    assert assign_digits((Request(3),), machine) is None


def test_a_fixed_tile_is_kept() -> None:
    machine = machine_of(hardware("tpu_v5p", (4, 4, 8)))
    digits = assign_digits((Request(8), Request(2), Request(8, factors=(1, 2, 2, 2, 1))), machine)
    assert digits is not None
    assert {(digit.axis, digit.size) for digit in digits[2]} == {(1, 2), (2, 2), (3, 2)}


def test_dcn_axes_take_slices_as_far_as_they_go() -> None:
    machine = machine_of(hardware("h100", (8,), 4))
    digits = assign_digits((Request(2, asks_dcn=True), Request(2), Request(8)), machine)
    assert digits is not None
    assert digits[0] == (Digit(0, 2, 1),)
    assert digits[1] == (Digit(0, 2, 2),)


def test_rings_beat_lines_and_lines_beat_strides() -> None:
    machine = machine_of(hardware("tpu_v4", (4, 4, 8)))
    ring = score_axis([Digit(1, 4, 1)], machine)
    line = score_axis([Digit(3, 4, 1)], machine)
    strided = score_axis([Digit(3, 4, 2)], machine)
    assert ring < line < strided
    assert (ring.links, line.links, strided.links) == (2, 1, 1)


def test_digits_of_one_axis_count_as_one_stretch() -> None:
    machine = machine_of(hardware("tpu_v4", (4, 4, 8)))
    assert score_axis([Digit(1, 2, 2), Digit(1, 2, 1)], machine) == score_axis(
        [Digit(1, 4, 1)], machine
    )


def test_inside_a_chip_there_is_nothing_faster() -> None:
    machine = machine_of(hardware("tpu_v7x", (4, 4, 4)))
    assert score_axis([Digit(4, 2, 1)], machine).links == math.inf
    assert links_shared([Digit(4, 2, 1)], machine) == 1
    assert links_shared([Digit(1, 2, 1)], machine) == 2


def test_dcn_counts_only_where_it_was_not_asked_for() -> None:
    machine = machine_of(hardware("tpu_v4", (4, 4, 4), slices=2))
    assert score_axis([Digit(0, 2, 1)], machine).dcn_ways == 2
    assert score_axis([Digit(0, 2, 1)], machine, asks_dcn=True).dcn_ways == 1


def test_hosts_are_counted_at_the_worst_place() -> None:
    machine = machine_of(hardware("tpu_v4", (4, 4, 4)))
    assert host_count([Digit(1, 2, 1)], machine) == 1
    assert host_count([Digit(1, 2, 2)], machine) == 2
    assert host_count([Digit(1, 4, 1), Digit(3, 4, 1)], machine) == 8
