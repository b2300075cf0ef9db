"""`explain` of a word that is nothing: findings with such a name are offered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

SPEC = "shardspec: 1\nmesh: {x: 2}\nrules: [a -> x]\n"
OFFER = "a finding is called `unmatched-pattern`"


@pytest.mark.parametrize("arrays", ["", "arrays: {k: 'f32[a=8]'}\n"])
def test_beside_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC + arrays, encoding="utf-8")
    result = CliRunner().invoke(cli, ["explain", "unmatched"])
    assert result.exit_code != 0
    assert OFFER in result.stderr


@pytest.mark.parametrize(
    ("word", "offer"),
    [
        ("unmatched", OFFER),
        ("Indivisble", "a finding is called `indivisible`"),
        ("replicated", "findings are called `replicated-here`, `replicated-large`"),
        ("layers/0/wi", None),
    ],
)
def test_without_a_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, offer: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["explain", word])
    assert result.exit_code == 2
    assert "no spec found" in result.stderr
    assert (" called `" in result.stderr) == (offer is not None)
    assert (offer or "") in result.stderr


def test_a_folder_without_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(cli, ["check", "empty"])
    assert "error: no specs in `empty`\n  = help: a spec is `*.shard`" in result.stderr


PARTS = """\
shardspec: 1
mesh: {x: 2}
rules: [mlp -> x]
arrays:
  "a/layers_{0..3}/mlp/wi/kernel": f32[_=8 mlp=8]
  "a/layers_{0..3}/mlp/wo/kernel": f32[mlp=8 _=8]
  "b/layers_{0..3}/norm/scale": f32[_=8]
  "{c,d,e,f,g}/bias": f32[_=8]
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(PARTS, encoding="utf-8")


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("word", "glob", "count"),
    [("wi", "**/wi/**", 1), ("mlp/wo", "**/mlp/wo/**", 1), ("b", "**/b/**", 1), ("mlp", "", 2)],
)
def test_a_part_of_a_path_is_found(word: str, glob: str, count: int) -> None:
    result = CliRunner().invoke(cli, ["explain", "base.yaml", word])
    assert result.exit_code == 0, result.stderr
    assert f"`{word}` is read as `{glob}" in result.stderr
    assert result.stdout.count("alike; the first of them") == count
    assert ("the axis is `axis:mlp`" in result.stderr) == (word == "mlp")


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base.yaml", "bias"], "`bias` is a part of 5 paths\n  = help: say which array: `c/bias`"),
        (["base.yaml", "a/layers_9/mlp/wi/kernel"], "there are `a/layers_{0..3}/mlp/wi/kernel`"),
        (["base.yaml", "bais"], "no array has the path `bais` (17 arrays)"),
        (["base.yaml"], "name what to explain: `shardspec explain base.yaml PATH`"),
        (["a", "b"], "2 subjects: a, b"),
        (["base.yaml", "wi", "--spec", "base.yaml"], "two specs: base.yaml and --spec base.yaml"),
    ],
)
def test_what_is_no_single_thing_is_offered(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["explain", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


DOTTED = """\
shardspec: 1
mesh: {x: 2}
rules: [mlp -> x]
replicate: [{path: lm_head.weight, because: small}]
arrays:
  "model.layers.{0..3}.mlp.up_proj.weight": f32[mlp=8 _=8]
  "model.layers.{0..3}.mlp_norm.weight": f32[_=8]
  lm_head.weight: f32[_=8 _=8]
  mlp/up: f32[mlp=8]
"""


@pytest.mark.parametrize(
    ("word", "glob", "shown"),
    [
        ("up_proj", "*.up_proj.*", "model.layers.{0..3}.mlp.up_proj.weight x4"),
        ("mlp_norm.weight", "*.mlp_norm.weight", "model.layers.{0..3}.mlp_norm.weight x4"),
        ("model.layers.2", "model.layers.2.*", "model.layers.2.mlp.up_proj.weight "),
        ("lm_head", "lm_head.*", "whole   meant to be, because small     base.yaml:4  replicate"),
        ("mlp", "{**/mlp/**,**/*.mlp/**,**/mlp.*/**,**/*.mlp.*/**}", "mlp/up "),
    ],
)
def test_a_part_between_dots_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, glob: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(DOTTED, encoding="utf-8")
    result = CliRunner().invoke(cli, ["explain", "base.yaml", word])
    assert result.exit_code == 0, result.stderr
    assert f"`{word}` is read as `{glob}`" in result.stderr
    assert shown in result.stdout
    again = CliRunner().invoke(cli, ["explain", "base.yaml", glob])
    assert again.stdout == result.stdout


def test_what_is_offered_is_a_path_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(
        "shardspec: 1\nmesh: {x: 2}\narrays:\n  'm.{0..1}.{a,b,c,d,e}.w': f32[_=8]\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(cli, ["explain", "base.yaml", "m"])
    offered = re.findall("`(m[^`]+)`", result.stderr)
    assert offered == [f"m.{{0,1}}.{name}.w" for name in "abcd"] + ["m.*"]
    for subject in offered:
        assert CliRunner().invoke(cli, ["explain", "base.yaml", subject]).exit_code == 0
