from __future__ import annotations

import math
from collections import Counter
from itertools import chain, permutations, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.ir.spec import MeshAxis, Target
from shardspec.ir.step import CollectiveKind, ring_bytes
from shardspec.topology.assignment import is_ring
from shardspec.topology.machine import Coordinate, Wire, joined_digits, links_between, stretches
from shardspec.topology.placement import Placement, place
from shardspec.topology.walk import HOP_SECONDS, Leg, legs, start_seconds, walk_seconds
from tests.topology.machines import hardware, sized, target, targets, tiled_targets

ALL_GATHER, ALL_REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE
V5E, V5P, V4, V7X, V6E = 4.5e10, 9e10, 4.5e10, 9e10, 9e10
MIB = 1 << 20
sizes = st.integers(0, 1 << 40)


def placed(wanted: Target, order: str = "t5x") -> Placement:
    found = place(wanted, "ring" if order == "ring" else "t5x")
    assert isinstance(found, Placement)
    return found


def legs_by_axis(wanted: Target, order: str = "t5x") -> dict[str, tuple[Leg, ...] | None]:
    """Return the legs of every mesh axis of a random target, whose tile may not fit."""
    assume(isinstance(place(wanted), Placement))
    return {name: legs(placed(wanted, order), (name,)) for name in wanted.mesh.names}


def stretch(wanted: Target, *names: str, order: str = "t5x") -> tuple[Leg, ...]:
    found = legs(placed(wanted, order), names)
    assert found is not None
    return found


def seconds(kind: CollectiveKind, wanted: Target, *names: str) -> float:
    return walk_seconds(kind, MIB, stretch(wanted, *names))


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        # a whole wrapped dimension: both ways around
        (sized(hardware("tpu_v5e", (16, 16)), a=16, b=16), "b", 15 / 16 / (2 * V5E)),
        # a row that does not wrap: one way there, and the same way back
        (sized(hardware("tpu_v5e", (4, 4)), a=4, b=4), "b", 3 / 4 / V5E),
        # two neighbours have one link
        (sized(hardware("tpu_v5e", (4, 4)), a=8, b=2), "b", 1 / 2 / V5E),
        # the devices of a chip, and then chips, whose links two devices share
        (sized(hardware("tpu_v7x", (4, 4, 4)), a=32, b=4), "b", None),
    ],
)
def test_what_a_gather_takes(wanted: Target, name: str, expected: float | None) -> None:
    if expected is None:
        chip = hardware("tpu_v7x", (4, 4, 4)).chip
        assert chip.pair_bytes_per_s is not None
        expected = 1 / 2 / chip.pair_bytes_per_s + 1 / 2 / 2 / (V7X / 2)
    assert seconds(ALL_GATHER, wanted, name) == pytest.approx(MIB * expected)


def test_several_whole_rings_go_at_once() -> None:
    wanted = sized(hardware("tpu_v5e", (16, 16)), a=16, b=16)
    (leg,) = stretch(wanted, "a", "b")
    assert leg.bytes_per_s == 4 * V5E
    assert leg.ways == 256
    assert leg.diameter == 16


def test_a_tile_and_what_lies_between_tiles() -> None:
    """Of 4x8x8 chips, tiles of 4x2x2: where the walk goes back, two rings share a link.

    Between them lie two rings of every second chip, and each has half of its links.
    """
    wanted = target(
        hardware("tpu_v4", (4, 8, 8)),
        MeshAxis("data", 16),
        MeshAxis("model", 16, submesh=(4, 2, 2, 1)),
    )
    assert stretch(wanted, "model")[0].bytes_per_s == 2 * V4 / 2
    assert stretch(wanted, "data")[0].bytes_per_s == 2 * V4 / 2 + 2 * V4 / 2
    assert stretch(wanted, "model", order="ring")[0].bytes_per_s == 2 * V4


def test_tiles_in_the_order_of_what_was_measured() -> None:
    """T5 11B on a v4-512 with 896 sequences in four parts: 304, 300 and 286 thousand tokens/s.

    Source: the table in "JAX at scale on TPUs, outside of Google"; 24 + 24 layers, 11.3 B
    parameters of f32, five sums of activations forward and back in each pair of layers.
    """
    taken = []
    for tile in ((4, 2, 2, 1), (2, 4, 2, 1), (2, 2, 4, 1)):
        axes = MeshAxis("data", 16), MeshAxis("model", 16, submesh=tile)
        wanted = target(hardware("tpu_v4", (4, 8, 8)), *axes)
        activation = 14 * 512 * 4096 * 2
        sums = 4 * 240 * walk_seconds(ALL_REDUCE, activation, stretch(wanted, "model"))
        taken.append(sums + walk_seconds(ALL_REDUCE, 11.3e9 / 16 * 4, stretch(wanted, "data")))
    assert taken == sorted(taken)
    assert len(set(taken)) == 3


def test_gpus_gather_over_the_network_before_they_do_so_in_a_node() -> None:
    wanted = sized(hardware("h100", (8,), 2), data=16)
    assert [(leg.link, leg.ways) for leg in stretch(wanted, "data")] == [("nvlink", 8), ("dcn", 2)]
    nvlink, network = 7 / 8 / 450e9, 1 / 8 / 2 / 50e9
    assert seconds(ALL_GATHER, wanted, "data") == pytest.approx(MIB * (nvlink + network))


def test_without_a_switch_a_group_has_the_links_between_its_own() -> None:
    """Of seven links of a GPU, those to the others of its group; a shift takes one of them."""
    wanted = sized(hardware("mi300x", (8,)), a=2, b=4)
    link = 64e9
    for name, others in ("a", 1), ("b", 3):
        (leg,) = stretch(wanted, name)
        assert leg.bytes_per_s == leg.pairs_bytes_per_s == pytest.approx(link * others)
        assert leg.shift_bytes_per_s == pytest.approx(link)
    (leg,) = stretch(wanted, "a", "b")
    assert leg.bytes_per_s == pytest.approx(448e9)


def test_of_all_to_all_half_crosses_the_middle() -> None:
    ring = sized(hardware("tpu_v5e", (16, 16)), a=16, b=16)
    pair = sized(hardware("h100", (8,), 2), data=16)
    kind = CollectiveKind.ALL_TO_ALL
    assert seconds(kind, ring, "b") == pytest.approx(MIB * 16 / 8 / V5E)
    assert seconds(kind, pair, "data") == pytest.approx(MIB * (7 / 8 / 450e9 + 1 / 2 / 50e9))


def test_a_shift_goes_one_way() -> None:
    ring = sized(hardware("tpu_v5e", (16, 16)), a=16, b=16)
    kind = CollectiveKind.COLLECTIVE_PERMUTE
    assert seconds(kind, ring, "b") == pytest.approx(MIB / V5E)


def test_little_takes_as_long_as_its_way() -> None:
    ring = sized(hardware("tpu_v5e", (16, 16)), a=16, b=16)
    assert walk_seconds(ALL_GATHER, 1, stretch(ring, "b")) == 8 * HOP_SECONDS
    assert walk_seconds(ALL_REDUCE, 1, stretch(ring, "b")) == 16 * HOP_SECONDS


def test_links_without_a_speed() -> None:
    assert legs(placed(sized(hardware("cpu", (8,)), data=8)), ("data",)) is None
    slices = sized(hardware("tpu_v2", (4, 4), 2), data=2, model=32)
    assert legs(placed(slices), ("data",)) is None
    assert legs(placed(slices), ("model",)) is not None
    assert legs(placed(slices), ()) == ()


@given(st.one_of(targets(), tiled_targets()), sizes, sizes, st.sampled_from(CollectiveKind))
def test_monotone(wanted: Target, one: int, other: int, kind: CollectiveKind) -> None:
    for found in legs_by_axis(wanted).values():
        if found is not None:
            less, more = (walk_seconds(kind, size, found) for size in sorted((one, other)))
            assert 0 <= less <= more


@given(st.one_of(targets(), tiled_targets()))
def test_no_ring_is_faster_than_all_links_of_a_chip(wanted: Target) -> None:
    assert wanted.hardware is not None
    chip, size = wanted.hardware.chip, 1 << 50
    for found in legs_by_axis(wanted).values():
        for leg in found or ():
            sent = ring_bytes(ALL_GATHER, size, leg.ways)
            assert walk_seconds(ALL_GATHER, size, (leg,)) == pytest.approx(sent / leg.bytes_per_s)
            if leg.link == "ici":
                most = (chip.links or 0) * (chip.link_bytes_per_s or 0) / chip.devices_per_chip
                assert leg.bytes_per_s <= most


@given(tiled_targets())
def test_along_a_ring_is_never_slower(wanted: Target) -> None:
    size = 1 << 50
    counted, along = legs_by_axis(wanted), legs_by_axis(wanted, "ring")
    for name, ring in along.items():
        other = counted[name]
        assert (ring is None) == (other is None)
        if ring is not None and other is not None:
            slowest = walk_seconds(ALL_GATHER, size, other)
            assert walk_seconds(ALL_GATHER, size, ring) <= slowest * (1 + 1e-9)


@given(st.one_of(targets(), tiled_targets()), st.sampled_from(["t5x", "ring"]))
def test_the_busiest_link_sets_the_pace(wanted: Target, order: str) -> None:
    """Every step of every group of a mesh axis is routed, and the links are counted."""
    assume(isinstance(place(wanted), Placement))
    lies = placed(wanted, order)
    assume(math.prod(axis.extent for axis in lies.machine) <= 512)
    torus = [at for at, axis in enumerate(lies.machine) if axis.link == "ici"]
    axes = [lies.machine[at] for at in torus]
    speed = lies.hardware.chip.link_bytes_per_s
    for name in wanted.mesh.names:
        (leg,) = [each for each in legs(lies, (name,)) or () if each.link == "ici"] or [None]
        digits = joined_digits(d for d in lies.axis(name).digits if d.axis in torus)
        if leg is None or speed is None or all(is_ring(d, lies.machine[d.axis]) for d in digits):
            continue
        there, back = Counter[Wire](), Counter[Wire]()
        for group in groups(lies, name, torus):
            for one, other in zip(group, (*group[1:], group[0]), strict=True):
                there.update(links_between(one, other, axes))
                back.update(links_between(other, one, axes))
        own = speed / lies.hardware.chip.devices_per_chip
        assert leg.shift_bytes_per_s == pytest.approx(own / max(there.values()))
        assert leg.bytes_per_s == pytest.approx(own * 2 / max((there + back).values()))


@pytest.mark.parametrize(
    "wanted",
    [
        target(
            hardware("tpu_v4", (4, 4, 12)),
            *(MeshAxis("fsdp", 4), MeshAxis("sequence", 2), MeshAxis("tensor", 3)),
            MeshAxis("data", 8, submesh=tile),
        )
        for tile in ((1, 2, 4, 1), (1, 4, 2, 1), (2, 2, 2, 1))
    ]
    + [sized(hardware("tpu_v5p", (4, 4, 8)), a=4, b=2, c=4, d=4)],
)
@pytest.mark.parametrize("order", ["t5x", "ring"])
def test_several_axes_go_one_ring_whose_links_are_counted(wanted: Target, order: str) -> None:
    lies = placed(wanted, order)
    speed, names = lies.hardware.chip.link_bytes_per_s, lies.mesh.names
    assert speed is not None
    for some in chain.from_iterable(permutations(names, count) for count in (1, 2, 3)):
        (leg,) = legs(lies, some) or ()
        digits = joined_digits(digit for name in some for digit in lies.axis(name).digits)
        if not all(is_ring(digit, lies.machine[digit.axis]) for digit in digits):
            counted = stretches(lies.mesh, lies.coordinates(), lies.machine, some)
            assert leg.shift_bytes_per_s == pytest.approx(speed / counted.one_way), some
            assert leg.bytes_per_s == pytest.approx(speed * 2 / counted.both_ways), some


def groups(lies: Placement, name: str, torus: list[int]) -> set[tuple[Coordinate, ...]]:
    """Return the chips of each group of a mesh axis in the order in which the axis counts them."""
    at, names = lies.mesh.names.index(name), lies.mesh.names
    sizes = [lies.mesh.sizes[each] for each in names]
    found: dict[tuple[int, ...], dict[Coordinate, None]] = {}
    for chip, index in zip(lies.coordinates(), product(*map(range, sizes)), strict=True):
        group = found.setdefault((*index[:at], *index[at + 1 :]), {})
        group[tuple(chip[each] for each in torus)] = None
    return {tuple(group) for group in found.values()}


def test_collectives_between_gpus_have_a_start_and_those_of_tpus_none() -> None:
    """Eight GPUs of a node: a ring of seven steps, twice for an all-reduce."""
    gpus, tpus = (
        sized(hardware(name, shape), a=8) for name, shape in (("h100", (8,)), ("tpu_v5e", (2, 4)))
    )
    found = start_seconds(placed(gpus), ALL_REDUCE, stretch(gpus, "a"))
    assert found == pytest.approx(10e-6 + 14 * 1.9e-6)
    assert start_seconds(placed(tpus), ALL_REDUCE, stretch(tpus, "a")) == 0
