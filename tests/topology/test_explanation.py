"""Hops, hosts and slices are what a brute-force count on the devices gives."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shardspec.ir.spec import MeshAxis, Target
from shardspec.topology import placement as placements
from shardspec.topology.machine import Machine
from shardspec.topology.placement import Placement, dcn_facts, explain_axes, place, ring_fact
from tests.topology.machines import hardware, sized, target, targets, tiled_targets

Place = tuple[int, ...]


def _placed(wanted: Target, order: str = "t5x") -> Placement:
    placement = place(wanted, "ring" if order == "ring" else "t5x")
    assert isinstance(placement, Placement)
    return placement


def _groups(placement: Placement, name: str) -> list[list[Place]]:
    found: dict[int, list[tuple[int, Place]]] = {}
    for spot, seat in placements.seats(placement, name).items():
        found.setdefault(seat.group, []).append((seat.position, spot))
    return [[spot for _, spot in sorted(group)] for group in found.values()]


def _links_from(spot: Place, machine: Machine) -> list[tuple[Place, int]]:
    """Return the places one step away and the links it takes: inside a chip or a host, none."""
    near = []
    for index, axis in enumerate(machine):
        steps = {spot[index] - 1, spot[index] + 1}
        if axis.wraps:
            steps = {value % axis.extent for value in steps}
        if axis.link != "ici":
            steps = set(range(axis.extent)) - {spot[index]}
        links = 0 if axis.link in ("chip", "memory") else 1
        near += [
            ((*spot[:index], value, *spot[index + 1 :]), links)
            for value in steps
            if 0 <= value < axis.extent
        ]
    return near


def _walked(start: Place, machine: Machine) -> dict[Place, int]:
    """Return the links on a shortest way through the machine to every place, by search."""
    found, queue = {start: 0}, deque([start])
    while queue:
        spot = queue.popleft()
        for following, links in _links_from(spot, machine):
            length = found[spot] + links
            if length < found.get(following, length + 1):
                found[following] = length
                (queue.append if links else queue.appendleft)(following)
    return found


@given(targets() | tiled_targets(), st.sampled_from(("t5x", "ring")), st.data())
@settings(deadline=None)
def test_hops_equal_a_search_through_the_machine(
    wanted: Target, order: str, data: st.DataObject
) -> None:
    placement = place(wanted, "ring" if order == "ring" else "t5x")
    assume(isinstance(placement, Placement))
    for explanation in explain_axes(placement):
        group = data.draw(st.sampled_from(_groups(placement, explanation.name)))
        if len(group) < 2:
            assert explanation.hops == ()
            continue
        assert len(explanation.hops) == len(group)
        index = data.draw(st.integers(0, len(group) - 1))
        for step in {0, index, len(group) - 1}:
            following = group[(step + 1) % len(group)]
            assert explanation.hops[step] == _walked(group[step], placement.machine)[following]


@given(targets())
@settings(deadline=None)
def test_hosts_and_slices_equal_a_count(wanted: Target) -> None:
    placement = _placed(wanted)
    for explanation in explain_axes(placement):
        hosts, slices = [], []
        for group in _groups(placement, explanation.name):
            owners = {
                tuple(
                    value // axis.host for value, axis in zip(spot, placement.machine, strict=True)
                )
                for spot in group
            }
            hosts.append(len(owners))
            slices.append(len({spot[0] for spot in group}))
        assert explanation.hosts == max(hosts)
        assert set(slices) == {explanation.slices}


@given(targets())
@settings(deadline=None)
def test_runs_multiply_to_the_axis(wanted: Target) -> None:
    for explanation in explain_axes(_placed(wanted)):
        product = 1
        for run in explanation.runs:
            product *= run.size
        assert product == explanation.size


def test_a_whole_wrapped_axis_is_a_ring_at_twice_the_link() -> None:
    placement = _placed(sized(hardware("tpu_v5p", (4, 4, 8)), data=16, model=8))
    model = explain_axes(placement)[1]
    assert model.runs == (placements.Run("z", 8, 1, 8, "ring"),)
    assert model.hops == (1,) * 8
    assert model.wrapped
    assert model.bytes_per_s == 2 * 9e10
    assert model.bottleneck == "ici"


def test_a_line_has_one_link_and_a_long_way_back() -> None:
    placement = _placed(sized(hardware("tpu_v5e", (8, 8)), data=8, model=8))
    data, model = explain_axes(placement)
    assert model.hops[-1] == max(model.hops)
    assert not model.wrapped
    assert data.bottleneck == "ici"


def test_slices_are_as_fast_as_their_network() -> None:
    machine = hardware("tpu_v5p", (4, 4, 4), slices=2)
    data = explain_axes(_placed(sized(machine, data=2, model=64)))[0]
    assert data.slices == 2
    assert data.bottleneck == "dcn"
    assert data.bytes_per_s == placements.network_per_device(machine) == 2.5e10 / 4


def test_a_slice_of_half_a_host_has_half_its_network() -> None:
    whole, part = hardware("tpu_v5e", (4, 4), 2), hardware("tpu_v5e", (1, 1), 2)
    assert (
        placements.network_per_device(whole) == placements.network_per_device(part) == 1.25e10 / 4
    )
    assert placements.network_per_device(hardware("tpu_v2", (4, 4), 2)) is None


def test_nvlink_joins_every_pair() -> None:
    model = explain_axes(_placed(sized(hardware("h100", (8,), 2), data=2, model=8)))[1]
    assert model.shape == "switch"
    assert model.bytes_per_s == 450e9


def test_a_ring_order_walks_by_single_hops() -> None:
    wanted = sized(hardware("tpu_v4", (4, 8, 8)), data=16, model=16)
    t5x, ring = explain_axes(_placed(wanted))[1], explain_axes(_placed(wanted, "ring"))[1]
    assert set(ring.hops) == {1}
    assert sum(ring.hops) < sum(t5x.hops)


def test_groups_are_the_rows_of_the_mesh() -> None:
    placement = _placed(sized(hardware("tpu_v4", (2, 2, 4)), data=2, model=8))
    rows = itertools.batched(placement.coordinates(), 8) if hasattr(itertools, "batched") else None
    if rows is not None:
        assert [list(row) for row in rows] == _groups(placement, "model")


def test_what_core_means_depends_on_the_chip() -> None:
    assert "megacore" in placements.core_note(hardware("tpu_v4", (4, 4, 4)))
    assert "one core" in placements.core_note(hardware("tpu_v5e", (4, 4)))
    assert "up to 2" in placements.core_note(hardware("tpu_v3", (4, 4)))
    assert "chiplets" in placements.core_note(hardware("tpu_v7x", (4, 4, 4)))


def test_an_axis_that_crosses_slices_unasked() -> None:
    machine = hardware("tpu_v5p", (4, 4, 4), slices=2)
    (fact,) = dcn_facts(_placed(sized(machine, data=16, model=8)))
    assert (fact.axis.name, fact.inside, fact.across) == ("data", 8, 2)
    asked = target(machine, MeshAxis("r", 2, "dcn"), MeshAxis("m", 64))
    assert not list(dcn_facts(_placed(asked)))


def test_an_axis_between_nodes_alone_is_left_in_peace_and_between_slices_is_not() -> None:
    nodes = sized(hardware("h100", (8,), 4), data=4, model=8)
    assert not list(dcn_facts(_placed(nodes)))
    both = sized(hardware("h100", (8,), 4), data=8, model=4)
    assert [(fact.inside, fact.across) for fact in dcn_facts(_placed(both))] == [(2, 4)]
    slices = sized(hardware("tpu_v5e", (4, 4), slices=2), data=2, model=16)
    assert [(fact.inside, fact.across) for fact in dcn_facts(_placed(slices))] == [(1, 2)]


def test_a_tile_that_lies_badly() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    bad = target(machine, MeshAxis("data", 16), MeshAxis("model", 16, submesh=(2, 2, 4, 1)))
    fact = ring_fact(bad, _placed(bad))
    assert fact is not None
    assert fact.tile == (4, 2, 2, 1)
    assert (fact.now.score.links, fact.then.score.links) == (3, 4)
    assert fact.slower == ()


def test_half_of_every_chip_costs_the_other_axis() -> None:
    machine = hardware("tpu_v3", (8, 8))
    bad = target(machine, MeshAxis("data", 8), MeshAxis("model", 16, submesh=(4, 4, 1, 1)))
    fact = ring_fact(bad, _placed(bad))
    assert fact is not None
    assert fact.tile[3] == 2
    assert [(before.name, after.name) for before, after in fact.slower] == [("data", "data")]


def test_a_tile_with_more_links_is_not_called_worse_than_a_whole_ring() -> None:
    """The score puts rings first; 4x2 has three links where a ring of eight has two."""
    machine = hardware("tpu_v4", (4, 8, 8))
    wanted = target(machine, MeshAxis("data", 32), MeshAxis("model", 8, submesh=(4, 2, 1, 1)))
    assert ring_fact(wanted, _placed(wanted)) is None


def test_a_good_tile_and_plain_sizes_are_left_in_peace() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    good = target(machine, MeshAxis("data", 16), MeshAxis("model", 16, submesh=(4, 2, 2, 1)))
    assert ring_fact(good, _placed(good)) is None
    for plain in (sized(machine, data=16, model=16), sized(hardware("h100", (8,)), model=8)):
        assert ring_fact(plain, _placed(plain)) is None


@given(tiled_targets())
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_what_is_advised_is_faster_and_leaves_nothing_to_advise(wanted: Target) -> None:
    placement = place(wanted)
    fact = ring_fact(wanted, placement) if isinstance(placement, Placement) else None
    assume(fact is not None)
    assert math.prod(fact.tile) == fact.axis.size
    assert fact.then.score < fact.now.score
    if fact.now.bytes_per_s and fact.then.bytes_per_s and fact.then.bottleneck == "ici":
        assert fact.then.bytes_per_s > fact.now.bytes_per_s
    data, model = wanted.mesh.axes
    assert wanted.hardware is not None
    advised = target(wanted.hardware, data, replace(model, submesh=fact.tile))
    assert ring_fact(advised, _placed(advised)) is None


def test_letters_go_on_after_z() -> None:
    assert [placements.Seat(number, 0).letters for number in (0, 25, 26, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "ZZ",
        "AAA",
    ]
    assert str(placements.Seat(1, 12)) == "B12"


def test_the_last_axis_inside_a_slice_is_drawn() -> None:
    machine = hardware("tpu_v5e", (4, 4), slices=2)
    wanted = target(machine, MeshAxis("data", 16), MeshAxis("model", 1), MeshAxis("r", 2, "dcn"))
    placement = place(wanted)
    assert isinstance(placement, Placement)
    assert placements.drawn_axis(placement) == "data"


def test_a_group_differs_only_in_its_axis() -> None:
    placement = place(sized(hardware("cpu", (8,)), data=4, model=2))
    assert isinstance(placement, Placement)
    assert [str(seat) for seat in placements.seats(placement).values()][:4] == [
        "A0",
        "A1",
        "B0",
        "B1",
    ]
    assert [str(seat) for seat in placements.seats(placement, "data").values()][:4] == [
        "A0",
        "B0",
        "A1",
        "B1",
    ]
