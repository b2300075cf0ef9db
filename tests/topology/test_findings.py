from __future__ import annotations

from shardspec.ir.mesh import MeshAxis
from shardspec.topology.findings import core_fact, core_note, dcn_facts, product_fact, ring_fact
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized, target


def _placed(wanted: object) -> Placement:
    placement = place(wanted)  # type: ignore[arg-type]
    assert isinstance(placement, Placement)
    return placement


def test_unused_devices_and_the_sizes_that_fit() -> None:
    machine = hardware("tpu_v5e", (4, 8))
    fact = product_fact(sized(machine, data=4, model=6).mesh, machine)
    assert fact is not None
    assert fact.unused == 8
    assert fact.arithmetic == "24 of 32 devices used, 8 left over"
    assert fact.fitting == (("model", 8),)


def test_too_many_devices() -> None:
    machine = hardware("tpu_v5e", (4, 8))
    fact = product_fact(sized(machine, data=8, model=8).mesh, machine)
    assert fact is not None
    assert fact.arithmetic == "64 devices wanted, 32 there"
    assert product_fact(sized(machine, data=8, model=4).mesh, machine) is None


def test_two_cores_on_megacore() -> None:
    axis = MeshAxis("model", 16, submesh=(4, 2, 1, 2))
    fact = core_fact(axis, hardware("tpu_v4", (4, 4, 8)))
    assert fact is not None
    assert (fact.asked, fact.there) == (2, 1)
    assert core_fact(axis, hardware("tpu_v3", (4, 4))) is None


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


def test_a_tile_that_lies_badly() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    bad = target(machine, MeshAxis("data", 16), MeshAxis("model", 16, submesh=(2, 2, 4, 1)))
    fact = ring_fact(_placed(bad))
    assert fact is not None
    assert fact.better.tile == (4, 2, 2, 1)
    assert fact.explanation.score.links == 3


def test_a_good_tile_is_left_in_peace() -> None:
    machine = hardware("tpu_v4", (4, 8, 8))
    good = target(machine, MeshAxis("data", 16), MeshAxis("model", 16, submesh=(4, 2, 2, 1)))
    assert ring_fact(_placed(good)) is None
    assert ring_fact(_placed(sized(hardware("h100", (8,)), model=8))) is None
