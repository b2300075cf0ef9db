"""Which files a message may quote, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.language.files import boundary_of

SECRET = "hunter2"
HEAD = "shardspec: 1\nmesh: {model: 2}\n"

#: What a file that is no spec may hold.
TEXTS = {
    "words": f"root:{SECRET}:0:0:x:/root:/bin/sh\nother:{SECRET}\n",
    "key": f"-----BEGIN {SECRET} KEY-----\n{SECRET}\n",
    "yaml": f"password: {SECRET}\n{SECRET}: [1, 2]\n",
    "netrc": f"machine x login y password {SECRET}\n",
    "twice": f"{SECRET}: f32[1]\n{SECRET}: f32[2]\n",
    "tab": f"rules:\n\t- {SECRET} -> model\n",
    "rules": f"rules:\n  - {SECRET} -> -> model\n",
    "known keys": f"shardspec: 1\nrules: {SECRET}\n",
    "latin": f"{SECRET}: caf\xe9\n",
    "json": f'{{"{SECRET}": "{SECRET}"',
    "json arrays": f'{{"{SECRET}": "{SECRET}"}}',
    "dsl": f"shardspec 1\nrules {{ {SECRET} -> }}\n",
    "comment": f"# {SECRET}\n# shardspec: ignore[{SECRET}]\nrules: [\n",
}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    return folder


def elsewhere(project: Path, text: str, name: str) -> str:
    path = project.parent / "elsewhere" / name
    path.write_bytes(text.encode("latin-1"))
    return str(path)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("suffix", ["", ".yaml", ".json", ".shard", ".npz"])
@pytest.mark.parametrize("key", ["extends", "manifest"])
def test_no_content_of_a_file_elsewhere(project: Path, text: str, suffix: str, key: str) -> None:
    there = elsewhere(project, TEXTS[text], f"secret{suffix}")
    (project / "link.yaml").symlink_to(there)
    for name in (there, os.path.relpath(there), "./link.yaml"):
        (project / "spec.yaml").write_text(f"{HEAD}{key}: {name}\n")
        for output_format in ("full", "json", "sarif", "github", "concise"):
            result = run("check", "spec.yaml", "--format", output_format)
            assert SECRET not in result.output
            assert result.exit_code == 1
        assert SECRET not in run("compile", "spec.yaml").output


@pytest.mark.parametrize("text", TEXTS)
def test_no_content_by_a_link_that_a_person_names(project: Path, text: str) -> None:
    """The person meant a file of the project."""
    there = elsewhere(project, TEXTS[text], "secret")
    for name in ("spec.yaml", "spec.shard", "spec.lock", "arrays.yaml", "rules.py", "rules.gin"):
        (project / name).symlink_to(there)
    (project / "good.yaml").write_text(
        f"{HEAD}arrays: {{a: 'f32[mlp=2]'}}\nrules: [mlp -> model]\n"
    )
    (project / "good.lock").symlink_to(there)
    for line in RUNS:
        assert SECRET not in run(*line.split()).output, line


#: `good` is a sound spec whose lock is a link; the others are links themselves.
RUNS = """\
check spec.yaml
check spec.shard
check .
check --fix spec.yaml
check good.yaml --arrays arrays.yaml
compile spec.yaml
diff good.lock good.yaml
diff good.yaml spec.lock
explain --spec spec.yaml x
explain a --spec good.yaml
fmt --diff spec.yaml
fmt --to dsl spec.yaml
fmt spec.shard
import flax rules.py
import maxtext spec.yaml
import t5x-gin rules.gin
lock --check good.yaml
lock spec.yaml
manifest arrays.yaml
mesh spec.yaml
cost spec.yaml
""".splitlines()


def test_the_place_is_said_and_the_way_to_the_text(project: Path) -> None:
    there = elsewhere(project, "rules:\n  - a -> model\n  - b => -> model\n", "base.yaml")
    (project / "spec.yaml").write_text(f"{HEAD}extends: ../elsewhere/base.yaml\n")
    result = run("check", "spec.yaml")
    assert "../elsewhere/base.yaml:3:" in result.output
    assert "outside the project" in result.output
    assert f"`shardspec check {there}` shows it" in result.output
    shown = run("check", there)
    assert "b => -> model" in shown.output


def test_a_sound_base_elsewhere_counts_and_its_lines_are_not_shown(project: Path) -> None:
    elsewhere(project, f"rules:\n  - mlp -> tenosr  # {SECRET}\n", "base.yaml")
    (project / "spec.yaml").write_text(f"{HEAD}extends: ../elsewhere/base.yaml\n")
    result = run("check", "spec.yaml")
    assert "unknown mesh axis `tenosr`" in result.output
    assert "../elsewhere/base.yaml:2:" in result.output
    assert SECRET not in result.output


def test_a_file_elsewhere_that_a_person_names_is_shown(project: Path) -> None:
    there = elsewhere(project, "rules:\n  - b => -> model\n", "base.yaml")
    assert "b => -> model" in run("check", there).output


@pytest.mark.parametrize("name", [".git/config", ".env", "below/.netrc"])
def test_hidden_files_of_the_project(project: Path, name: str) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text(f"token = {SECRET}\n")
    for key in ("extends", "manifest"):
        (project / "spec.yaml").write_text(f"{HEAD}{key}: ./{name}\n")
        assert SECRET not in run("check", "spec.yaml").output


def test_a_spec_in_a_hidden_folder_is_shown_with_what_lies_beside_it(project: Path) -> None:
    folder = project / ".config"
    folder.mkdir()
    (folder / "base.yaml").write_text("rulse: []\n")
    (folder / "spec.yaml").write_text(f"{HEAD}extends: ./base.yaml\n")
    assert "rulse: []" in run("check", ".config/spec.yaml").output


def test_pyproject_names_no_spec_elsewhere(project: Path) -> None:
    there = elsewhere(project, TEXTS["words"], "secret")
    (project / "link.yaml").symlink_to(there)
    for name in (there, "../elsewhere/secret", "link.yaml"):
        (project / "pyproject.toml").write_text(f"[tool.shardspec]\nspec = '{name}'\n")
        result = run("check")
        assert result.exit_code == 2
        assert SECRET not in result.output
        assert "leads out of its folder" in result.output


def test_pyproject_itself(project: Path) -> None:
    there = elsewhere(project, f"shardspec {SECRET} = [[[\n", "secret")
    (project / "pyproject.toml").symlink_to(there)
    (project / "spec.yaml").write_text(f"{HEAD}rules: [mlp -> model]\n")
    assert SECRET not in run("check", "spec.yaml").output


def test_what_is_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "a" / "b" / "c" / "spec.yaml"
    spec.parent.mkdir(parents=True)
    monkeypatch.chdir("/")
    assert boundary_of(str(spec)).folder == str(spec.parent)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert boundary_of("c/spec.yaml").folder == str(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a" / "b" / "pyproject.toml").touch()
    assert boundary_of("b/c/spec.yaml").folder == str(tmp_path / "a" / "b")


def test_the_home_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many keep it under git; a spec that lies in it is not its owner's for that."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    spec = tmp_path / "downloads" / "spec.yaml"
    spec.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    assert boundary_of("downloads/spec.yaml").folder == str(spec.parent)
    assert not boundary_of("downloads/spec.yaml").holds("secrets.yaml")
