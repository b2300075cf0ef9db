"""What the verb `explain` accepts, and how it tells subjects apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner, Result

from shardspec.cli.explain import command

SPEC = """\
shardspec: 1
targets:
  a: {mesh: {data: 2, tensor: 4}}
  b: {mesh: {data: 2, expert: 4}}
rules:
  - embed -> tensor
activations:
  residual: embed _
arrays:
  "w_{0..3}/k": bf16[embed=64 mlp=128]
  policy: bf16[embed=64]
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return str(path)


def _explain(spec: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--spec", spec], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--porcelain", "axis:embed"], "--porcelain prints arrays"),
        (["--porcelain", "residual"], "--porcelain prints arrays"),
        (["--porcelain", "spec.yaml:6"], "--porcelain prints arrays"),
        (["--porcelain", "--why-not", "w_0/k:0=data"], "--porcelain prints arrays"),
        (["w_0/k", "--why-not", "w_0/k:0=data"], "are two questions"),
        (["w_0/k", "--list"], "are two questions"),
        (["--porcelain", "embed"], "--porcelain prints arrays"),
        (["--draw", "tensor"], "--draw draws an array"),
        (["tensr"], "did you mean `tensor`?"),
        (["step:mo"], "did you mean `moe`? `shardspec explain --list steps`"),
        (["step:moe:99"], "step:moe has 35 lines"),
        (["axis:expert"], "ask about one that has it: --target b"),
        (["other.yaml:3"], "the spec reads no file other.yaml"),
    ],
)
def test_refused_with_exit_2(spec: str, arguments: list[str], said: str) -> None:
    result = _explain(spec, *arguments)
    assert isinstance(result.exception, ClickException), "what `main` ends with 2 for"
    assert said in result.exception.format_message()
    assert not result.stdout


def test_an_activation_by_name(spec: str) -> None:
    result = _explain(spec, "residual")
    assert result.exit_code == 0
    assert "activation residual   ->   P('tensor', None)" in result.output


def test_a_word_that_stands_for_both_is_explained_as_both(spec: str) -> None:
    output = _explain(spec, "policy").output
    assert output.startswith("policy: ")
    assert "policy   bf16[64]   ->   P('tensor')" in output


def test_why_not_on_a_glob_says_alike_arrays_once(spec: str) -> None:
    output = _explain(spec, "--why-not", "w_*/k:0=data").output
    assert output.count("dim 0 (embed=64)") == 1
    assert output.startswith("w_{0..3}/k x4   dim 0")
