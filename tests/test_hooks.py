"""`.pre-commit-hooks.yaml`: entries are commands that run, over the files they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shardspec.cli.main import VERBS, cli

HOOKS = yaml.safe_load(
    (Path(__file__).parents[1] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
)

each_hook = pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])

SPEC = "shardspec: 1\nmesh: {x: 2}\nrules: [a -> x]\n"


def test_there_are_two() -> None:
    assert [hook["id"] for hook in HOOKS] == ["shardspec-check", "shardspec-fmt"]


@each_hook
def test_the_entry_runs(hook: dict[str, str], tmp_path: Path) -> None:
    assert hook["language"] == "python"
    program, verb, *flags = shlex.split(hook["entry"])
    assert program == "shardspec"
    assert verb in VERBS
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    result = CliRunner().invoke(cli, [verb, *flags, str(spec)])
    assert result.exit_code == 0, result.output


@each_hook
def test_the_files(hook: dict[str, str]) -> None:
    wanted = re.compile(hook["files"])
    for name in ("spec.yaml", "a/shardspec.yml", "model.shard", "a/b/x.shard"):
        assert wanted.search(name), name
    for name in ("values.yaml", "openapi-spec.yaml", "a/myspec.yaml", "x.shard.md"):
        assert not wanted.search(name), name
