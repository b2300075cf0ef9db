"""The small T5 under every preset, in Linen or in NNX: ten steps, equal to those of one device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import pytest

from shardspec import assets
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend import verdicts
from tests.jax_backend.presets import STRATEGIES, in_turn, spec_of
from tests.jax_backend.training import (
    REMATERIALIZATION,
    assert_lie_as_planned,
    reference,
    start,
    trained,
)
from tests.models import layers, t5_linen, t5_nnx

by_framework = pytest.mark.parametrize("model", [t5_linen, t5_nnx], ids=["linen", "nnx"])
by_preset = in_turn(t5_linen, t5_nnx)


def test_every_preset_is_trained_with() -> None:
    others = {"serving"}  # answers, and does not train
    names = {name for name in assets.spec_names("presets") if not name.startswith("derive/")}
    assert set(STRATEGIES) == names - others


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
def test_the_example_lists_the_model(model: ModuleType) -> None:
    verdicts.example_lists_the_model(model)


@by_framework
def test_the_example_trains(model: ModuleType) -> None:
    verdicts.example_trains(model)


@pytest.mark.parametrize("table_first", [False, True])
def test_a_gather_where_the_model_has_a_product_would_be_seen(
    monkeypatch: pytest.MonkeyPatch, table_first: bool
) -> None:
    resolver = Resolver(spec_of(STRATEGIES["context"], "tiny-t5"))

    def gather(table: Any, ids: Any) -> Any:
        if table_first and len(table) == layers.VOCAB:
            table = resolver.constrain(table, "vocab _")
        return table[ids]

    monkeypatch.setattr(layers, "lookup", gather)
    run = trained(t5_linen, resolver)
    assert (REMATERIALIZATION in run.log) is not table_first
    verdicts.compare(run, reference(t5_linen))


def test_arrays_that_lie_elsewhere_would_be_seen() -> None:
    params, _ = start(t5_linen)
    planned = Resolver(spec_of(STRATEGIES["zero3"], "tiny-t5"))
    other = Resolver(spec_of(STRATEGIES["data-parallel"], "tiny-t5"))
    plan = planned.plan(params).arrays
    assert_lie_as_planned(planned, plan, planned.put(params))
    with pytest.raises(AssertionError, match="cross_attention"):
        assert_lie_as_planned(planned, plan, other.put(params))
    with pytest.raises(AttributeError, match="sharding"):
        assert_lie_as_planned(planned, plan, jax.device_get(params))
