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


def test_diff_between_two_sides_of_one_spec() -> None:
    found = run("diff", "--between", "pod", "decode", "-q")
    assert found.exit_code == 1
    assert "pod -> decode@serve" in found.output
    assert "embed: fsdp -> none" in found.output
    assert "reshard     4 arrays to reshard: at most" in found.output
    same = run("diff", "spec.yaml", "--between", "pod", "pod")
    assert same.exit_code == 0
    told = json.loads(run("diff", "--between", "pod", "decode@serve", "--format", "json").stdout)
    assert (told["old"], told["new"]) == ("pod", "decode@serve")
    assert told["targets"][0]["arrays"][0]["bytes_after"] == 64 * 128 * 2 // 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--between", "pod", "decod"], "did you mean `decode`?"),
        (["spec.yaml", "spec.yaml", "--between", "pod", "decode"], "about one spec"),
        (["--between", "pod", "decode", "-t", "pod"], "take --target out"),
        (["spec.lock", "--between", "pod", "decode"], "is a lock"),
        ([], "none is named"),
    ],
)
def test_what_between_cannot_compare(arguments: list[str], said: str) -> None:
    found = run("diff", *arguments)
    assert found.exit_code == 2
    assert said in found.output


def test_a_phase_on_several_targets_is_that_of_the_other_side(folder: Path) -> None:
    two = SPEC.replace(
        "rules:\n  - batch",
        "  desk: {hardware: 8 cpu, mesh: {fsdp: 8, tensor: 1}}\nrules:\n  - batch",
    )
    (folder / "spec.yaml").write_text(f"{two}  eval: {{rules: [embed -> none]}}\n")
    assert "pod -> eval@pod" in run("diff", "--between", "pod", "eval").output
    assert "eval@desk -> desk" in run("diff", "--between", "eval", "desk").output
    unclear = run("diff", "--between", "eval", "decode")
    assert "say which: `eval@pod`, `eval@desk`" in unclear.output


def test_between_two_counts_of_slices_the_figures_are_exact(folder: Path) -> None:
    (folder / "spec.yaml").write_text(
        "targets:\n"
        "  one: {hardware: tpu v5e 4x4, mesh: {replica: 1, fsdp: 16}}\n"
        "  two: {hardware: 2 * tpu v5e 4x4, mesh: {replica: 2 @ dcn, fsdp: 16}}\n"
        "rules:\n  - batch -> (replica, fsdp)\n  - embed -> fsdp\n"
        "arrays:\n  wi: bf16[embed=64 _=128]\n"
        "activations: {hidden: batch embed}\n"
    )
    lost = run("diff", "--between", "two", "one", "--fail-on", "reshard")
    assert lost.exit_code == 0, lost.output
    gained = run("diff", "--between", "one", "two", "--format", "json")
    restored = json.loads(gained.stdout)["targets"][0]["restore"]
    assert restored == {
        "arrays": 1,
        "total_bytes": 64 * 128 * 2,  # the second slice holds nothing yet
        "most_bytes": 64 * 128 * 2 // 16,
        "exact": True,
        "compared": 1,
    }
