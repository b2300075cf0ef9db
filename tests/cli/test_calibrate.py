"""`shardspec calibrate`: what it writes, and every input that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.calibration import Calibration, MatmulTable
from shardspec.ir.spec import Hardware
from shardspec.jax_backend.estimating import Grid
from shardspec.language.calibration import calibration_of

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

    monkeypatch.setattr("shardspec.jax_backend.estimating.estimated", estimated)
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

    monkeypatch.setattr("shardspec.jax_backend.estimating.estimated", refuse)
    result = run("--compiler", "--hardware", "v5e")
    assert result.exit_code == 2
    assert "error[SHD906]: libtpu is not installed" in result.stderr
    assert not (tmp_path / "hardware.local.yaml").exists()
