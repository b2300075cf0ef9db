"""Which meshes there are to choose from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.spec import Mesh, MeshAxis, divisors
from shardspec.search import variants as module
from shardspec.search.variants import (
    Freedom,
    Refusal,
    Variant,
    candidates,
    machine_of,
    size_text,
    sizes_of,
)
from shardspec.topology.placement import Placement, place
from tests.search.specs import spec_of


def mesh(**sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))


@given(st.integers(1, 720), st.integers(1, 4))
def test_sizes_are_all_factorisations(devices: int, axes: int) -> None:
    """Held against all tuples of divisors, which is the definition."""
    today = mesh(**{f"a{at}": devices if at == 0 else 1 for at in range(axes)})
    found = sizes_of(today, devices, {}).found
    assert len(set(found)) == len(found)
    assert all(math.prod(sizes) == devices for sizes in found)
    assert found[0] == tuple(today.sizes.values())  # the nearest to today's is today's
    count = 1
    for prime, power in _factors(devices):
        assert prime > 1
        count *= math.comb(power + axes - 1, axes - 1)
    assert len(found) == count


def _factors(number: int) -> list[tuple[int, int]]:
    found = []
    for prime in range(2, number + 1):
        power = 0
        while number % prime == 0:
            number, power = number // prime, power + 1
        if power:
            found.append((prime, power))
    return found


def test_primes_have_few_sizes() -> None:
    assert set(sizes_of(mesh(a=1, b=13), 13, {}).found) == {(1, 13), (13, 1)}


def test_sizes_that_are_kept_stay() -> None:
    found = sizes_of(mesh(a=2, b=8), 16, {"b": (4, 8, 3)}).found
    assert set(found) == {(2, 8), (4, 4)}
    assert sizes_of(mesh(a=2, b=8), 16, {"b": (3,)}).found == ()


def test_more_sizes_than_anybody_waits_for_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SIZES", 50)
    today = mesh(**{f"a{at}": 1 if at else 2**20 for at in range(8)})
    found = sizes_of(today, 2**20, {})
    assert found.is_cut
    assert len(found.found) == 50


@pytest.mark.parametrize("at", [0, 1])
def test_every_candidate_is_another_and_lies_on_its_machine(at: int) -> None:
    spec = spec_of()
    target = spec.targets[at]
    assert target.hardware is not None
    found = list(candidates(target, target.hardware, [Variant(spec)], Freedom()))
    assert len({(each.mesh, each.order) for each in found}) == len(found)
    assert target.mesh in {each.mesh for each in found}
    for each in found:
        assert isinstance(place(each.target, each.order), Placement), str(each)
    assert {each.order for each in found} == {"t5x", "ring"}
    assert any(axis.submesh for each in found for axis in each.mesh.axes)


def test_each_axis_may_cross_slices() -> None:
    spec = spec_of()
    target = spec.targets[1]
    assert target.hardware is not None
    found = list(candidates(target, target.hardware, [Variant(spec)], Freedom()))
    across = {axis.name for each in found for axis in each.mesh.axes if axis.network == "dcn"}
    assert across == {"data", "fsdp", "tensor"}
    for each in found:
        ways = math.prod(axis.size for axis in each.mesh.axes if axis.network == "dcn")
        assert ways in (1, 2)


def test_what_is_not_free_stays() -> None:
    spec = spec_of()
    target = spec.targets[0]
    assert target.hardware is not None
    still = Freedom(mesh=False, order=False)
    (only,) = candidates(target, target.hardware, [Variant(spec)], still)
    assert (only.mesh, only.order) == (target.mesh, spec.policy.order)
    orders = Freedom(mesh=False)
    found = list(candidates(target, target.hardware, [Variant(spec)], orders))
    assert [each.mesh for each in found] == [target.mesh] * 2


def test_sizes_are_written_as_a_spec_does() -> None:
    axes = (
        MeshAxis("a", 4),
        MeshAxis("b", 2, "dcn"),
        MeshAxis("c", 8, submesh=(2, 2, 2, 1)),
    )
    assert [size_text(axis) for axis in axes] == ["4", "2 @ dcn", "submesh 2x2x2x1"]


def test_machines_are_read_as_in_a_spec() -> None:
    found = machine_of("2 * tpu v5p 2x2x4")
    assert not isinstance(found, Refusal)
    assert replace(found, span=None) == spec_of().targets[1].hardware
    assert isinstance(machine_of("tpu v5x 4x4"), Refusal)
    assert isinstance(machine_of("{1..3} * tpu v5e 4x4"), Refusal)
    assert divisors(1) == (1,)


@pytest.mark.parametrize("machine", ["tpu v5e 4x4", "tpu v4 2x2x4", "2 * h100", "16 cpu"])
def test_an_order_by_hand_is_tried_where_it_lies(machine: str) -> None:
    spec, _ = pipeline.load_text(
        "hardware: tpu v5e 4x4\nmesh: {data: over y, tensor: over x}\nrules: [a -> data]", "s.yaml"
    )
    assert spec is not None
    (today,) = spec.targets
    found = machine_of(machine)
    assert not isinstance(found, Refusal)
    tried = [*candidates(today, found, [Variant(spec)], Freedom())]
    assert tried
    assert any(each.target.mesh.axes[0].over for each in tried) == (machine == "tpu v5e 4x4")
    listed = replace(today, devices=tuple(reversed(range(16))))
    for each in candidates(listed, found, [Variant(spec)], Freedom()):
        is_today = each.target.mesh == today.mesh and machine == "tpu v5e 4x4"
        assert bool(each.target.devices) == is_today
