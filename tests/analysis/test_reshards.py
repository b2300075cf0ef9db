"""Which transitions XLA has moves for, against what its log said of 900 of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Mesh, MeshAxis, PartitionSpec
from shardspec.lints.evidence.steps import goes_straight, is_reachable, stop_between, straight_bytes

DATA = Path(__file__).parents[1] / "data" / "reshards.json"
FOUND: Any = json.loads(DATA.read_text(encoding="utf-8"))
DEVICES = [key for key in FOUND if key.isdigit()]
MESH = Mesh((MeshAxis("x", 4), MeshAxis("y", 2), MeshAxis("z", 2)))


def spec(*dims: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(dims)


@st.composite
def specs(draw: st.DrawFn, rank: int = 3) -> PartitionSpec:
    places = draw(st.tuples(*[st.integers(-1, rank - 1)] * len(MESH.axes)))
    names = draw(st.permutations(MESH.names))
    at = dict(zip(names, places, strict=True))
    return PartitionSpec(tuple(tuple(n for n in names if at[n] == dim) for dim in range(rank)))


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("told", ["gathered", "straight"])
def test_what_the_log_of_xla_says(devices: str, told: str) -> None:
    pairs = FOUND[devices][told]
    assert len(pairs) > 20
    wrong = [
        (before, after)
        for before, after in pairs
        if is_reachable(tuple(before), tuple(after), int(devices)) == (told == "gathered")
    ]
    assert wrong == []


def test_the_two_activations_of_xla_15207() -> None:
    mesh = Mesh((MeshAxis("x", 4), MeshAxis("y", 2)))
    before, after = spec(("y",), (), ("x",)), spec((), ("x", "y"), ())
    assert not goes_straight(before, after, mesh)
    assert stop_between(before, after, mesh, 1024) == spec(("y",), ("x",), ())


@given(specs(), specs())
def test_a_stop_has_moves_on_both_sides(before: PartitionSpec, after: PartitionSpec) -> None:
    stop = stop_between(before, after, MESH, 1 << 20)
    assert stop is not None
    assert goes_straight(before, stop, MESH)
    assert goes_straight(stop, after, MESH)


@given(specs())
def test_staying_and_splitting_further_send_nothing(before: PartitionSpec) -> None:
    assert goes_straight(before, before, MESH)
    assert straight_bytes(1 << 20, before, before, MESH) == 0
    whole = PartitionSpec(((),) * 3)
    assert straight_bytes(1 << 20, whole, before, MESH) == 0
    assert goes_straight(whole, before, MESH)
    assert goes_straight(before, whole, MESH)


def test_what_is_sent_in_one_go() -> None:
    rows, columns = spec(("x",), ()), spec((), ("x",))
    assert straight_bytes(1024, rows, columns, MESH) == 768
    assert straight_bytes(1024, rows, spec((), ()), MESH) == 3 * 1024
    assert straight_bytes(1024, rows, spec((), ("y",)), MESH) == 3 * 512
