"""What a traced step sends, against libtpu's final programs, and each correction for itself."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import shardspec
from shardspec.ir.step import Step
from shardspec.jax_backend import step_passes, step_rewrites
from shardspec.jax_backend.step_reading import step_of
from tests.models import small_steps
from tests.models.steps import CASES

DATA = Path(__file__).parents[1] / "data"
FINAL: Any = json.loads((DATA / "final_programs.json").read_text(encoding="utf-8"))

#: The most that the sum over mesh axes may be off, as a share of what the final program sends.
USUAL = 0.05
#: libtpu keeps some sums of gradients whole, and which is not known without it.
LARGE_LIMITS = {"llama-70b-v5p-4096": 0.10, "t5-xxl-v5e": 0.08}
SMALL_LIMITS: dict[str, float] = {}
#: Steps of real sizes that every run takes; the others are for the nightly one.
USUAL_CASES = ("llama-4-layers-v5p", "decode-8b-v5e", "llama-70b-v5p-512", "moe-47b-v5p")
REAL_SIZES = [
    name if name in USUAL_CASES else pytest.param(name, marks=pytest.mark.nightly) for name in CASES
]


@cache
def large(name: str) -> Step:
    resolver = shardspec.Resolver(shardspec.loads(CASES[name].spec), "pod", devices="abstract")
    function, args = CASES[name].step(resolver)
    return step_of(resolver, function, *args)


def small(name: str) -> Step:
    resolver = small_steps.resolver()
    function, args = small_steps.PROGRAMS[name](resolver)
    return step_of(resolver, function, *args)


def sent(step: Step) -> dict[str, int]:
    return {"+".join(axes): count for axes, count in step.wire_bytes.items()}


def error(ours: dict[str, int], final: dict[str, int]) -> float:
    names = {*ours, *final}
    off = sum(abs(ours.get(name, 0) - final.get(name, 0)) for name in names)
    return off / sum(final.values())


@pytest.mark.parametrize("name", REAL_SIZES)
def test_steps_of_real_sizes(name: str) -> None:
    assert error(sent(large(name)), FINAL["large"][name]) <= LARGE_LIMITS.get(name, USUAL)


@pytest.mark.parametrize("name", FINAL["small"])
def test_small_steps(name: str) -> None:
    assert error(sent(small(name)), FINAL["small"][name]) <= SMALL_LIMITS.get(name, USUAL)


def test_every_program_has_its_figures() -> None:
    assert set(FINAL["large"]) == set(CASES)
    assert set(FINAL["small"]) == set(small_steps.PROGRAMS)


#: A program in which a correction matters, and how far off it is without that, at least.
CORRECTIONS = {
    "equal_gathers_once": ("custom_rule", 0.15),
    "narrow_gathers": ("shard_mapped", 0.25),
    "partial_sums_once": ("two_weights", 0.2),
    "sliced_sums_scattered": ("sharded_moments", 0.9),
    "windowed_products": ("kept_activations", 0.07),
}
#: Those that matter where there are tables.
OF_TABLES = {"lookups_exchanged": 0.05, "constants_made_in_place": 0.05}


def without(monkeypatch: pytest.MonkeyPatch, correction: str) -> None:
    monkeypatch.setattr(step_rewrites, correction, lambda sends, *_: sends)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_correction_matters(correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, least = CORRECTIONS[correction]
    assert error(sent(small(name)), FINAL["small"][name]) <= USUAL / 2
    without(monkeypatch, correction)
    assert error(sent(small(name)), FINAL["small"][name]) >= least


@pytest.mark.parametrize("correction", OF_TABLES)
def test_a_correction_of_tables_matters(correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "llama-4-layers-v5p"
    final = FINAL["large"][name]
    assert error(sent(large(name)), final) <= 0.01
    without(monkeypatch, correction)
    assert error(sent(large.__wrapped__(name)), final) >= OF_TABLES[correction]


def test_units_are_reshaped_as_xla_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, activations that a scan keeps lie as a gradient does, and are sent around."""
    final = FINAL["small"]["kept_activations"]
    assert error(sent(small("kept_activations")), final) <= 0.01
    monkeypatch.setattr(step_passes, "_reshape_units", lambda block: None)
    assert error(sent(small("kept_activations")), final) >= 1


@pytest.mark.parametrize("name", REAL_SIZES)
def test_nearly_all_bytes_have_a_name_and_a_rule(name: str) -> None:
    collectives = large(name).collectives
    told = sum(
        each.wire_bytes
        for each in collectives
        if each.carries.kind != "unknown" and all(cause.span for cause in each.because)
    )
    assert told >= 0.95 * sum(each.wire_bytes for each in collectives)
    assert all(each.place.file.startswith("tests/models/") for each in collectives)
