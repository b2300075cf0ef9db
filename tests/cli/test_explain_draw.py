from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli
from tests.report.test_array_text import SPEC


@pytest.fixture(autouse=True)
def spec_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["explain", *arguments, "--target", "bare"])
    return result.exit_code, result.output


def test_it_follows_the_explanation() -> None:
    code, text = run("bias", "--draw")
    assert code == 0
    assert text.index("names   mlp") < text.index("model 1  64:128  2 3 6 7")
    assert "model 1  64:128" not in run("bias")[1]


def test_globs_and_activations() -> None:
    code, text = run("*ma*", "--draw")
    assert code == 0
    assert "dim 0 embed=512 over data, down" in text
    assert "activation residual   P(" in run("residual", "--draw")[1]


@pytest.mark.parametrize(
    "arguments", [("axis:data",), ("spec.yaml:6",), ("bias", "--porcelain"), ()]
)
def test_what_is_no_array_is_not_drawn(arguments: tuple[str, ...]) -> None:
    code, text = run(*arguments, "--draw")
    assert code == 2
    assert "error: " in text


def test_a_mesh_larger_than_any_drawing_is_not_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(
        "shardspec: 1\nmesh: {data: 1000000, model: 1000000}\nrules:\n  - a -> data\n"
        "arrays:\n  w: 'f32[a=1000000]'\n"
    )
    result = CliRunner().invoke(cli, ["explain", "w", "--draw", "--spec", "spec.yaml"])
    assert result.exit_code != 0
    assert "1,000,000,000,000 devices are not drawn" in result.output
    asked = ["explain", "w", "--draw", "--spec", "spec.yaml", "--set", "mesh.data=8"]
    asked += ["--set", "mesh.model=8"]
    assert CliRunner().invoke(cli, asked).exit_code == 0
