"""The small mixture of experts under every preset, in Linen or in NNX, as the T5 is."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from tests.jax_backend import verdicts
from tests.jax_backend.presets import in_turn
from tests.jax_backend.training import collectives, run_of
from tests.models import moe_linen, moe_nnx

by_framework = pytest.mark.parametrize("model", [moe_linen, moe_nnx], ids=["linen", "nnx"])
#: Presets that every run trains; the T5 trains under all of them, and the nightly run here too.
USUAL = {"zero3", "gshard", "t5x/2d", "fsdp-tensor", "expert", "context", "pipeline"}
by_preset = in_turn(moe_linen, moe_nnx, USUAL)


@by_preset
def test_it_trains_as_on_one_device(model: ModuleType, preset: str) -> None:
    verdicts.trains_as_on_one_device(model, preset)


@by_preset
def test_it_splits_what_it_is_for(model: ModuleType, preset: str) -> None:
    verdicts.splits_what_it_is_for(model, preset)


@by_preset
def test_xla_makes_nothing_whole_to_move_it(model: ModuleType, preset: str) -> None:
    verdicts.nothing_is_made_whole(model, preset)


@by_preset
def test_its_collectives(model: ModuleType, preset: str) -> None:
    verdicts.has_its_collectives(model, preset)


@by_framework
def test_tokens_travel_to_their_experts_and_back_by_all_to_all(model: ModuleType) -> None:
    program = run_of(model, "expert")[1].program
    travels = [line for line in program.splitlines() if re.search(r" all-to-all(-start)?\(", line)]
    # There and back, in the forward pass and in the backward pass.
    assert len(travels) == 4
    assert len([line for line in travels if "transpose(jvp" in line]) == 2
    assert all("sharding_constraint" in line for line in travels)
    assert "all-to-all" not in collectives(run_of(model, "fsdp-tensor")[1].program)


@by_framework
def test_the_example_lists_the_model(model: ModuleType) -> None:
    verdicts.example_lists_the_model(model)


@by_framework
def test_the_example_trains(model: ModuleType) -> None:
    verdicts.example_trains(model)
