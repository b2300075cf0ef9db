"""`--dry-run` of every verb that writes, and `shardspec --undo`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import VERBS, cli

SPEC = """\
shardspec: 1
axes: {embed: 64, mlp: 256}
hardware: v5e-8
mesh: {data: 8}
rules: [embed -> data]
params: {"**/kernel": embed mlp}
arrays: {"layers_{0..3}/kernel": "bf16[64, 256]"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    (own / "spec.yaml").write_text(SPEC)
    (own / "rules.json").write_text('[["embed", "data"]]')
    return own


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def files(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_each_verb_with_an_output_has_it() -> None:
    with click.Context(cli) as context:
        for name in VERBS:
            verb = cli.get_command(context, name)
            assert verb is not None
            options = {option for each in verb.params for option in each.opts}
            assert ("--dry-run" in options) == bool({"--output", "--force"} & options), name


@pytest.mark.parametrize(
    "line",
    [
        "fmt",
        "fmt --to dsl -o spec.shard",
        "lock",
        "compile -o plan.json",
        "cost -o cost.json",
        "manifest spec.yaml -o arrays.yaml",
        "import flax rules.json -o imported.yaml",
        "export flax -o rules.py",
        "mesh -o mesh.json",
        "schema -o schema.json",
        "init --arrays spec.yaml --hardware h100 -o new.yaml",
        "example tiny-t5",
        "search --over mesh --write",
    ],
)
def test_a_dry_run_shows_and_does_not_write(line: str, folder: Path) -> None:
    before = files(folder)
    result = run(*line.split(), "--dry-run")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert files(folder) == before, line
    assert "wrote" not in result.stderr
    if not line.startswith(("search", "cost")):
        assert "\n+++ b/" in result.stdout, result.output


def test_the_diff_is_one_that_git_applies(folder: Path) -> None:
    for line in ("fmt", "lock"):
        shown = run(line, "--dry-run").stdout
        subprocess.run(["git", "apply"], input=shown.encode(), check=True, cwd=folder)
        applied = files(folder)
        assert run(line).exit_code == 0
        assert files(folder) == applied


def test_undo_restores_once_and_redoes(folder: Path) -> None:
    assert run("fmt").exit_code == 0
    new = (folder / "spec.yaml").read_text()
    assert new != SPEC
    assert run("--undo", "spec.yaml").exit_code == 0
    assert (folder / "spec.yaml").read_text() == SPEC
    assert run("--undo", "spec.yaml").exit_code == 0
    assert (folder / "spec.yaml").read_text() == new


def test_undo_takes_back_no_work_of_others(folder: Path) -> None:
    assert run("fmt").exit_code == 0
    edited = (folder / "spec.yaml").read_text() + "# mine\n"
    (folder / "spec.yaml").write_text(edited)
    result = run("--undo", "spec.yaml")
    assert result.exit_code == 2
    assert "shardspec has not replaced its text, or it has changed since" in result.stderr
    assert (folder / "spec.yaml").read_text() == edited
    assert run("--undo", "rules.json").exit_code == 2


def test_undo_says_what_it_restored(folder: Path) -> None:
    assert run("fmt").exit_code == 0
    said = "spec.yaml: restored the text before the last write; --undo again brings the newer one"
    assert said in run("--undo", "spec.yaml").stderr


def test_undo_keeps_bytes(folder: Path) -> None:
    text = "\ufeff" + SPEC.replace("\n", "\r\n")
    (folder / "spec.yaml").write_bytes(text.encode())
    assert run("fmt").exit_code == 0
    assert (folder / "spec.yaml").read_bytes() != text.encode()
    assert run("--undo", "spec.yaml").exit_code == 0
    assert (folder / "spec.yaml").read_bytes() == text.encode()
