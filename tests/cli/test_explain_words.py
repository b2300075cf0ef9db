"""`explain` of a word that is nothing: findings with such a name are offered."""

from __future__ import annotations

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
