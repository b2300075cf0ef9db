"""What `dispatch` and `combine` stand for, and how many slots experts have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis.step_values import Slots, slots_of
from shardspec.ir.program import Experts
from tests.analysis.test_spec_step import step_of

TOKENS, SCORES = ("batch", "length", "embed"), ("batch", "length", "router")

TEXT = """
axes: {batch: 8, length: 16, embed: 32, mlp: 64, expert: 4, router: 4}
mesh: {expert: 4}
rules: [expert -> expert, batch -> expert, "length, embed, mlp, router -> none"]
params: {router: embed router, up: expert embed mlp, down: expert mlp embed}
arrays: {router: "f32[32, 4]", up: "f32[4, 32, 64]", down: "f32[4, 64, 32]"}
activations: {residual: batch length embed}
step:
  mode: serve
  experts: top 2 capacity 1.5
  program:
    - residual, "router" -> routing[batch length router]
    - dispatch(residual, routing) -> arrived[expert batch slot embed]
    - arrived, "up" -> hidden[expert batch slot mlp]
    - hidden, "down" -> made[expert batch slot embed]
    - combine(made, routing) -> residual
"""
SLOTS = 12  # 16 * 2 / 4 * 1.5


def test_tokens_are_multiplied_with_a_mask_there_and_back() -> None:
    step = step_of(TEXT)
    routing = 2 * 8 * 16 * 32 * 4
    masks = 2 * (2 * 8 * 16 * 32 * 4 * SLOTS)
    products = 2 * (2 * 4 * 8 * SLOTS * 32 * 64)
    assert step.flops * 4 == routing + masks + products
    (there, back) = (each for each in step.collectives if each.mesh_axes == ("expert",))
    assert there.wire_bytes == back.wire_bytes == 4 * 8 * SLOTS * 32 * 2 // 4 * 3 // 4


def test_an_axis_may_say_how_many_slots_there_are() -> None:
    stated = TEXT.replace("router: 4}", "router: 4, slot: 12}", 1)
    by_axis, by_word = step_of(stated.replace("  experts: top 2 capacity 1.5\n", "")), step_of(TEXT)
    assert (by_axis.flops, by_axis.wire_bytes) == (by_word.flops, by_word.wire_bytes)


@pytest.mark.parametrize(
    ("result", "lacks"),
    [
        (["expert", "batch", "slot", "embed"], None),
        (["batch", "slot", "embed"], "two names"),
        (["expert", None, "slot", "embed"], "two names"),
        (["expert", "slot", "embed"], "leave out one"),
        (["expert", "batch", "length", "slot", "embed"], "leave out one"),
    ],
)
def test_a_result_names_experts_and_slots(result: list[str | None], lacks: str | None) -> None:
    found = slots_of(TOKENS, SCORES, result)
    if lacks is None:
        assert found == Slots("expert", "slot", "length", "router")
    else:
        assert lacks in str(found)


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_experts_have_room_for_their_share(
    tokens: int, experts: int, choices: int, quarters: int
) -> None:
    """With a capacity of 1 or more no token is dropped that goes where all go evenly."""
    capacity = quarters / 4
    slots = Experts(choices, capacity).slots(tokens, experts)
    share = math.ceil(tokens * choices / experts)
    assert 1 <= slots <= max(1, math.ceil(share * capacity), math.ceil(capacity))
    assert capacity < 1 or slots >= share
