"""Lists of devices: known by their digits where they have some, else by what groups touch."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.ir.spec import Hardware, MeshAxis, Target
from shardspec.topology.assignment import is_ring
from shardspec.topology.by_hand import device_coordinates
from shardspec.topology.machine import groups, in_digits, stretches
from shardspec.topology.placement import Order, Placement, dcn_facts, explain_axes, place
from shardspec.topology.walk import legs
from tests.topology.machines import hardware, sized, targets


def listing(wanted: Target, order: Order) -> tuple[Placement, Target]:
    """Return a placement, and a target that lists its devices."""
    found = place(wanted, order)
    assert isinstance(found, Placement)
    assert wanted.hardware is not None
    numbers = {place_: number for number, place_ in enumerate(device_coordinates(wanted.hardware))}
    devices = tuple(numbers[place_] for place_ in found.coordinates())
    return found, replace(wanted, devices=devices)


@given(targets(), st.sampled_from(("t5x", "ring")))
@settings(max_examples=60)
def test_a_list_of_an_order_is_that_order(wanted: Target, order: Order) -> None:
    found, as_listed = listing(wanted, order)
    again = place(as_listed)
    assert isinstance(again, Placement)
    assert again.coordinates() == found.coordinates()
    assert not again.listed
    assert explain_axes(again) == explain_axes(found)


@given(targets(), st.sampled_from(("t5x", "ring")))
@settings(max_examples=40, deadline=None)
def test_groups_that_are_looked_at_touch_what_digits_say(wanted: Target, order: Order) -> None:
    found, _ = listing(wanted, order)
    if found.mesh.device_count > 300:
        return
    places = found.coordinates()
    for explained, placed in zip(explain_axes(found), found.axes, strict=True):
        name = placed.axis.name
        lies = stretches(found.mesh, places, found.machine, [name])
        assert (lies.hosts, lies.ways["dcn"]) == (explained.hosts, explained.slices)
        assert lies.hops == explained.hops or placed.axis.size == 1
        as_listed = replace(found, listed=places)
        one, other = legs(found, [name]), legs(as_listed, [name])
        assert (one is None) == (other is None)
        if one is None or other is None:
            continue
        assert [(leg.link, leg.ways) for leg in one] == [(leg.link, leg.ways) for leg in other]
        digits = [digit for digit in placed.digits if digit.size > 1]
        torus = [digit for digit in digits if found.machine[digit.axis].link == "ici"]
        is_walked = torus and not all(is_ring(each, found.machine[each.axis]) for each in torus)
        if is_walked and found.hardware.chip.devices_per_chip == 1 and len(torus) == len(digits):
            assert [leg.bytes_per_s for leg in one] == [leg.bytes_per_s for leg in other]


def scrambled(machine: Hardware, seed: int) -> Target:
    devices = [*range(machine.device_count)]
    random.Random(seed).shuffle(devices)
    wanted = sized(machine, data=2, model=machine.device_count // 2)
    return replace(wanted, devices=tuple(devices))


@given(st.integers(0, 99))
def test_any_list_has_figures(seed: int) -> None:
    machine = hardware("tpu_v5e", (4, 4), 2)
    found = place(scrambled(machine, seed))
    assert isinstance(found, Placement)
    assert found.listed
    data, model = explain_axes(found)
    assert (model.shape, model.slices, model.bottleneck) == ("listed", 2, "dcn")
    assert len(model.hops) == 16
    assert data.bytes_per_s
    joined = legs(found, ["data", "model"])
    assert joined is not None
    assert [(leg.link, leg.ways) for leg in joined] == [("ici", 16), ("dcn", 2)]
    assert not list(dcn_facts(found))


def test_groups_are_rows_of_the_mesh() -> None:
    wanted = replace(sized(hardware("cpu", (8,)), a=2, b=4), devices=(0, 1, 3, 2, 7, 6, 4, 5))
    found = place(wanted)
    assert isinstance(found, Placement)
    rows = [[device for _, device in group] for group in groups(wanted.mesh, found.listed, ["b"])]
    assert rows == [[0, 1, 3, 2], [7, 6, 4, 5]]


def test_a_folded_ring_is_one_link_a_step() -> None:
    wanted = replace(sized(hardware("tpu_v5e", (2, 4)), a=2, b=4), devices=(0, 1, 3, 2, 4, 5, 7, 6))
    found = place(wanted)
    assert isinstance(found, Placement)
    assert not found.listed
    assert explain_axes(found)[1].hops == (1, 1, 1, 1)


def test_a_list_that_begins_elsewhere_has_no_digits() -> None:
    machine = hardware("cpu", (4,))
    found = place(replace(sized(machine, a=4), devices=(3, 2, 1, 0)))
    assert isinstance(found, Placement)
    assert found.listed == ((0, 3), (0, 2), (0, 1), (0, 0))
    assert in_digits([4], found.listed, found.machine) is None


def test_one_device_is_a_list() -> None:
    found = place(Target("t", sized(hardware("cpu", (1,)), a=1).mesh, hardware("cpu", (1,))))
    assert isinstance(found, Placement)
    assert MeshAxis("a", 1) == found.axes[0].axis
