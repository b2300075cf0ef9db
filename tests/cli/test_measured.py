"""`--measured`: predictions held to one step that somebody timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  other: {hardware: tpu v5p 2x2x4, mesh: {fsdp: 8, tensor: 2}}
  here: {hardware: 16 cpu, mesh: {fsdp: 8, tensor: 2}}
axes: {batch: 64, length: 1024, embed: 1024, mlp: 4096}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp]
lints: {axis-without-rule: allow}
activations: {residual: batch length embed, hidden: batch length mlp}
arrays:
  wi: bf16[embed mlp]
  wo: bf16[mlp embed]
"""
STEP = """\
step:
  program:
    - residual, wi -> hidden
    - hidden, wo -> residual
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC + STEP)
    (tmp_path / "bare.yaml").write_text(SPEC)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cost", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def timed(*arguments: str) -> dict[str, Any]:
    result = run("spec.yaml", "-q", "--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("said", ["2.5s", "2500ms", "2.5", "pod=2.5s", "0.04166666667min"])
def test_the_measured_step_takes_what_it_took(said: str) -> None:
    before, after = timed(), timed("--measured", said)
    assert after["time"]["step_s"] == pytest.approx(2.5)
    scale = 2.5 / before["time"]["step_s"]
    assert after["time"]["scale"] == pytest.approx(scale)
    assert before["time"]["scale"] == 1
    for name in ("compute_s", "hbm_s"):
        assert after["time"][name] == pytest.approx(scale * before["time"][name])
    assert after["mfu"] == pytest.approx(before["mfu"] / scale)
    assert after["tokens_per_s"] == pytest.approx(before["tokens_per_s"] / scale)
    assert after["time"]["bound"] == before["time"]["bound"]


def test_a_what_if_and_another_target_are_scaled_alike() -> None:
    what_if = "-t", "other", "--set", "mesh.tensor=4", "--set", "mesh.fsdp=4"
    scale = 0.005 / timed()["time"]["step_s"]
    found = timed(*what_if, "--measured", "pod=5ms")["time"]
    assert found["step_s"] == pytest.approx(scale * timed(*what_if)["time"]["step_s"])


def test_it_is_said() -> None:
    result = run("spec.yaml", "--measured", "2.5ms")
    assert "time    ~ 2.50 ms" in result.stdout
    note = " ".join(result.stdout.split("note    ")[-1].split())
    assert note.startswith("all times are x 1.")
    before = timed()["time"]["step_s"]
    assert "the spec as it is took 2.50 ms on `pod`, as measured, where " in note
    assert note.endswith(f"{before * 1e3:.3g} ms is predicted")
    assert result.stderr == "target pod; --target shows another of 3\n"


def test_another_step_is_suspected() -> None:
    assert "is it this step?" in run("spec.yaml", "--measured", "2.5s").stderr


@pytest.mark.parametrize("text", ["2x", "0s", "pod=", "-3s", "", "1e9s", "nan", "inf s", "9" * 40])
def test_what_is_no_time_is_refused(text: str) -> None:
    result = run("spec.yaml", "--measured", text)
    assert result.exit_code == 2
    assert f"--measured {text} is no time of a step" in result.stderr
    assert "as in `--measured 2.1s`" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["spec.yaml", "--measured", "nope=2s"], "no target is called `nope`"),
        (["spec.yaml", "--measured", "here=2s"], "no time is predicted for target `here`"),
        (["spec.yaml", "-t", "here", "--measured", "2s"], "no time is predicted for target `here`"),
        (["spec.yaml", "-t", "here", "--measured", "pod=2s"], "for target `here`"),
        (["bare.yaml", "--measured", "2s"], "times a step, and there is none"),
    ],
)
def test_what_cannot_be_scaled_is_refused(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def _runs(folder: Path, data: bytes) -> list[str]:
    """Return two runs of which each file has these bytes."""
    runs = [folder / f"{name}.xplane.pb" for name in ("old", "new")]
    for each in runs:
        each.write_bytes(data)
    return [str(each) for each in runs]


def test_a_run_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    runs = _runs(tmp_path, b"\x0a\xff\xff")
    result = CliRunner().invoke(cli, ["diff", *runs, "--spec", "spec.yaml", "-q"])
    assert result.exit_code == 2
    assert result.stderr.count("old.xplane.pb") == 1
    assert "is damaged" in result.stderr
    assert "--measured" not in result.stderr
    result = run("spec.yaml", "-q", "--measured", runs[0])
    assert result.stderr.count("old.xplane.pb") == 1


def test_runs_without_a_step_are_told_how_one_is_named(tmp_path: Path) -> None:
    runs = _runs(tmp_path, b"")
    result = CliRunner().invoke(cli, ["diff", *runs, "--spec", "bare.yaml", "-q"])
    assert result.exit_code == 2
    assert "a run is compared by its step, and none is named" in result.stderr
    assert "--measured" not in result.stderr
