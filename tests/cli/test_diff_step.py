"""`diff --step`: what a change of the spec does to a step, and the rule that did it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from tests.cli.test_cost import SPEC, STEP


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "old.yaml").write_text(SPEC)
    (tmp_path / "new.yaml").write_text(SPEC.replace("mlp -> tensor", "mlp -> none"))
    (tmp_path / "diffed_step.py").write_text(STEP)
    yield tmp_path
    sys.modules.pop("diffed_step", None)


def diff(*arguments: str, new: str = "new.yaml") -> Result:
    asked = ["diff", "old.yaml", new, "--step", "diffed_step:step", "-t", "pod", *arguments]
    result = CliRunner().invoke(cli, asked)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_memory_time_axes_and_rules_are_told() -> None:
    found = diff()
    assert found.exit_code == 1
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert "step on target pod, per device" in lines
    assert "parameters 4.00 MiB -> 8.00 MiB (+100 %)" in lines
    assert "FLOPs 1.51 TFLOP -> 3.02 TFLOP (+100 %)" in lines
    assert "sends ~ 55.0 MiB -> 84.0 MiB (+53 %)" in lines
    assert "tensor 12.0 MiB -> 0 B" in lines
    assert "mlp -> tensor 12.0 MiB -> 0 B old.yaml:7" in lines
    assert "embed -> fsdp 15.0 MiB -> 28.0 MiB (+87 %) old.yaml:8, new.yaml:8" in lines
    assert any(line.startswith("time ~") and "(+" in line for line in lines)


def test_json_and_markdown_hold_the_same() -> None:
    (target,) = json.loads(diff("--format", "json").stdout)["targets"]
    step = target["step"]
    assert step["axes"]["tensor"] == {"before": 12 << 20, "after": 0}
    assert step["rules"][2] == {
        "rule": "mlp -> tensor",
        "places": ["old.yaml:7"],
        "before": 12 << 20,
        "after": 0,
    }
    assert step["flops"]["after"] == 2 * step["flops"]["before"]
    shown = diff("--format", "md").stdout
    assert "sends   ~ 55.0 MiB -> 84.0 MiB (+53 %)" in shown
    assert shown.count("```") == 2


def test_a_change_that_moves_no_array_may_move_a_step(folder: Path) -> None:
    (folder / "same.yaml").write_text(SPEC)
    same = diff(new="same.yaml")
    assert same.exit_code == 0
    assert "step on target pod: costs what it did" in same.stdout


@pytest.mark.parametrize(
    ("limit", "exit_code"),
    [
        ("traffic+52%", 1),
        ("traffic+54%", 0),
        ("traffic+28MiB", 1),
        ("traffic+30MiB", 0),
        ("time+1%", 1),
        ("time+500%", 0),
        ("memory+101%", 0),
        ("time+1MiB", 2),
    ],
)
def test_fail_on_what_a_step_does(limit: str, exit_code: int) -> None:
    assert diff("--fail-on", limit).exit_code == exit_code


def test_what_cannot_be_compared_is_said(folder: Path) -> None:
    assert CliRunner().invoke(cli, ["lock", "old.yaml"]).exit_code == 0
    found = diff(new=next(path.name for path in folder.glob("*.lock")))
    assert found.exit_code == 2
    assert "--step runs under two specs, and a lock is none" in found.stderr
    bare = CliRunner().invoke(cli, ["diff", "old.yaml", "new.yaml", "--fail-on", "time+5%"])
    assert bare.exit_code == 2
    assert "name it: `--step train:step`" in bare.stderr
    (folder / "bad.yaml").write_text(SPEC.replace("mlp -> tensor", "mlp -> tensro"))
    bad = diff(new="bad.yaml")
    assert bad.exit_code == 1
    assert "no step is traced under a spec with errors" in bad.stderr
    assert "SHD201" in bad.stderr
