from __future__ import annotations

from shardspec.topology.assignment import Request, assign_digits
from shardspec.topology.digit import Digit, covers_once
from shardspec.topology.machine import machine_of
from tests.topology.machines import hardware


def test_the_last_axis_chooses_first() -> None:
    machine = machine_of(hardware("tpu_v5p", (4, 4, 8)))
    digits = assign_digits([Request(16), Request(8)], machine)
    assert digits is not None
    assert digits[1] == (Digit(3, 8, 1),)
    assert covers_once([digit for own in digits for digit in own], [a.extent for a in machine])


def test_sizes_that_do_not_multiply_have_no_assignment() -> None:
    machine = machine_of(hardware("tpu_v5e", (4, 4)))
    assert assign_digits([Request(4), Request(2)], machine) is None
    assert assign_digits([Request(3)], machine) is None


def test_a_fixed_tile_is_kept() -> None:
    machine = machine_of(hardware("tpu_v5p", (4, 4, 8)))
    digits = assign_digits([Request(8), Request(2), Request(8, factors=(1, 2, 2, 2, 1))], machine)
    assert digits is not None
    assert {(digit.axis, digit.size) for digit in digits[2]} == {(1, 2), (2, 2), (3, 2)}


def test_dcn_axes_take_slices_as_far_as_they_go() -> None:
    machine = machine_of(hardware("h100", (8,), 4))
    digits = assign_digits([Request(2, asks_dcn=True), Request(2), Request(8)], machine)
    assert digits is not None
    assert digits[0] == (Digit(0, 2, 1),)
    assert digits[1] == (Digit(0, 2, 2),)
