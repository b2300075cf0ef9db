from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given

from shardspec.ir.mesh import MeshAxis
from shardspec.ir.spec import Target
from shardspec.topology.findings import core_note, dcn_facts, ring_fact
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized, target, tiled_targets


def _placed(wanted: Target) -> Placement:
    placement = place(wanted)
    assert isinstance(placement, Placement)
    return placement


def test_what_core_means_depends_on_the_chip() -> None:
    assert "megacore" in core_note(hardware("tpu_v4", (4, 4, 4)))
    assert "one core" in core_note(hardware("tpu_v5e", (4, 4)))
    assert "up to 2" in core_note(hardware("tpu_v3", (4, 4)))
    assert "chiplets" in core_note(hardware("tpu_v7x", (4, 4, 4)))


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
def test_what_is_advised_is_faster_and_leaves_nothing_to_advise(wanted: Target) -> None:
    placement = place(wanted)
    fact = ring_fact(wanted, placement) if isinstance(placement, Placement) else None
    if fact is None:
        return
    assert math.prod(fact.tile) == fact.axis.size
    assert fact.then.score < fact.now.score
    if fact.now.bytes_per_s and fact.then.bytes_per_s and fact.then.bottleneck == "ici":
        assert fact.then.bytes_per_s > fact.now.bytes_per_s
    data, model = wanted.mesh.axes
    assert wanted.hardware is not None
    advised = target(wanted.hardware, data, replace(model, submesh=fact.tile))
    assert ring_fact(advised, _placed(advised)) is None
