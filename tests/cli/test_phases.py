"""`--phase` as a user meets it: which verbs take it, what lock and diff make of phases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
axes: {batch: 512, embed: 64, mlp: 128}
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 4, tensor: 4}}
rules:
  - batch -> fsdp
  - mlp -> tensor
  - embed -> fsdp
arrays:
  "layers/{0..3}/wi": bf16[embed mlp]
activations: {hidden: batch mlp}
phases:
  decode:
    targets:
      serve: {hardware: tpu v5e 2x4, mesh: {tensor: 8}}
    rules:
      - batch, embed -> none
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_compile_shows_a_phase() -> None:
    found = run("compile", "--phase", "decode")
    assert found.exit_code == 0
    assert "phase decode, target serve: TPU v5e 2x4" in found.output
    assert "-, tensor" in found.output
    plan = json.loads(run("compile", "--phase", "decode", "--format", "json").output)
    assert (plan["phase"], plan["target"], plan["mesh"]) == ("decode", "serve", {"tensor": 8})
    assert "phase" not in json.loads(run("compile", "--format", "json").output)


def test_explain_knows_the_phase_of_a_line() -> None:
    found = run("explain", "spec.yaml:17")
    assert found.exit_code == 0
    assert "in phase decode" in found.output
    assert "batch -> none" in found.output
    assert "in phase" not in run("explain", "spec.yaml:6").output
    array = run("explain", "layers/0/wi", "--phase", "decode").output
    assert "P(None, 'tensor')" in array


@pytest.mark.parametrize("verb", ["mesh", "check", "export json", "explain layers/0/wi"])
def test_verbs_take_a_phase(verb: str) -> None:
    assert run(*verb.split(), "--phase", "decode").exit_code == 0
    unknown = run(*verb.split(), "--phase", "decod")
    assert unknown.exit_code == 2
    assert "did you mean `decode`?" in unknown.output


def test_lock_and_diff_cover_phases(folder: Path) -> None:
    made = run("lock")
    assert made.exit_code == 0, made.output
    assert "4 arrays on 2 targets" in made.output
    assert 'target "decode@serve" on tpu v5e 2x4' in (folder / "spec.lock").read_text()
    assert run("lock", "--check").exit_code == 0
    (folder / "spec.yaml").write_text(SPEC.replace("batch, embed -> none", "batch -> none"))
    assert run("lock", "--check").exit_code == 1
    (folder / "spec.yaml").write_text(SPEC.replace("batch, embed -> none", "embed, batch -> none"))
    moved = run("diff", "spec.lock", "spec.yaml")
    assert moved.exit_code == 0
    (folder / "spec.yaml").write_text(
        SPEC.replace(
            "      - batch, embed -> none", "      - batch, mlp -> none\n      - embed -> tensor"
        )
    )
    moved = run("diff", "spec.lock", "spec.yaml")
    assert moved.exit_code == 1
    assert "decode@serve" in moved.output
    assert "pod" not in moved.output


def test_settings_reach_into_phases() -> None:
    found = run(
        "compile", "--phase", "decode", "--set", "phases.decode.rules.0=batch, embed -> tensor"
    )
    assert "tensor, -" in found.output
    for setting in ("mesh.tensor=2", "phases.decode.targets.serve.mesh.tensor=2"):
        refused = run("compile", "--phase", "decode", "--set", setting)
        assert "SHD102" in refused.output
    unknown = run("compile", "--set", "phases.decod.axes.batch=2")
    assert "did you mean `decode`?" in unknown.output
