"""Calibrations as files: what is written is read again, and nothing else is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardspec import assets
from shardspec.ir.calibration import Calibration, MatmulTable
from shardspec.language.calibration import CalibrationError, calibration_of, calibration_text
from shardspec.language.catalogue import catalogue_data, catalogue_entry

TABLE = MatmulTable("bf16", (8, 64), (128,), (128, 256), (0.001, 0.25, 0.5, 1.0))
MADE = Calibration("v5e", "TPU v5 lite", "2026-11-22", "libtpu 1", (("jax", "0.10"),), (TABLE,))
#: Chips of which the compiler was asked.
ESTIMATED = [name for name in assets.spec_names("hardware") if name.startswith("estimates/")]


def data() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(calibration_text(MADE))
    return found


def as_told(made: Calibration) -> tuple[Any, ...]:
    tables = [(each.dtype, each.m, each.k, each.n, each.shares) for each in made.matmuls]
    return made.chip, made.device_kind, made.date, made.how, made.versions, tables


def test_what_is_written_is_read_again() -> None:
    assert as_told(calibration_of(data())) == as_told(MADE)


@given(st.text(max_size=30), st.text(min_size=1, max_size=30))
def test_texts_come_back_whole(how: str, version: str) -> None:
    made = Calibration("v5e", "x", "2026-11-22", f"by {how!a}", (("jax", ascii(version)),))
    assert as_told(calibration_of(yaml.safe_load(calibration_text(made)))) == as_told(made)


@pytest.mark.parametrize(
    ("route", "value", "fault"),
    [
        (("shardspec-calibration",), 2, "of another version"),
        (("chip",), None, "`chip` should be text"),
        (("chip",), ["v5e"], "`chip` should be text"),
        (("date",), "yesterday", "`yesterday` is no date"),
        (("colour",), 1, "`colour` means nothing here; keys are"),
        (("versions",), 3, "`versions` should have keys"),
        (("matmul",), [1], "`matmul` should have keys"),
        (("matmul", "b16"), {}, "`b16` is no dtype"),
        (("matmul", "bf16", "m"), "64 8", "in ascending order"),
        (("matmul", "bf16", "m"), "8 8", "in ascending order"),
        (("matmul", "bf16", "m"), "0 8", "whole numbers from 1"),
        (("matmul", "bf16", "m"), "8.5 9", "whole numbers from 1"),
        (("matmul", "bf16", "m"), "", "it has 0 sizes"),
        (("matmul", "bf16", "m"), " ".join(map(str, range(1, 99))), "it has 98 sizes"),
        (("matmul", "bf16", "share"), ".1 .2 .3", "3 numbers for 2 x 1 x 2 sizes, 4"),
        (("matmul", "bf16", "share"), ".1 .2 .3 0", "more than 0 and at most 1"),
        (("matmul", "bf16", "share"), ".1 .2 .3 1.1", "more than 0 and at most 1"),
        (("matmul", "bf16", "share"), ".1 .2 .3 x", "`x` is no number"),
        (("matmul", "bf16", "share"), ".1 .2 .3 nan", "`nan` is no number"),
        (("matmul", "bf16", "shares"), "1", "`shares` means nothing here"),
    ],
)
def test_what_is_none_is_refused(route: tuple[str, ...], value: Any, fault: str) -> None:
    made = data()
    inner = made
    for key in route[:-1]:
        inner = inner[key]
    inner[route[-1]] = value
    with pytest.raises(CalibrationError, match=fault) as caught:
        calibration_of(made)
    assert caught.value.route == route


@pytest.mark.parametrize("other", [None, 3, "text", [], {}, {"shardspec": 1}])
def test_other_files_are_refused(other: Any) -> None:
    with pytest.raises(CalibrationError, match="does not say"):
        calibration_of(other)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=9,
)


@given(st.sampled_from(["chip", "versions", "matmul", "share", "m"]), anything)
def test_any_value_is_read_or_refused(key: str, value: Any) -> None:
    made = data()
    inner = made["matmul"]["bf16"] if key in ("share", "m") else made
    inner[key] = value
    with suppress(CalibrationError):
        assert calibration_of(made).chip


def test_five_chips_have_estimates() -> None:
    assert [f"estimates/tpu_{chip}" for chip in ("v4", "v5e", "v5p", "v6e", "v7x")] == ESTIMATED


@pytest.mark.parametrize("name", ESTIMATED)
def test_estimates_of_the_catalogue(name: str) -> None:
    """They are of their chip and as written; a table has its sizes up to what models have."""
    chip = catalogue_entry(name.partition("/")[2]).chip
    made = chip.calibration
    assert made is not None
    assert (made.chip, made.device_kind) == (chip.name, chip.device_kinds[0])
    assert "libtpu" in made.how
    assert {"libtpu", "jax"} <= set(dict(made.versions))
    path = assets.spec_path("hardware", name)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert calibration_text(calibration_of(catalogue_data(name))) == text
    for table in made.matmuls:
        assert (table.m[0], table.k[0], table.n[0]) == (8, 64, 64)
        assert (table.k[-1], table.n[-1]) == (16384, 16384)
        assert table.share(8192, 4096, 4096) > 2 * table.share(8192, 64, 4096)
