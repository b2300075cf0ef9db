"""`git:REV:PATH`: who may ask for it, and what the git that answers can be made to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shardspec.cli.request import expand
from shardspec.diagnostics import Diagnostic
from shardspec.language.files import beside, read_revision
from shardspec.pipeline import load_path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

BASE = "rules:\n  - mlp -> model\n"
CHILD = "shardspec: 1\nmesh: {data: 2, model: 2}\n"
WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["git", *WHO, *arguments], cwd=folder, input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commit(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")


def codes(path: str) -> list[str]:
    return [found.code.id for found in load_path(path)[1]]


# who may ask


ENTRIES = [
    "extends: git:HEAD:base.yaml",
    "extends: ['git:HEAD:./base.yaml']",
    "extends: git:HEAD",
    "extends: 'git:'",
    "manifest: git:HEAD:./arrays.yaml",
    "manifest: ['git:HEAD:arrays']",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_file_may_not(repository: Path, entry: str) -> None:
    commit(repository, {"base.yaml": BASE, "arrays.yaml": "a/kernel: f32[mlp=8]\n"})
    (repository / "spec.yaml").write_text(f"{CHILD}{entry}\n")
    assert codes("spec.yaml") == ["SHD019"]


@pytest.mark.parametrize("spelling", ["./git:HEAD:base.yaml", "x/../git:HEAD:base.yaml"])
def test_nor_by_another_spelling(repository: Path, spelling: str) -> None:
    """These are files of an odd name, which are there or not."""
    commit(repository, {"base.yaml": BASE})
    (repository / "spec.yaml").write_text(f"{CHILD}extends: {spelling}\n")
    assert codes("spec.yaml") == ["SHD008"]
    (repository / "git:HEAD:base.yaml").write_text("rules:\n  - embed -> data\n")
    spec, found = load_path("spec.yaml")
    assert not found
    assert spec is not None
    assert [rule.logical_axis for rule in spec.axis_rules] == ["embed"]


def test_nor_by_the_name_of_a_folder(repository: Path) -> None:
    """A folder walk meets files whose names look like revisions."""
    commit(repository, {"git:HEAD:/spec.yaml": f"{CHILD}{BASE}"})
    (file,) = expand(["."]).files
    assert file == "./git:HEAD:/spec.yaml"
    (repository / file).write_text("shardspec: 1\nrulse: []\n")
    assert codes(file) == ["SHD003"]


def test_what_came_by_a_revision_names_files_of_it(repository: Path) -> None:
    commit(
        repository,
        {
            "specs/spec.yaml": f"{CHILD}extends: ../base.yaml\nmanifest: arrays.yaml\n",
            "specs/arrays.yaml": "a/kernel: f32[mlp=8]\n",
            "base.yaml": BASE,
        },
    )
    git(repository, "tag", "releases/one")
    git(repository, "rm", "-q", "-r", ".")
    for path in ("specs/spec.yaml", "./specs/spec.yaml"):
        spec, found = load_path(f"git:releases/one:{path}")
        assert not found
        assert spec is not None
        assert [str(rule) for rule in spec.axis_rules] == ["mlp -> model"]
        assert [param.path for param in spec.params] == ["a/kernel"]


def test_what_came_by_a_revision_never_leaves_it_unsaid(repository: Path) -> None:
    """A parent above this folder is not taken from the files of today."""
    commit(repository, {"a/b/spec.yaml": f"{CHILD}extends: ../base.yaml\n", "a/base.yaml": BASE})
    (repository / "a" / "base.yaml").write_text("rules:\n  - embed -> data\n")
    os.chdir(repository / "a" / "b")
    spec, found = load_path("git:HEAD:./spec.yaml")
    assert not found
    assert spec is not None
    assert [str(rule) for rule in spec.axis_rules] == ["mlp -> model"]


def test_beside() -> None:
    assert beside("git:v1:./a/spec.yaml", "../../b.yaml") == "git:v1:../b.yaml"
    assert beside("git:v1:a/spec.yaml", "./x/b.yaml") == "git:v1:a/x/b.yaml"


# what git can be made to do


def embedded(folder: Path, settings: str) -> str:
    """Make a bare repository without a `.git`, as a clone can hold one; return a missing blob.

    Git would fetch the blob from a remote that promises it, and a remote can be a command.
    """
    git(folder, "init", "-q", "--bare", ".")
    blob = git(folder, "hash-object", "-w", "--stdin", stdin=BASE)
    tree = git(folder, "mktree", stdin=f"100644 blob {blob}\tbase.yaml\n")
    git(folder, "update-ref", "HEAD", git(folder, "commit-tree", tree, "-m", "x"))
    (folder / "objects" / blob[:2] / blob[2:]).unlink()
    with (folder / "config").open("a") as config:
        config.write(settings)
    return blob


def promisor(marker: Path, more: str = "") -> str:
    return f"""
[core]
  repositoryformatversion = 1
[extensions]
  partialClone = evil
[remote "evil"]
  url = "ext::sh -c touch% {marker}"
  promisor = true
{more}
[protocol "ext"]
  allow = always
[protocol]
  allow = always
"""


def unpacked(folder: Path, settings: str) -> None:
    """Make the same attack as a whole repository, as an archive can hold one."""
    inside = folder / ".git"
    inside.mkdir()
    embedded(inside, settings)
    git(inside, "config", "core.bare", "false")


ATTACKS: dict[str, Callable[[Path, Path], str]] = {
    "ext": lambda folder, marker: promisor(marker),
    "upload pack": lambda folder, marker: promisor(marker).replace(
        f'"ext::sh -c touch% {marker}"', f'"{folder}"\n  uploadpack = touch {marker};'
    ),
    "ssh": lambda folder, marker: (
        promisor(marker).replace(f'"ext::sh -c touch% {marker}"', '"ssh://host/x"')
        + f"[core]\n  sshCommand = touch {marker};\n"
    ),
    "instead of": lambda folder, marker: (
        promisor(marker).replace(f'"ext::sh -c touch% {marker}"', '"https://host/x"')
        + f'[url "ext::sh -c touch% {marker} #"]\n  insteadOf = https://host/\n'
    ),
}


@pytest.mark.parametrize("how", [embedded, unpacked])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_configuration_runs_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, how: Callable[[Path, str], object]
) -> None:
    folder, marker = tmp_path / "repository", tmp_path / "ran"
    folder.mkdir()
    how(folder, ATTACKS[attack](folder, marker))
    monkeypatch.chdir(folder)
    if shutil.which("git-remote-ext", path=git(folder, "--exec-path")):
        subprocess.run(["git", "cat-file", "-s", "HEAD:base.yaml"], capture_output=True)
        assert marker.exists(), "the attack is real"
        marker.unlink()
    assert isinstance(read_revision("git:HEAD:base.yaml", 1000), Diagnostic)
    (folder / "spec.yaml").write_text(f"{CHILD}extends: git:HEAD:base.yaml\n")
    assert codes("spec.yaml") == ["SHD019"]
    assert not marker.exists()


def test_not_even_where_git_is_too_old_to_know_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `safe.bareRepository` and `GIT_NO_LAZY_FETCH` the insides are still refused."""
    from shardspec.language import files

    embedded(tmp_path, "")
    blob = git(tmp_path, "hash-object", "-w", "--stdin", stdin=BASE)
    assert git(tmp_path, "cat-file", "-p", blob)
    (tmp_path / "below").mkdir()
    monkeypatch.setattr(files, "_SETTINGS", ())
    for folder in (tmp_path, tmp_path / "below"):
        monkeypatch.chdir(folder)
        found = read_revision("git:HEAD:base.yaml", 1000)
        assert isinstance(found, Diagnostic)
        assert "the insides of a repository" in found.message


def test_an_empty_git_folder_hides_no_insides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    folder = tmp_path / "repository"
    folder.mkdir()
    embedded(folder, promisor(marker))
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder)
    assert isinstance(read_revision("git:HEAD:base.yaml", 1000), Diagnostic)
    assert not marker.exists()


def script(path: Path, marker: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    path.chmod(0o755)


def test_no_helper_of_a_repository_runs(repository: Path) -> None:
    """Monitors, hooks, filters, pagers, aliases: of a repository that can be read."""
    marker, program = repository / "ran", repository / "program"
    commit(repository, {"base.yaml": BASE, ".gitattributes": "*.yaml diff=evil filter=evil\n"})
    script(program, marker)
    for name in ("post-index-change", "reference-transaction", "post-checkout", "fsmonitor"):
        script(repository / ".git" / "hooks" / name, marker)
    for name in (
        *("core.fsmonitor", "core.pager", "core.sshCommand", "core.gitProxy", "core.editor"),
        *("core.askPass", "core.alternateRefsCommand", "diff.external", "diff.evil.textconv"),
        *("diff.evil.command", "filter.evil.smudge", "filter.evil.process", "pager.cat-file"),
        *("credential.helper", "gpg.program", "uploadpack.packObjectsHook"),
    ):
        git(repository, "config", name, str(program))
    for alias in ("cat-file", "rev-parse"):
        git(repository, "config", f"alias.{alias}", f"!{program}")
    marker.unlink(missing_ok=True)
    assert read_revision("git:HEAD:base.yaml", 1000) == BASE.encode()
    assert not marker.exists()


def test_the_environment_says_nothing_to_git(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit(repository, {"base.yaml": BASE})
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    commit(other, {"base.yaml": "rules: []\n"})
    marker = other / "ran"
    script(other / "program", marker)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_EXEC_PATH", str(other))
    monkeypatch.setenv("GIT_TRACE", str(other / "trace"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(other / "program"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(other / "program"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.pager=x'")
    assert read_revision("git:HEAD:base.yaml", 1000) == BASE.encode()
    assert not marker.exists()
    assert not (other / "trace").exists()


def test_a_git_of_this_folder_is_not_the_git(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, {"base.yaml": BASE})
    script(repository / "git", repository / "ran")
    for path in (f".:{os.environ['PATH']}", f":{os.environ['PATH']}"):
        monkeypatch.setenv("PATH", path)
        assert read_revision("git:HEAD:base.yaml", 1000) == BASE.encode()
    assert not (repository / "ran").exists()


def test_messages_are_recognised_in_any_language(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGUAGE", "de")
    commit(repository, {"base.yaml": BASE})
    (repository / "new.yaml").write_text(BASE)
    found = read_revision("git:HEAD:./new.yaml", 1000)
    assert isinstance(found, Diagnostic)
    assert "name one that moved" in (found.help or "")
