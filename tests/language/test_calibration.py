"""Calibrations as files: what is written is read again, and nothing else is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shardspec import assets
from shardspec.diagnostics import SourceFile
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread
from shardspec.ir.spec import DTYPE_BITS, Chip, Spec
from shardspec.language import calibration
from shardspec.language.calibration import CalibrationError, calibration_of, calibration_text
from shardspec.language.catalogue import catalogue_data, catalogue_entry
from shardspec.language.formatting import formatted
from shardspec.language.loader import load_path, load_text

TABLE = MatmulTable("bf16", (8, 64), (128,), (128, 256), (0.001, 0.25, 0.5, 1.0))
MADE = Calibration("v5e", "TPU v5 lite", "2026-11-22", "libtpu 1", (("jax", "0.10"),), (TABLE,))
CURVE = Curve("all-gather", ("data", "model"), (64, 128), (Spread(2.0, 1.0, 3.0),) * 2)
MEASURED = Calibration(
    "v5e",
    "TPU v5 lite",
    "2026-11-22",
    "measuring tpu v5e 2x2",
    (),
    (replace(TABLE, spread=0.1),),
    "tpu v5e 2x2",
    "data=2 model=2",
    (("bf16", 1.5e12),),
    Spread(2e9, 1e9, 3e9),
    (CURVE, replace(CURVE, kind="all-reduce"), replace(CURVE, mesh_axes=("data",))),
)
STATED = Calibration(
    "h100",
    "NVIDIA H800",
    "2026-11-28",
    "data sheet, and our network",
    title="NVIDIA H800 SXM",
    figures=(("link_bytes_per_s", 2e11), ("links", 8), ("hbm_bytes", 80 * 10**9)),
)
#: Chips of which the compiler was asked.
ESTIMATED = [name for name in assets.spec_names("hardware") if name.startswith("estimates/")]


def data(made: Calibration = MADE) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(calibration_text(made))
    return found


def as_told(made: Calibration) -> tuple[Any, ...]:
    tables = [astuple(each) for each in made.matmuls]
    curves = [astuple(each) for each in made.curves]
    words = made.chip, made.device_kind, made.date, made.how, made.versions, made.machine, made.mesh
    stated = made.title, made.figures
    return *words, *stated, made.flops_per_s, made.hbm_bytes_per_s, tables, curves


@pytest.mark.parametrize("made", [MADE, MEASURED, STATED], ids=["estimated", "measured", "stated"])
def test_what_is_written_is_read_again(made: Calibration) -> None:
    assert as_told(calibration_of(data(made))) == as_told(made)


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
        (("chip",), "", "`chip` is empty"),
        (("how",), " ", "`how` is empty"),
        (("date",), "yesterday", "`yesterday` is no date"),
        (("colour",), 1, "`colour` means nothing here; keys are"),
        (("versions",), 3, "`versions` should have keys"),
        (("matmul",), [1], "`matmul` should have keys"),
        (("matmul", "b16"), {}, "`b16` is no dtype"),
        (("matmul", "bf16", "m"), "64 8", "in ascending order"),
        (("matmul", "bf16", "m"), "8 8", "in ascending order"),
        (("matmul", "bf16", "m"), "0 8", "integers from 1"),
        (("matmul", "bf16", "m"), "8.5 9", "integers from 1"),
        (("matmul", "bf16", "m"), "", "it has 0 sizes"),
        (("matmul", "bf16", "m"), " ".join(map(str, range(1, 99))), "it has 98 sizes"),
        (("matmul", "bf16", "share"), ".1 .2 .3", "3 numbers for 2 x 1 x 2 sizes, 4"),
        (("matmul", "bf16", "share"), ".1 .2 .3 0", "more than 0 and at most 1"),
        (("matmul", "bf16", "share"), ".1 .2 .3 1.1", "more than 0 and at most 1"),
        (("matmul", "bf16", "share"), ".1 .2 .3 x", "`x` is no number"),
        (("matmul", "bf16", "share"), ".1 .2 .3 nan", "`nan` is no number"),
        (("matmul", "bf16", "shares"), "1", "`shares` means nothing here"),
        (("matmul", "bf16", "spread"), "wide", "`wide` is no number"),
        (("hbm_bytes_per_s",), "1e9", "three numbers are wanted"),
        (("hbm_bytes_per_s",), "1e9 2e9 3e9", "a median lies between low and high"),
        (("hbm_bytes_per_s",), "-1 -2 -3", "`-1` is out of range"),
        (("flops_per_s", "bf16"), "1e99", "`1e99` is out of range"),
        (("collectives", "data"), 7, "`data` should have keys"),
        (("collectives", "data", "gossip"), "1 1 1 1", "`gossip` is no collective"),
        (("collectives", "data", "all-gather"), "64 1 1", "three numbers are wanted"),
        (("collectives", "data", "all-gather"), "64 1 1 1\n64 1 1 1", "in ascending order"),
        (("collectives", "data", "all-gather"), "0.5 1 1 1", "bytes have to be integers from 1"),
        (("collectives", "data", "all-gather"), "2.2 1 1 1\n2.4 1 1 1", "bytes have to be"),
        (("collectives", "data", "all-gather"), " ", "it has 0 lines"),
        (("collectives", "data", "all-gather"), "1 1 1 1\n" * 65, "it has 65 lines"),
        (("figures",), 7, "`figures` should have keys"),
        (("figures", "speed"), 1, "`speed` means nothing here; keys are"),
        (("figures", "links"), 1.5, "it is a whole number"),
        (("figures", "link_bytes_per_s"), "fast", "`fast` is no number"),
        (("figures", "link_bytes_per_s"), -1, "`-1` is out of range"),
        (("figures", "matmul_efficiency"), 1.1, "at most 1"),
    ],
)
def test_what_is_none_is_refused(route: tuple[str, ...], value: Any, fault: str) -> None:
    made = data(MEASURED)
    inner = made
    for key in route[:-1]:
        inner = inner.setdefault(key, {})
    inner[route[-1]] = value
    with pytest.raises(CalibrationError, match=fault) as caught:
        calibration_of(made)
    assert caught.value.route == route


def test_too_many_tables_and_collectives_are_refused() -> None:
    made = data(MEASURED)
    made["matmul"] = dict.fromkeys(list(DTYPE_BITS)[:17], made["matmul"]["bf16"])
    with pytest.raises(CalibrationError, match="it has 17 tables"):
        calibration_of(made)
    made = data(MEASURED)
    line = {"all-gather": "1 1 1 1", "all-reduce": "1 1 1 1"}
    made["collectives"] = {f"a{number}": line for number in range(129)}
    with pytest.raises(CalibrationError, match="is no collective"):
        calibration_of(made)


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


@given(
    st.sampled_from(
        ["chip", "versions", "matmul", "share", "m", "collectives", "mesh", "hbm_bytes_per_s"]
    ),
    anything,
)
@example("chip", "")
@example("collectives", {"data": {"all-gather": "0.5 1 1 1"}})
@example("collectives", {"data": {"all-gather": "2.2 1 1 1\n2.4 1 1 1"}})
def test_any_value_is_read_or_refused(key: str, value: Any) -> None:
    made = data(MEASURED)
    inner = made["matmul"]["bf16"] if key in ("share", "m") else made
    inner[key] = value
    with suppress(CalibrationError):
        read = calibration_of(made)
        assert read.chip.strip()
        assert all(curve.at(96) > 0 for curve in read.curves)


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
    (bf16,) = (table for table in made.matmuls if table.dtype == "bf16")
    assert (len(bf16.shares), bf16.m[-1]) == (567, 32768)
    assert bf16.share(8192, 4096, 4096) > 2 * bf16.share(8192, 64, 4096)


# in a spec


SPEC = """\
shardspec: 1
targets:
  pod: {hardware: 2 * tpu v5e 2x2 by measured/hardware.local.yaml, mesh: {data: 4, model: 2}}
  plain: {hardware: 2 * tpu v5e 2x2, mesh: {data: 4, model: 2}}
rules: [batch -> data]
phases:
  serve:
    targets:
      one:
        hardware: "{1..2} * tpu v5e 1x1 by ./measured/hardware.local.yaml"
        mesh: {data: rest}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "measured" / "hardware.local.yaml").write_text(calibration_text(MEASURED))
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def chip_of(spec: Spec, name: str) -> Chip:
    (found,) = [each for each in spec.targets if each.name == name]
    assert found.hardware is not None
    return found.hardware.chip


def test_a_target_is_as_fast_as_its_file_says(folder: Path) -> None:
    spec, faults = load_path("spec.yaml")
    assert faults == ()
    assert spec is not None
    plain, pod = chip_of(spec, "plain"), chip_of(spec, "pod")
    assert plain is catalogue_entry("tpu_v5e").chip
    assert pod.calibration is not None
    assert as_told(pod.calibration) == as_told(MEASURED)
    assert (pod.hbm_bytes_per_s, pod.bf16_flops_per_s) == (2e9, 1.5e12)
    assert pod.link_bytes_per_s == plain.link_bytes_per_s
    (phase,) = spec.phases
    assert {chip_of(phase, name).hbm_bytes_per_s for name in ("one[1]", "one[2]")} == {2e9}
    assert "measured/hardware.local.yaml" in [source.name for source in spec.sources]


def test_a_file_may_state_a_chip_that_is_like_one_of_the_catalogue(folder: Path) -> None:
    (folder / "h800.yaml").write_text(calibration_text(STATED))
    text = "shardspec: 1\nhardware: 4 * h100 by h800.yaml\nmesh: {data: 32}\n"
    (folder / "spec.yaml").write_text(text)
    spec, faults = load_path("spec.yaml")
    assert faults == ()
    assert spec is not None
    chip, like = chip_of(spec, "default"), catalogue_entry("h100").chip
    assert (chip.title, chip.device_kinds) == ("NVIDIA H800 SXM", ("NVIDIA H800",))
    assert (chip.link_bytes_per_s, chip.links) == (2e11, 8)
    assert chip.bf16_flops_per_s == like.bf16_flops_per_s
    assert chip.measured is not None
    assert chip.measured.is_own
    assert not chip.measured.is_measured
    assert str(chip.measured) == (
        "figures of NVIDIA H800 SXM stated 2026-11-28 by data sheet, and our network"
    )


def test_estimates_of_the_compiler_stay_where_only_figures_are_stated() -> None:
    chip = catalogue_entry("tpu_v5e").chip
    stated = Calibration("v5e", "TPU v5 lite", "2026-11-28", "us", figures=(("hbm_bytes", 2**33),))
    found = calibration.calibrated_chip(chip, stated)
    assert found.hbm_bytes == 2**33
    assert found.calibration is not None
    assert chip.calibration is not None
    assert found.calibration.matmuls == chip.calibration.matmuls


def test_a_child_and_a_preset_name_it_from_where_they_stand(folder: Path) -> None:
    (folder / "child").mkdir()
    (folder / "child" / "spec.yaml").write_text("shardspec: 1\nextends: ../spec.yaml\n")
    spec, faults = load_path("child/spec.yaml")
    assert faults == ()
    assert spec is not None
    assert chip_of(spec, "pod").hbm_bytes_per_s == 2e9


def test_both_spellings_say_it(folder: Path) -> None:
    text, _ = formatted(SourceFile("spec.yaml", SPEC), "dsl")
    assert text is not None
    assert "by measured/hardware.local.yaml" in text
    spec, faults = load_text(text, "spec.shard")
    assert faults == ()
    assert spec is not None
    assert chip_of(spec, "pod").hbm_bytes_per_s == 2e9


def faults_of(by: str) -> list[tuple[str, str]]:
    text = f"shardspec: 1\nhardware: tpu v5e 2x2 by {by}\nmesh: {{data: 4}}\n"
    spec, faults = load_text(text)
    assert spec is not None
    assert chip_of(spec, "default") is catalogue_entry("tpu_v5e").chip
    return [(fault.code.id, fault.message) for fault in faults]


def test_what_is_no_file_of_the_project_is_refused(folder: Path) -> None:
    (folder / "secret").symlink_to("/etc/hostname")
    (folder / "link.yaml").symlink_to("/etc/hostname")
    (folder / "large.yaml").write_text("a: " + "1" * (1 << 20) + "\n")
    (folder / "deep.yaml").write_text("[" * 10_000)
    (folder / "bombs.yaml").write_text("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    for name, said in {
        "../up.yaml": "outside the project",
        "/etc/passwd.yaml": "outside the project",
        "link.yaml": "outside the project",
        "no.yaml": "there is no file",
        "large.yaml": "1,048,580 characters",
        "deep.yaml": "is no calibration",
        "bombs.yaml": "is no calibration",
        "measured.yaml": "there is no file",
        "spec.yaml": "does not say `shardspec-calibration: 1`",
    }.items():
        ((code, message),) = faults_of(name)
        assert code == "SHD025", name
        assert said in message, name


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"chip": "v5p"}, "is of v5p, and the machine is of v5e"),
        ({"device_kind": "TPU v6 lite"}, "is of TPU v6 lite, and the machine is of"),
    ],
)
def test_another_chip_does_not_count(folder: Path, other: dict[str, str], said: str) -> None:
    (folder / "other.yaml").write_text(calibration_text(replace(MEASURED, **other)))  # type: ignore[arg-type]
    ((code, message),) = faults_of("other.yaml")
    assert code == "SHD026"
    assert said in message


def test_other_versions_are_told_where_it_is_asked_for(folder: Path) -> None:
    old = replace(MEASURED, versions=(("jax", "0.0.1"), ("no-such-package", "1")))
    (folder / "old.yaml").write_text(calibration_text(old))
    text = "shardspec: 1\nhardware: tpu v5e 2x2 by old.yaml\nmesh: {data: 4}\n"
    spec, faults = load_text(text)
    assert spec is not None
    assert chip_of(spec, "default").hbm_bytes_per_s == 2e9
    (fault,) = faults
    assert (fault.code.id, fault.code.is_pedantic) == ("SHD027", True)
    assert "`old.yaml` of 2026-11-22 was made with jax 0.0.1, here " in fault.message
    assert "no-such-package" not in fault.message
