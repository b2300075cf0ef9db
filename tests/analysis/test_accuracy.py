"""How well the model is known: laws of intervals and of how likely a step fits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis import accuracy
from shardspec.analysis.accuracy import (
    LEARNED,
    LEVELS,
    STATED,
    SURE,
    fits_probability,
    interval,
)
from shardspec.analysis.step_memory import Amount, StepMemory, step_memory
from tests.analysis.test_spec_step import plan_of, stated
from tests.generated.table import learned
from tests.generated.table import ratios as ratios_of

ratios = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60)
sizes = st.integers(0, 2**40)
platforms = st.sampled_from(("tpu", "gpu"))
modes: st.SearchStrategy[accuracy.Mode] = st.sampled_from(("train", "serve"))


@given(ratios)
def test_what_is_learned_rises_and_stays_within_the_rows(found: list[float]) -> None:
    rows = learned(found)
    assert rows.size == len(found)
    assert list(rows.ratios) == sorted(rows.ratios)
    assert min(found) * 0.995 <= rows.ratios[0]
    assert rows.ratios[-1] <= max(found) * 1.005


@given(ratios.filter(lambda found: len(found) >= 20))
def test_nine_in_ten_rows_are_within_the_interval(found: list[float]) -> None:
    rows = learned(found)
    low, high = rows.ratios[0] * 0.99, rows.ratios[-1] * 1.01
    assert sum(low <= each <= high for each in found) >= 0.88 * len(found)


@given(sizes, platforms, modes)
def test_an_interval_is_in_order(predicted: int, platform: str, mode: accuracy.Mode) -> None:
    for off in ("memory", "sends"):
        found = interval(predicted, platform, mode, off)  # type: ignore[arg-type]
        assert found is not None
        assert 0 <= found.low <= found.high


@given(sizes.filter(bool), st.lists(sizes, min_size=2), platforms, modes)
def test_more_room_is_never_less_likely_enough(
    predicted: int, limits: list[int], platform: str, mode: accuracy.Mode
) -> None:
    likely = [fits_probability(predicted, each, platform, mode) for each in sorted(limits)]
    assert all(each is not None and 0 < each < 1 for each in likely)
    assert all(a <= b for a, b in itertools.pairwise(likely) if a is not None and b is not None)


def test_few_rows_are_never_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEARNED, ("tpu", "train", "memory"), learned([1.0, 1.1, 1.2]))
    assert fits_probability(1, 1000, "tpu", "train") == 0.75
    assert fits_probability(1000, 1, "tpu", "train") == 0.25


def test_nothing_is_learned_of_cpus_and_of_nothing() -> None:
    assert interval(1, "cpu", "train", "memory") is None
    assert fits_probability(1, 2, "cpu", "train") is None
    assert fits_probability(0, 2, "tpu", "train") is None
    assert fits_probability(1, None, "tpu", "train") is None
    assert len(LEVELS) == len(next(iter(LEARNED.values())).ratios)


HELD = StepMemory(Amount(10), temporaries=Amount(10, "floor"), hbm_bytes=30)


@pytest.mark.parametrize(
    ("likely", "fits"), [(0.95, True), (SURE, True), (0.6, None), (0.05, False), (None, True)]
)
def test_whether_it_fits_is_said_where_it_is_sure(likely: float | None, fits: bool | None) -> None:
    assert replace(HELD, fits_probability=likely).fits is fits
    too_large = replace(HELD, hbm_bytes=19, fits_probability=likely)
    assert too_large.fits is False
    assert too_large.is_too_large
    partial = replace(HELD, is_partial=True, fits_probability=likely)
    assert partial.fits is None, "more is held than is counted"


# on rows

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "generated_steps.json"


def rows() -> list[dict[str, Any]]:
    """Return the rows of generated steps that have figures."""
    found = json.loads(DATA.read_text("utf-8"))
    return [row for row in found["rows"] if row["error"] is None]


def test_what_is_learned_is_what_the_rows_say() -> None:
    assert {key: learned(found) for key, found in ratios_of(rows()).items()} == LEARNED


def test_intervals_hold_for_rows_that_they_were_not_learned_from() -> None:
    """Five folds: each row beside what the other four say, with the digits that are said."""
    inside = []
    for fold in range(5):
        known = ratios_of([row for at, row in enumerate(rows()) if at % 5 != fold])
        tried = ratios_of([row for at, row in enumerate(rows()) if at % 5 == fold])
        for key, found in tried.items():
            low, *_, high = learned(known[key]).ratios
            inside += [low <= float(f"{ratio:.3g}") <= high for ratio in found]
    share = sum(inside) / len(inside)
    assert share >= 0.9, f"{share:.3f} of {len(inside)} figures are within"


def test_few_steps_that_a_compiler_refuses_are_said_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row beside what all the others say."""
    every = rows()
    refused = [row for row in every if row["compiled_fits"] is False]
    assert len(refused) > 20
    wrong = []
    for row in refused:
        others = [other for other in every if other is not row]
        known = {key: learned(found) for key, found in ratios_of(others).items()}
        monkeypatch.setattr(accuracy, "LEARNED", known)
        asked = row["predicted_memory"], row["limit"], row["platform"], row["mode"]
        likely = fits_probability(*asked)
        assert likely is not None
        wrong += [row["recipe"]] if likely >= SURE else []
    assert len(wrong) <= (1 - SURE) * len(refused), wrong


GPU = """
axes: {batch: 64, length: 2048, embed: 4096, mlp: 16384, layers: 32}
mesh: {data: 8}
rules: [batch -> data, "length, embed, mlp, layers -> none"]
params: {"**/up": embed mlp, "**/down": mlp embed}
scan: {layers/**: layers@0}
arrays: {layers/up: "bf16[32, 4096, 16384]", layers/down: "bf16[32, 16384, 4096]"}
activations: {residual: batch length embed}
step:
  microbatches: 4
  remat: none
  program:
    - residual, "layers/up" -> hidden
    - hidden, "layers/down" -> residual
"""


def stated_memory(machine: str, **settings: str) -> StepMemory:
    text = GPU.replace("mesh:", f"hardware: {machine}\nmesh:")
    return step_memory(plan_of(text, **settings), stated(text, **settings).step)


def test_a_stated_step_on_gpus_makes_more_than_its_lines_say() -> None:
    """By `STATED`: what layers keep and make, and nothing of parameters and gradients."""
    held = stated_memory("8 h100 memory 0.9")
    ratios = STATED["gpu", "train", "made"].ratios
    assert held.activations is not None
    assert held.temporaries is not None
    assert held.unstated is not None
    made = held.activations.bytes + held.temporaries.bytes
    assert held.unstated.bytes == round(made * (ratios[3] - 1))
    assert held.interval is not None
    known = held.total.bytes - held.unstated.bytes - made
    assert held.interval == (known + round(made * ratios[0]), known + round(made * ratios[-1]))


def test_what_layers_compute_again_is_known() -> None:
    """Under `remat: full` only what one layer makes is not."""
    held = stated_memory("8 h100 memory 0.9", step__remat="full")
    assert held.temporaries is not None
    assert held.unstated is not None
    assert held.unstated.bytes < 1.2 * held.temporaries.bytes


@pytest.mark.parametrize("batch", ["32", "64", "128", "256", "512", "1024"])
def test_most_steps_alike_decide_whether_a_stated_one_fits(batch: str) -> None:
    held = stated_memory("8 h100 memory 0.9", axes__batch=batch)
    likely = held.fits_probability
    assert likely is not None
    assert held.fits is (likely >= 0.5 and not held.is_too_large)


def test_nothing_is_learned_of_stated_steps_on_tpus() -> None:
    held = stated_memory("tpu v5p 2x2x2")
    assert held.unstated is None
    assert held.interval is None
    assert held.fits_probability is None
