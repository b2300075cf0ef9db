"""Every version is said once, and files of the version before are still read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardspec
from shardspec import versions
from shardspec.cli.main import cli

ROOT = Path(__file__).parent.parent
SPEC = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules: [mlp -> model, embed -> data]
arrays:
  layers_{0..3}/kernel: bf16[embed=64 mlp=128]
  norm/scale: bf16[embed=64]
"""
#: What `shardspec lock` of 0.1.0 wrote for it.
LOCK_0_1 = """\
# What every device holds. Made by `shardspec lock`; do not edit, run it again.
lock 1, language 1
input spec.yaml = sha256:8b3c4014e46ed6d1d20aa5ff8ac93226
arrays = sha256:adaa0c8690b1b90c8fc053e7dc4cf1df

target default
mesh data = 2
mesh model = 4
layers_{0..3}/kernel : bf16[embed=64 mlp=128] = (data, model)
norm/scale : bf16[embed=64] = (data)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "spec.lock").write_text(LOCK_0_1)
    return tmp_path


def test_the_package_has_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == versions.PACKAGE == shardspec.__version__
    log = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", log, re.MULTILINE)
    assert newest
    assert newest[1] in (versions.PACKAGE, "Unreleased")


def test_no_other_module_states_a_version() -> None:
    stated = re.compile(r'"shardspec\.[a-z]+/\d|^[A-Z_]*(?:VERSION|LANGUAGE|FORMAT) = \d', re.M)
    for path in (ROOT / "shardspec").rglob("*.py"):
        if path.name != "versions.py":
            assert not stated.search(path.read_text()), path


def test_what_is_said_is_what_counts(folder: Path) -> None:
    said = CliRunner().invoke(cli, ["schema", "--versions"]).stdout
    for constant in (versions.CHECK_JSON, versions.COMPILE_JSON, versions.DIFF_JSON):
        name, version = constant.split("/")
        assert re.search(rf"^{re.escape(name)} +{version} ", said, re.MULTILINE)
    assert f"lock {versions.LOCK}, language {versions.LANGUAGE}" in LOCK_0_1


def test_a_lock_of_the_version_before_is_read(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["lock", "--check"])
    assert (result.exit_code, result.output) == (0, "The layout in spec.lock is up to date.\n")
    assert CliRunner().invoke(cli, ["diff", "spec.lock", "spec.yaml"]).exit_code == 0


@pytest.mark.parametrize("head", ["lock 0, language 1", "lock 2, language 1"])
def test_a_lock_of_another_version_has_a_way_out(folder: Path, head: str) -> None:
    (folder / "spec.lock").write_text(LOCK_0_1.replace("lock 1, language 1", head))
    result = CliRunner().invoke(cli, ["lock", "--check"])
    assert result.exit_code == 1
    assert "run `shardspec lock` to write it anew, or take the shardspec that wrote it" in (
        result.stderr
    )
    assert CliRunner().invoke(cli, ["lock"]).exit_code == 0
    written = (folder / "spec.lock").read_text()
    assert _without_digest(written) == _without_digest(LOCK_0_1)


def _without_digest(lock: str) -> str:
    """Return a lock without the digest of its spec: that of the text was in 0.2."""
    return re.sub("(?m)^input spec.yaml = .*$", "", lock)


def test_a_spec_of_another_version_has_a_way_out(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC.replace("shardspec: 1", "shardspec: 2"))
    result = CliRunner().invoke(cli, ["check"])
    assert result.exit_code == 1
    assert f"write `shardspec: {versions.LANGUAGE}`, or install" in result.output
