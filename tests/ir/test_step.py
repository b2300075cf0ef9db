"""The noun of a step, and the laws of its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Mesh, MeshAxis, PartitionSpec
from shardspec.ir.step import (
    Carried,
    Collective,
    CollectiveKind,
    Place,
    Step,
    StepArray,
    StepOp,
    Unknown,
    idle_ways,
    ring_bytes,
    told_once,
)

ARRAY = StepArray("bf16", (8, 16), PartitionSpec(((), ("fsdp",))), (8, 4))
kinds = st.sampled_from(CollectiveKind)


def collective(
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    axes: tuple[str, ...] = ("fsdp",),
    payload: int = 1000,
    count: float = 3,
) -> Collective:
    sent = ring_bytes(kind, payload, 4)
    return Collective(kind, axes, payload, sent, count, ARRAY, Place(), "forward")


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-gather", 750),
        ("reduce-scatter", 750),
        ("all-to-all", 750),
        ("all-reduce", 1500),
        ("collective-permute", 1000),
    ],
)
def test_what_a_ring_of_four_sends(kind: str, sent: int) -> None:
    assert ring_bytes(CollectiveKind(kind), 1000, 4) == sent


@given(kinds, st.integers(0, 2**60), st.integers(1, 5000))
def test_ring(kind: CollectiveKind, payload: int, ways: int) -> None:
    sent = ring_bytes(kind, payload, ways)
    assert 0 <= sent <= 2 * payload
    assert ways > 1 or sent == 0


@given(st.integers(0, 2**40), st.integers(1, 64))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(payload: int, ways: int) -> None:
    halves = ring_bytes(CollectiveKind.REDUCE_SCATTER, payload, ways) + ring_bytes(
        CollectiveKind.ALL_GATHER, payload, ways
    )
    assert 0 <= ring_bytes(CollectiveKind.ALL_REDUCE, payload, ways) - halves <= 1


@given(
    st.lists(
        st.builds(
            collective,
            kinds,
            st.sampled_from([("fsdp",), ("tensor",), ("fsdp", "tensor")]),
            st.integers(0, 2**30),
            st.integers(1, 80),
        )
    )
)
def test_whole(collectives: list[Collective]) -> None:
    step = Step("code", Mesh(), collectives=tuple(collectives))
    assert sum(step.wire_bytes.values()) == sum(each.wire_bytes for each in collectives)


def test_an_op_knows_its_flops_bytes_and_idle_devices() -> None:
    wide = StepArray("f32", (16, 4), PartitionSpec(((), ())), (16, 4))
    result = StepArray("bf16", (8, 4), PartitionSpec(((), ())), (8, 4))
    op = StepOp(
        "einsum", "ab,bc->ac", (ARRAY, wide), result, 1024, 2, Place(), "forward", ("fsdp",)
    )
    mesh = Mesh((MeshAxis("fsdp", 4), MeshAxis("tensor", 8)))
    assert (op.dtype, op.bytes) == ("f32", 64 + 256 + 64)
    assert idle_ways(op, mesh) == 8
    assert Step("spec", mesh, ops=(op, op)).flops == 4096


def test_what_is_carried_is_said_in_words() -> None:
    assert str(Carried("weight", "layers/mlp/wi")) == "weight layers/mlp/wi"
    assert str(Carried("gradient", "layers/mlp/wi")) == "gradient of layers/mlp/wi"
    assert str(Carried("einsum", "bte,ef->btf")) == "bte,ef->btf"
    assert str(Carried()) == "unknown"
    assert str(Place("model.py", 71)) == "model.py:71"
    assert str(Place()) == "unknown"


def test_what_is_unknown_alike_is_told_once() -> None:
    one = Unknown("ragged-all-to-all", "it depends on the data", ("sends",), Place("moe.py", 7))
    other = replace(one, place=Place("moe.py", 9))
    twice, once = told_once([one, other, replace(one, count=31)])
    assert (twice, once) == (replace(one, count=32), other)
