"""Laws of a placement, whatever the machine and the mesh."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import MeshAxis, Target
from shardspec.topology.assignment import score_axis
from shardspec.topology.placement import Placement, place, ring_walk, snake
from tests.topology.machines import (
    SLICES,
    covers_once,
    hardware,
    sized,
    target,
    targets,
    tiled_targets,
)


def placed(wanted: Target, order: str = "t5x") -> Placement:
    placement = place(wanted, "ring" if order == "ring" else "t5x")
    assert isinstance(placement, Placement), placement
    return placement


@given(targets())
@settings(deadline=None)
def test_every_device_stands_once(wanted: Target) -> None:
    for order in ("t5x", "ring"):
        placement = placed(wanted, order)
        places = placement.coordinates()
        box = itertools.product(*(range(axis.extent) for axis in placement.machine))
        assert len(places) == wanted.mesh.device_count
        assert set(places) == set(box)


@given(targets())
@settings(deadline=None)
def test_both_orders_visit_the_same_devices(wanted: Target) -> None:
    ours, theirs = placed(wanted), placed(wanted, "ring")
    for a, b in zip(ours.axes, theirs.axes, strict=True):
        assert a.digits == b.digits
        assert sorted(a.route) == sorted(b.route)


@given(tiled_targets())
@settings(deadline=None)
def test_a_tile_is_a_box_and_every_group_its_translate(wanted: Target) -> None:
    placement = place(wanted)
    if isinstance(placement, Diagnostic):
        assert "core" in placement.message
        return
    tile = wanted.mesh.axes[1].submesh
    assert tile is not None
    box = {(0, *place) for place in itertools.product(*map(range, tile))}
    assert set(placement.axis("model").route) == box
    size = math.prod(tile)
    places = placement.coordinates()
    for start in range(0, len(places), size):
        group = places[start : start + size]
        corner = tuple(map(min, zip(*group, strict=True)))
        moved = {tuple(a - b for a, b in zip(place, corner, strict=True)) for place in group}
        assert moved == box


@pytest.mark.parametrize("order", ["t5x", "ring"])
def test_a_submesh_goes_with_dcn_and_any_axis_order(order: str) -> None:
    machine = hardware("tpu_v4", (4, 4, 8), slices=2)
    tile = MeshAxis("model", 16, submesh=(4, 2, 2, 1))
    placement = placed(
        target(machine, tile, MeshAxis("data", 8), MeshAxis("replica", 2, "dcn")), order
    )
    assert {place[0] for place in placement.axis("replica").route} == {0, 1}
    assert {place[0] for place in placement.axis("model").route} == {0}


def test_a_submesh_leaves_the_rest_to_several_axes() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    tile = MeshAxis("model", 16, submesh=(4, 2, 2, 1))
    placement = placed(target(machine, MeshAxis("data", 4), MeshAxis("fsdp", 4), tile))
    box = itertools.product(range(1), range(4), range(2), range(2), range(1))
    assert set(placement.axis("model").route) == set(box)
    assert len(set(placement.coordinates())) == 256


def test_slices_no_axis_asks_for_go_to_the_first_axis() -> None:
    machine = hardware("tpu_v5p", (4, 4, 8), slices=4)
    placement = placed(sized(machine, data=64, model=8))
    assert {place[0] for place in placement.axis("model").route} == {0}
    assert {place[0] for place in placement.axis("data").route} == {0, 1, 2, 3}


@pytest.mark.parametrize("slices", [2, 3])
def test_slices_left_over_beside_a_submesh_are_the_data_axis_most_significant(slices: int) -> None:
    machine = hardware("tpu_v4", (4, 4, 4), slices)
    tile = MeshAxis("model", 4, submesh=(2, 2, 1, 1))
    placement = placed(target(machine, MeshAxis("data", 16 * slices), tile))
    assert placement.path == "tile-by-host"
    assert covers_once(
        [digit for axis in placement.axes for digit in axis.digits], (slices, 4, 4, 4, 1)
    )
    assert [place[0] for place in placement.axis("data").route] == [
        number for number in range(slices) for _ in range(16)
    ]
    alone = placed(target(replace(machine, slice_count=1), MeshAxis("data", 16), tile))
    assert placement.coordinates()[:64] == alone.coordinates()


def test_the_chips_own_link_goes_to_the_axis_that_talks_most() -> None:
    machine = hardware("tpu_v7x", (4, 4, 4))
    placement = placed(sized(machine, data=32, model=4))
    assert {place[4] for place in placement.axis("model").route} == {0, 1}
    assert {place[4] for place in placement.axis("data").route} == {0}


def test_nodes_are_crossed_only_by_the_outer_axis() -> None:
    placement = placed(sized(hardware("h100", (8,), slices=4), data=4, model=8))
    assert placement.coordinates()[:8] == tuple((0, gpu) for gpu in range(8))


@pytest.mark.parametrize(("file", "shape"), [("tpu_v6e", (16, 16)), ("tpu_v6e", (8, 8))])
def test_shapes_that_jax_refuses_work(file: str, shape: tuple[int, int]) -> None:
    machine = hardware(file, shape)
    for model in (2, 4, 8, 32):
        placement = placed(sized(machine, data=machine.device_count // model, model=model))
        assert len(set(placement.coordinates())) == machine.device_count


def test_a_wrong_product_is_said_with_both_numbers() -> None:
    fault = place(sized(hardware("tpu_v4", (4, 4, 8)), data=16, model=4))
    assert isinstance(fault, Diagnostic)
    assert fault.code.id == "SHD102"
    assert "data=16 x model=4 = 64" in fault.message
    assert "128 devices" in fault.message


def test_a_mesh_without_hardware_cannot_be_laid_out() -> None:
    fault = place(Target("t", sized(hardware("cpu", (8,)), data=8).mesh))
    assert isinstance(fault, Diagnostic)
    assert fault.help is not None


def test_a_tile_that_does_not_fit_says_what_would() -> None:
    machine = hardware("tpu_v4", (4, 4, 8))
    fault = place(target(machine, MeshAxis("data", 16), MeshAxis("model", 8, submesh=(2, 2, 1, 2))))
    assert isinstance(fault, Diagnostic)
    assert fault.code.id == "SHD105"
    assert "core: 2 does not divide 1" in fault.message
    assert "megacore" in fault.notes[0]


def test_auto_takes_a_valid_tile_everywhere() -> None:
    for file, shape in SLICES:
        machine = hardware(file, shape)
        count = machine.device_count
        for size in (size for size in (1, 2, 4, 8, 16, 32) if count % size == 0):
            wanted = target(
                machine, MeshAxis("data", count // size), MeshAxis("m", size, auto=True)
            )
            assert len(set(placed(wanted).coordinates())) == count


def test_a_tile_does_not_cross_slices() -> None:
    machine = hardware("tpu_v4", (4, 4, 4), slices=2)
    fault = place(target(machine, MeshAxis("a", 64), MeshAxis("b", 2, "dcn", auto=True)))
    assert isinstance(fault, Diagnostic)
    assert "inside one slice" in fault.message


@given(targets())
@settings(deadline=None)
def test_equal_axes_swap_and_no_more(wanted: Target) -> None:
    """A slice turned by 90 degrees, x for y, gives every mesh axis the same score."""
    machine = wanted.hardware
    assume(machine is not None and machine.chip.torus_rank > 0)
    x, y, *rest = machine.topology
    turned = replace(wanted, hardware=replace(machine, topology=(y, x, *rest)))
    upright, other = placed(wanted), placed(turned)
    for a, b in zip(upright.axes, other.axes, strict=True):
        assert score_axis(a.digits, upright.machine) == score_axis(b.digits, other.machine)


@given(tiled_targets())
@settings(deadline=None)
def test_a_turned_tile_is_the_same_groups_turned(wanted: Target) -> None:
    """Exchanging x and y of slice and tile exchanges them in every group, and no more."""
    machine, (data, model) = wanted.hardware, wanted.mesh.axes
    assert machine is not None
    assert model.submesh is not None
    (x, y, *rest), (mx, my, *others) = machine.topology, model.submesh
    turned = target(
        replace(machine, topology=(y, x, *rest)), data, replace(model, submesh=(my, mx, *others))
    )
    ours, theirs = place(wanted), place(turned)
    assert isinstance(ours, Placement) == isinstance(theirs, Placement)
    assume(isinstance(ours, Placement))
    swapped = {frozenset((s, x, y, *end) for s, y, x, *end in group) for group in groups_of(theirs)}
    assert groups_of(ours) == swapped


def groups_of(placement: Placement) -> set[frozenset[tuple[int, ...]]]:
    """Return the devices of each group of the last mesh axis."""
    size, places = placement.axes[-1].axis.size, placement.coordinates()
    return {frozenset(places[start : start + size]) for start in range(0, len(places), size)}


def test_a_tile_that_would_leave_its_slice_is_refused() -> None:
    machine = hardware("tpu_v4", (4, 4, 8), 2)
    tile = MeshAxis("a", 64, submesh=(4, 4, 4, 1))
    fault = place(target(machine, MeshAxis("b", 4, auto=True), tile))
    assert isinstance(fault, Diagnostic)
    assert fault.code.id == "SHD105"
    within = place(target(machine, MeshAxis("d", 2), MeshAxis("b", 2, auto=True), tile))
    assert isinstance(within, Placement)


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
    assume(sum(size > 1 for size in sizes) > 1 and math.prod(sizes) % 2 == 0)
    assert _distance(walk[0], walk[-1]) == 1


def test_a_snake_turns_at_the_end_of_a_row() -> None:
    assert snake((2, 2)) == [(0, 0), (0, 1), (1, 1), (1, 0)]


def test_a_ring_starts_at_the_corner() -> None:
    assert ring_walk((4, 2, 2))[0] == (0, 0, 0)
