"""`shardspec calibrate`: what it writes, and every input that is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread
from shardspec.ir.spec import Hardware, Target
from shardspec.jax_backend.measuring import Grid, Plan
from shardspec.language.calibration import calibration_of, calibration_text
from shardspec.language.catalogue import catalogue_entry

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v6e 2x4, mesh: {data: 8}}
  bare: {mesh: {data: 8}}
rules: [batch -> data]
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Grid]]]:
    """Return what the compiler is asked; it answers at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    (tmp_path / "spec.yaml").write_text(SPEC)
    found: list[tuple[str, dict[str, Grid]]] = []

    def estimated(hardware: Hardware, grids: dict[str, Grid], tell: Any) -> Calibration:
        found.append((str(hardware), grids))
        tables = (
            MatmulTable(dtype, each.m, each.k, each.n, (0.5,) * len(each.points))
            for dtype, each in grids.items()
        )
        kind = hardware.chip.device_kinds[0]
        chip = hardware.chip.name
        return Calibration(chip, kind, "2026-11-22", "libtpu 1, its cycles", (), tuple(tables))

    monkeypatch.setattr("shardspec.jax_backend.measuring.estimated", estimated)
    return found


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["calibrate", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_it_writes_what_it_found(asked: Any, tmp_path: Path) -> None:
    result = run("--compiler", "--hardware", "v6e")
    assert result.exit_code == 0, result.output
    assert asked[0][0] == "tpu v6e 1x1"
    assert {dtype: len(grid.points) for dtype, grid in asked[0][1].items()} == {
        "bf16": 567,
        "f32": 175,
        "s8": 175,
    }
    made = calibration_of(yaml.safe_load((tmp_path / "hardware.local.yaml").read_text()))
    assert made.chip == "v6e"
    assert "bf16  4096, 4096  50 %" in result.stdout
    assert result.stdout.endswith("found 2026-11-22 by libtpu 1, its cycles\n")
    assert result.stderr == "hardware.local.yaml: written\n"


def test_it_takes_the_machine_of_a_target(asked: Any, tmp_path: Path) -> None:
    result = run("spec.yaml", "-t", "pod", "--compiler", "--dtype", "s8", "-o", "my.yaml")
    assert result.exit_code == 0, result.output
    assert asked == [("tpu v6e 2x4", {"s8": asked[0][1]["s8"]})]
    assert (tmp_path / "my.yaml").exists()
    assert not (tmp_path / "hardware.local.yaml").exists()


def test_quick_asks_for_less(asked: Any) -> None:
    assert run("--compiler", "--hardware", "v5p-8", "--quick").exit_code == 0
    assert [len(grid.points) for grid in asked[0][1].values()] == [175] * 3


def test_to_stdout_goes_the_file_alone(asked: Any) -> None:
    result = run("--compiler", "--hardware", "tpu v4 2x2x1", "--dtype", "bf16", "-o", "-")
    assert calibration_of(yaml.safe_load(result.stdout)).chip == "v4"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        (["--compiler", "--hardware", "v9"], "`v9`", ""),
        (
            ["--compiler", "--hardware", "v5e", "--dtype", "f16"],
            "multiplies no `f16`",
            "bf16, f32, s8",
        ),
        (["--compiler", "--hardware", "v5e", "spec.yaml"], "two machines", "name one of them"),
        (
            ["spec.yaml", "-t", "bare", "--compiler"],
            "`bare` of spec.yaml names no hardware",
            "--hardware",
        ),
        (["--compiler", "--hardware", "v5e", "-o", "no/x.yaml"], "cannot write", "say with -o"),
        (["--compiler", "--hardware", "v5e", "-o", ""], "-o names no file", "write the name"),
    ],
)
def test_bad_input(asked: Any, arguments: list[str], message: str, help: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert help in result.stderr
    assert asked == []
    assert result.stdout == ""


def test_without_a_compiler_nothing_is_written(
    asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Calibration:
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, "libtpu is not installed"),))

    monkeypatch.setattr("shardspec.jax_backend.measuring.estimated", refuse)
    result = run("--compiler", "--hardware", "v5e")
    assert result.exit_code == 2
    assert "error[SHD906]: libtpu is not installed" in result.stderr
    assert not (tmp_path / "hardware.local.yaml").exists()


# measured


STEP = """\
shardspec: 1
hardware: 8 cpu by hardware.local.yaml
mesh: {data: 4, model: 2}
axes: {batch: 64, length: 128, embed: 256, mlp: 1024}
rules: [batch -> data, mlp -> model, length -> none, embed -> none]
activations: {residual: batch length embed, hidden: batch length mlp}
arrays:
  wi: f32[embed mlp]
  wo: f32[mlp embed]
step:
  program:
    - residual, wi -> hidden
    - hidden, wo -> residual
"""
NAMES = ("all-gather", "reduce-scatter", "all-reduce")
FOUND = Calibration(
    "cpu",
    "cpu",
    "2026-11-22",
    "measuring 8 cpu",
    matmuls=(MatmulTable("f32", (8, 4096), (64, 1024), (64, 1024), (0.5,) * 8),),
    machine="8 cpu",
    mesh="data=4 model=2",
    flops_per_s=(("f32", 1e11),),
    hbm_bytes_per_s=Spread(1e10, 1e10, 1e10),
    curves=tuple(
        Curve(kind, (axis,), (1 << 10, 1 << 24), (Spread(1e-5, 1e-5, 1e-5), Spread(0.1, 0.1, 0.1)))
        for axis in ("data", "model")
        for kind in NAMES
    ),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Plan]]:
    """Return what is measured; it is found at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    (tmp_path / "spec.yaml").write_text(STEP)
    found: list[tuple[str, Plan]] = []

    def measured(target: Target, mesh: Any, plan: Plan, tell: Any) -> Calibration:
        assert target.hardware is not None
        assert target.hardware.chip is catalogue_entry("cpu").chip, "without what was found before"
        assert dict(mesh.shape) == {"data": 4, "model": 2}
        found.append((str(target.hardware), plan))
        return FOUND

    monkeypatch.setattr("shardspec.jax_backend.measuring.measured", measured)
    return found


def cost(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cost", "spec.yaml", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_is_stated_of_a_chip_stays_in_its_file(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = Calibration(
        "cpu", "cpu", "2026-11-28", "us", title="Our CPU", figures=(("bf16_flops_per_s", 1e12),)
    )
    Path("hardware.local.yaml").write_text(calibration_text(stated))
    seen = []

    def measured(target: Target, *_: Any) -> Calibration:
        assert target.hardware is not None
        seen.append(target.hardware.chip)
        return FOUND

    monkeypatch.setattr("shardspec.jax_backend.measuring.measured", measured)
    for _ in range(2):
        result = run("spec.yaml", "--force")
        assert result.exit_code == 0, result.output
    assert {(chip.title, chip.bf16_flops_per_s) for chip in seen} == {("Our CPU", 1e12)}
    made = calibration_of(yaml.safe_load(Path("hardware.local.yaml").read_text()))
    assert (made.title, made.figures) == (stated.title, stated.figures)
    assert (made.machine, made.flops_per_s) == (FOUND.machine, FOUND.flops_per_s)


def test_what_was_measured_is_what_cost_predicts_by(here: Any, tmp_path: Path) -> None:
    assert "SHD025" in cost().stderr
    result = run("spec.yaml")
    assert result.exit_code == 0, result.output
    assert "data   all-gather      1.00 KiB in 10.0 us (10.0 us to 10.0 us)" in result.stdout
    assert "most in f32   100 GFLOP/s a device" in result.stdout
    assert "memory, read and written   10 GB/s a device, 10 to 10" in result.stdout
    assert result.stderr == "hardware.local.yaml: written\n"
    told = cost()
    assert told.exit_code == 0, told.output
    assert "        calibrated 2026-11-22 by measuring 8 cpu\n" in told.stdout
    data = json.loads(cost("--format", "json").stdout)
    assert data["time"]["calibrated"] == {"date": "2026-11-22", "how": "measuring 8 cpu"}
    # five products of 2048 rows a device, 256 x 512, at half the most that was reached
    products = 5 * 2 * 2048 * 256 * 512 / 0.5e11
    by_memory = data["time"]["hbm_s"]
    assert data["time"]["compute_s"] - by_memory == pytest.approx(products, rel=0.01)
    # 2 MiB of the residual, between the two payloads by logarithms
    assert data["time"]["axes"]["model"]["s"] == pytest.approx(
        FOUND.curves[5].at(2048 * 256 * 4 / 2)
    )
    assert run("spec.yaml").exit_code == 0, "again, over the file that is there"


def test_what_was_not_measured_goes_by_the_nearest(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captured run has only the collectives of its own program."""
    few = tuple(
        each for each in FOUND.curves if each.kind == "all-gather" or "data" in each.mesh_axes
    )
    found = replace(FOUND, curves=few)
    monkeypatch.setattr("shardspec.jax_backend.measuring.measured", lambda *_: found)
    assert run("spec.yaml").exit_code == 0
    told = cost()
    assert "not known" not in told.stdout
    assert "the calibration has no all-reduce over model" in " ".join(told.stdout.split())
    # an all-reduce is a reduce-scatter and an all-gather: it takes as long as twice the bytes
    took = json.loads(cost("--format", "json").stdout)["time"]["axes"]["model"]["s"]
    (gather,) = (each for each in few if (each.kind, each.mesh_axes) == ("all-gather", ("model",)))
    assert took == pytest.approx(gather.at(2048 * 256 * 4))


def test_a_calibration_without_collectives_says_so(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(FOUND, curves=())
    monkeypatch.setattr("shardspec.jax_backend.measuring.measured", lambda *_: found)
    assert run("spec.yaml").exit_code == 0
    assert "not known: the calibration has no collectives  " in cost().stdout


def test_another_mesh_has_no_collectives(here: Any) -> None:
    run("spec.yaml")
    told = cost("--set", "mesh.data=2", "--set", "mesh.model=4").stdout
    assert (
        "not known: the calibration has no collectives of this mesh, but of data=4 model=2" in told
    )


def test_search_says_that_it_is_calibrated(here: Any) -> None:
    run("spec.yaml")
    result = CliRunner().invoke(cli, ["search", "spec.yaml"])
    text = " ".join(result.stdout.split())
    assert "4 candidates; of the links of 3 no speed is known; 1 of 1 row shown" in text
    assert (
        "calibrated 2026-11-22 by measuring 8 cpu; collectives on data=4 model=2 of 8 cpu," in text
    )
    data = json.loads(CliRunner().invoke(cli, ["search", "spec.yaml", "--format", "json"]).stdout)
    assert data["rows"][0]["calibrated"] == {"date": "2026-11-22", "how": "measuring 8 cpu"}
    assert (data["unlinked"], data["misplaced"]) == (3, 0)
    result = CliRunner().invoke(cli, ["search", "spec.yaml", "--keep", "model=8"])
    assert result.exit_code == 2
    assert "error: no speed is known of the links of 1 candidate\n" in result.stderr


def test_other_links_are_the_catalogues(here: Any, tmp_path: Path) -> None:
    made = replace(FOUND, chip="v5e", device_kind="TPU v5 lite", machine="tpu v5e 2x2")
    (tmp_path / "v5e.yaml").write_text(calibration_text(replace(made, flops_per_s=())))
    (tmp_path / "spec.yaml").write_text(
        STEP.replace("8 cpu by hardware.local", "tpu v5e 2x4 by v5e")
    )
    told = " ".join(cost().stdout.split())
    assert (
        "the calibration has collectives of tpu v5e 2x2, mesh data=4 model=2: here they go" in told
    )


@pytest.mark.parametrize(
    ("hardware", "arguments", "message", "help"),
    [
        ("8 cpu", ["--hardware", "v5e"], "--hardware is for --compiler", "name a spec"),
        ("8 cpu", ["spec.yaml", "--dtype", "s8"], "CPU multiplies no `s8`", "it does f32, bf16"),
        ("tpu v5e 2x4", ["spec.yaml"], "but here are 8 devices of kind", ""),
        ("4 cpu", ["spec.yaml", "--set", "mesh.data=2"], "= 4 devices, but there are 8", ""),
        ("8 cpu", ["spec.yaml", "-o", "no/x.yaml"], "cannot write", "say with -o"),
        ("8 cpu", ["nope.yaml"], "nope.yaml", ""),
    ],
)
def test_what_cannot_be_measured(
    here: Any, tmp_path: Path, hardware: str, arguments: list[str], message: str, help: str
) -> None:
    text = STEP.replace("8 cpu by hardware.local.yaml", hardware)
    (tmp_path / "spec.yaml").write_text(text)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert help in result.stderr
    assert (here, result.stdout) == ([], "")
    assert not (tmp_path / "hardware.local.yaml").exists()
