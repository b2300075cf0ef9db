from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

_SPEC = """shardspec: 1
targets:
  v4-512:
    hardware: tpu v4 4x8x8
    mesh: {data: rest, model: submesh 4x2x2x1}
  dgx:
    hardware: 2 * h100
    mesh: {data: rest, model: 8}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(_SPEC)
    return str(path)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["mesh", *arguments])


def test_the_first_target_is_shown_and_the_others_are_named(spec: str) -> None:
    result = _run(spec)
    assert result.exit_code == 0
    assert "x 4, ring; y 2 of 8, line; z 2 of 8, line" in result.stdout
    assert "also there: dgx" in result.stderr


def test_a_what_if_stands_beside_the_spec(spec: str) -> None:
    result = _run(spec, "-t", "v4-512", "--set", "mesh.model=submesh 2x2x4x1", "--compare")
    assert result.exit_code == 0, result.output
    assert "model: A is 1.33 times as fast (~)" in result.stdout


def test_json_is_data(spec: str) -> None:
    result = _run(spec, "-t", "dgx", "--format", "json")
    assert json.loads(result.stdout)["mesh"] == {"data": 2, "model": 8}


def test_svg_goes_to_a_file(spec: str, tmp_path: Path) -> None:
    result = _run(spec, "-t", "dgx", "--format", "svg", "-o", str(tmp_path / "m.svg"))
    assert result.exit_code == 0
    assert (tmp_path / "m.svg").read_text().startswith("<svg")


def test_the_order_can_be_a_ring(spec: str) -> None:
    result = _run(spec, "-t", "v4-512", "--order", "ring")
    assert "order ring" in result.stdout.splitlines()[2]


def test_nothing_to_compare_with_is_a_usage_error(spec: str) -> None:
    result = CliRunner().invoke(cli, ["mesh", spec, "--compare"])
    assert result.exit_code != 0
    assert "--set" in result.output


def test_a_tile_that_does_not_fit_is_a_finding(spec: str) -> None:
    result = _run(spec, "-t", "v4-512", "--set", "mesh.model=submesh 3x2x2x1")
    assert result.exit_code == 1
    assert "SHD105" in result.stderr


def _order_line(*arguments: str) -> str:
    return next(line for line in _run(*arguments).stdout.splitlines() if line.startswith("mesh "))


def test_the_policy_states_the_order_and_the_flag_beats_it(spec: str) -> None:
    assert "order t5x" in _order_line(spec, "-t", "v4-512")
    assert "order ring" in _order_line(spec, "-t", "v4-512", "--set", "policy.order=ring")
    both = ("--set", "policy.order=ring", "--order", "t5x")
    assert "order t5x" in _order_line(spec, "-t", "v4-512", *both)


def test_the_plan_records_the_order(tmp_path: Path) -> None:
    path = tmp_path / "spec.shard"
    path.write_text("shardspec 1\nmesh on 8 cpu { data = rest }\npolicy order ring\n")
    result = CliRunner().invoke(cli, ["compile", str(path), "--format", "json"])
    assert json.loads(result.stdout)["order"] == "ring"


def test_the_marketing_name_stands_beside_the_chips(spec: str) -> None:
    result = _run(spec, "--set", "targets.v4-512.hardware=v4-512")
    assert result.stdout.startswith("target v4-512: TPU v4 4x8x8 (v4-512), 256 chips")


def test_a_mesh_that_cannot_be_laid_out_is_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(_SPEC + "  bad: {hardware: 2 * tpu v5e 4x4, mesh: {a: auto 8, b: over x}}\n")
    for verb in (["check"], ["compile"], ["compile", "-t", "bad"]):
        result = CliRunner().invoke(cli, [verb[0], str(path), *verb[1:]])
        assert result.exit_code == 1
        assert "no tile of 8 devices fits" in result.output
