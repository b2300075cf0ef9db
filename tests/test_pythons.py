"""What `make test-pythons` runs with, without running it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import pythons

PROJECT = tomllib.loads((pythons.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("requirement", pythons.requirements(PROJECT))
def test_each_requirement_has_a_lowest_version_that_exists(requirement: str) -> None:
    oldest = pythons.pinned(requirement, "oldest")
    assert re.search(r"(==|>=)\d+\.\d+\.\d+", oldest), "a whole version, as pip needs for `==`"


def test_a_requirement_without_a_lowest_version_is_refused() -> None:
    with pytest.raises(ValueError, match="lowest version"):
        pythons.pinned("flax", "oldest")


def test_the_pythons_are_those_that_the_package_names() -> None:
    named = re.findall(r"Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tuple(named) == pythons.PYTHONS
    assert PROJECT["requires-python"] == f">={pythons.PYTHONS[0]}"


def test_an_interpreter_that_is_missing_is_said_and_fails_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.main(["3.12-newest"]) == 1
    assert "SKIPPED: no Python 3.12" in capsys.readouterr().out


def test_an_interpreter_of_pyenv_is_found_and_a_shim_that_fails_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shims, real = tmp_path / "shims", tmp_path / "versions" / "3.12.9" / "bin"
    for folder, name, body in (
        (shims, "python3.12", "exit 127"),
        (real, "python", "echo 3.12"),
    ):
        folder.mkdir(parents=True)
        script = folder / name
        script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.interpreter("3.12") == str(real / "python")
    assert pythons.interpreter("3.13") is None


def test_an_unknown_corner_is_a_usage_error() -> None:
    with pytest.raises(SystemExit):
        pythons.main(["2.7-newest"])
