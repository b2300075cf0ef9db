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


def takes(hook: dict[str, str], name: str) -> bool:
    """Say whether pre-commit gives a file to a hook."""
    return bool(re.search(hook["files"], name) and not re.search(hook["exclude"], name))


@each_hook
def test_the_files(hook: dict[str, str]) -> None:
    for name in ("spec.yaml", "a/shardspec.yml", "model.shard", "a/b/x.shard"):
        assert takes(hook, name), name
    for name in ("values.yaml", "openapi-spec.yaml", "a/myspec.yaml", "x.shard.md"):
        assert not takes(hook, name), name


HIDDEN = (".github/workflows/shardspec.yml", "a/.github/shardspec.yml", ".spec/spec.yaml")


@each_hook
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_folders_are_skipped_by_hooks_and_by_the_command(
    hook: dict[str, str], name: str, tmp_path: Path
) -> None:
    workflow = tmp_path / name
    workflow.parent.mkdir(parents=True)
    workflow.write_text("on: [push]\nshardspec: 1\njobs: {}\n", encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    result = CliRunner().invoke(cli, [*shlex.split(hook["entry"])[1:], str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert name not in result.output.replace("\\", "/")
    assert not takes(hook, name)


def test_the_workflow_of_the_docs_is_no_spec_of_the_hooks() -> None:
    page = (Path(__file__).parents[1] / "docs" / "ci.md").read_text(encoding="utf-8")
    workflows = re.findall(r"\.github/workflows/\S+\.yml", page)
    assert workflows
    assert not any(takes(hook, name) for hook in HOOKS for name in workflows)
