"""The groups of devices of a collective, in all the ways that XLA prints them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.programs.hlo import Instruction
from shardspec.programs.members import Slices, crossing_of, members_of, slices_of, turned

MESH = Mesh((MeshAxis("data", 2), MeshAxis("fsdp", 4), MeshAxis("tensor", 2)))
ALL = Slices(tuple(range(16)), (0,))
#: Four slices of four devices.
SLICED = Mesh(
    (MeshAxis("a", 2, "dcn"), MeshAxis("fsdp", 2), MeshAxis("b", 2, "dcn"), MeshAxis("tensor", 2))
)


#: What libtpu tells the hosts.
TOLD = (
    "frontend_attributes={{_xla_megascale_target={},"
    '_xla_megascale_transfer_type="{}",is_spmd_generated="true"}}'
)


def collective(attributes: str) -> Instruction:
    return Instruction("c", "f32[4]", "all-reduce", ("x",), "%x", f", channel_id=1, {attributes}")


@pytest.mark.parametrize(
    ("said", "axes", "ways"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7},{8,9},{10,11},{12,13},{14,15}}", "tensor", 2),
        ("replica_groups=[8,2]<=[16], use_global_device_ids=true", "tensor", 2),
        ("replica_groups=[4,4]<=[2,4,2]T(0,2,1), dimensions={0}", "fsdp", 4),
        ("replica_groups=[2,8]<=[8,2]T(1,0)", "data fsdp", 8),
        ("replica_groups=[1,16]<=[16]", "data fsdp tensor", 16),
        ("replica_groups={}", "data fsdp tensor", 16),
        ("dimensions={0}", "data fsdp tensor", 16),
        ("replica_groups=mesh['a'=8,'b'=2] {'a'}, use_global_device_ids=true", "data fsdp", 8),
        ("replica_groups=mesh['a'=8,'b'=2] {'a','b'}", "data fsdp tensor", 16),
        ("replica_groups=mesh['a'=8,'b'=2] {'a':(2)4}", "fsdp", 4),
        ("replica_groups=mesh['a'=16] {'a':(1)2}", "data", 2),
        ("replica_groups=mesh['a'=16] {'a':(1)2,'a':(8)2}", "data tensor", 4),
        ("replica_groups=mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'b'}", "data fsdp", 8),
        ("replica_groups=mesh['a'=2,'b'=8], device_ids=([8,2]T(1,0)) {'a'}", "tensor", 2),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}, x=1", "fsdp", 2),
        ("source_target_pairs={{0,0},{1,9}}", "data", 2),
    ],
)
def test_axes(said: str, axes: str, ways: int) -> None:
    members = members_of(collective(said), ALL)
    assert members is not None
    assert (" ".join(members.axes(MESH)), members.ways) == (axes, ways)


@pytest.mark.parametrize(
    "said",
    [
        "replica_groups={{0,16}}",
        "replica_groups=[2,16]<=[32]",
        "replica_groups=[16,1]<=[4,4]T(0,0)",
        "replica_groups=mesh['a'=4] {'a'}",
        "replica_groups=mesh['a'=16] {'b'}",
        "replica_groups=mesh['a'=16] {'a':(3)2}",
        "replica_groups=mesh['a'=16], device_ids=([3,5]) {'a'}",
        "replica_groups=some other way",
        "source_target_pairs={{0,99}}",
    ],
)
def test_what_cannot_be_is_not_read(said: str) -> None:
    assert members_of(collective(said), ALL) is None


def test_a_program_of_one_slice() -> None:
    slices = slices_of(SLICED, 4)
    assert slices == Slices((0, 1, 4, 5), (0, 2, 8, 10))
    members = members_of(collective("replica_groups={{0,2},{1,3}}"), slices)
    assert members is not None
    assert (members.axes(SLICED), members.ways) == (("fsdp",), 2)
    assert slices_of(SLICED, 8) is None
    assert slices_of(MESH, 8) is None


@pytest.mark.parametrize(
    ("kind", "target", "axes", "ways"),
    [
        ("ALL_REDUCE", '"{1,2,3,4}x{0:3}"', "a b", 4),
        ("ALL_GATHER", "{{100000,300000},{100002,300002},{100001,300001}}", "a", 2),
        ("REDUCE_SCATTER", "{{100000,200000},{300000,400000}}", "b", 2),
        (
            "ALL_TO_ALL",
            "{{100000,100002,300000,300002},{100001,100003,300001,300003}}",
            "a tensor",
            4,
        ),
        ("ONE_TO_ONE", "{{100000->300000},{300000->100000}}", "a", 2),
    ],
)
def test_what_crosses_slices(kind: str, target: str, axes: str, ways: int) -> None:
    # what libtpu prints; the devices 0, 2, 1, 3 of a slice stand so in its mesh
    told = TOLD.format(target, kind)
    slices = slices_of(SLICED, 4)
    assert slices is not None
    send = replace(collective(told), operation="send")
    found = crossing_of(send, slices)
    assert found is not None
    own, members = found
    assert own.name in (kind, "COLLECTIVE_PERMUTE")
    assert members is not None
    assert (" ".join(members.axes(SLICED)), members.ways) == (axes, ways)
    assert crossing_of(collective(told), slices) is None


def test_chips_are_where_the_program_says() -> None:
    # chips of a slice are counted by rows of the machine, its mesh goes by columns
    inner = (0, 2, 1, 3)
    at = {
        first + device: 100_000 * s + inner[d]
        for s, first in enumerate((0, 2, 8, 10), 1)
        for d, device in enumerate((0, 1, 4, 5))
    }
    chips = tuple(at[place] for place in range(SLICED.device_count))
    slices = slices_of(SLICED, 4, chips)
    assert slices is not None
    assert slices.chips == chips
    # the second device of the first slice of `b` sends to the second one of the second slice
    told = TOLD.format("{{100002->200002}}", "ONE_TO_ONE")
    found = crossing_of(replace(collective(told), operation="send"), slices)
    assert found is not None
    assert found[1] is not None
    assert found[1].groups == [(1, 3)]
    assert slices_of(SLICED, 4, chips[1:]) == slices_of(SLICED, 4)


@pytest.mark.parametrize(
    "target", ['"{1,5}x{0:3}"', "{{100000,500000}}", "{{100000,200009}}", '"all"']
)
def test_slices_that_are_not_there(target: str) -> None:
    told = TOLD.format(target, "ALL_REDUCE")
    slices = slices_of(SLICED, 4)
    assert slices is not None
    found = crossing_of(replace(collective(told), operation="send"), slices)
    assert found is not None
    assert found[1] is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_block_is_turned_as_an_array_is(dims: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(dims))))
    places = list(itertools.product(*map(range, dims)))
    wanted = sorted(range(len(places)), key=lambda at: [places[at][dim] for dim in order])
    assert turned(range(len(places)), dims, order) == tuple(wanted)
