"""The groups of devices of a collective, in all the ways that XLA prints them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.programs.groups import members_of, turned
from shardspec.programs.hlo import Instruction

MESH = Mesh((MeshAxis("data", 2), MeshAxis("fsdp", 4), MeshAxis("tensor", 2)))


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
    members = members_of(collective(said), 16)
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
    assert members_of(collective(said), 16) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_block_is_turned_as_an_array_is(dims: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(dims))))
    places = list(itertools.product(*map(range, dims)))
    wanted = sorted(range(len(places)), key=lambda at: [places[at][dim] for dim in order])
    assert turned(range(len(places)), dims, order) == tuple(wanted)
