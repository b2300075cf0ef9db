"""`shardspec report`: where the page goes, what it is about, and what stops it."""

from __future__ import annotations

import importlib.util
import os
import pty
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli import streams
from shardspec.cli.main import cli
from tests.cli.test_cost import SPEC, STEP
from tests.report.test_page import Read

BAD = SPEC.replace("mlp -> tensor", "mlp -> tenosr")
STATED = SPEC.replace("state:", "axes: {batch: 128, length: 128}\nstate:")
PHASES = """\
mesh: {data: 2, model: 4}
rules: [mlp -> model]
arrays: {wi: 'f32[_=8 mlp=8]'}
phases: {decode: {targets: {small: {mesh: {model: 2}}}}}
"""
SEARCHED = """\
hardware: tpu v5e 2x2
mesh: {data: 4}
axes: {batch: 8, length: 8, embed: 64, mlp: 64}
rules: [batch -> data, embed -> data]
activations: {x: batch length embed, y: batch length mlp}
arrays: {w: 'bf16[embed mlp]'}
step: {program: ["x, w -> y"]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "train.py").write_text(STEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments], prog_name="shardspec")


def text_of(file: str = "report.html") -> str:
    return Read(Path(file).read_text(encoding="utf-8")).text


def test_it_writes_one_file_and_says_so() -> None:
    result = run("spec.yaml", "-o", "report.html")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("report.html: ")
    assert "4 arrays on 2 targets" in text_of()
    assert sorted(os.listdir()) == ["report.html", "spec.yaml", "train.py"]


def test_without_a_file_it_goes_to_a_pipe_but_not_to_a_terminal() -> None:
    result = run("spec.yaml")
    assert result.stdout.startswith("<!doctype html>")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shardspec", "report", "spec.yaml"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        command, stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert found.returncode == 2
    assert "a page is for a browser, not for a terminal" in found.stderr
    assert "`-o report.html` writes it, `--open` shows" in found.stderr


def test_targets_are_chosen() -> None:
    assert run("spec.yaml", "-t", "big", "-o", "report.html").exit_code == 0
    assert "4 arrays on 1 target" in text_of()
    assert "TPU v5p 8x8x8" in text_of()
    assert "TPU v5e" not in text_of()
    result = run("spec.yaml", "-t", "bgi", "-o", "other.html")
    assert result.exit_code == 2
    assert "no target is called `bgi`" in result.stderr
    assert "did you mean `big`?" in result.stderr
    assert not Path("other.html").exists()


def test_phases_are_targets_of_their_own() -> None:
    Path("phases.yaml").write_text(PHASES, encoding="utf-8")
    assert run("phases.yaml", "-o", "report.html").exit_code == 0
    assert "decode@small" in text_of()
    assert run("phases.yaml", "--phase", "decode", "-o", "one.html").exit_code == 0
    assert "1 array on 1 target" in text_of("one.html")


def test_a_spec_with_errors_has_a_page_and_fails() -> None:
    Path("spec.yaml").write_text(BAD, encoding="utf-8")
    result = run("spec.yaml", "-o", "report.html")
    assert result.exit_code == 1
    assert "did you mean `tensor`?" in text_of()
    assert run("spec.yaml", "-o", "report.html", "--ignore", "SHD201").exit_code == 0
    assert "did you mean `tensor`?" not in text_of()


def test_a_mesh_that_does_not_work_out_is_a_finding() -> None:
    Path("spec.yaml").write_text(SPEC.replace("fsdp: 8", "fsdp: 7"), encoding="utf-8")
    result = run("spec.yaml", "-o", "report.html")
    assert result.exit_code == 1
    assert "4 arrays on 1 target" in text_of()
    assert run("spec.yaml", "-t", "pod", "-o", "report.html").exit_code == 1
    assert "No target has a mesh that works out" in text_of()


def test_a_step_of_code_is_traced_for_every_target() -> None:
    result = run("spec.yaml", "--step", "train:step", "-t", "pod", "-o", "report.html")
    assert result.exit_code == 0, result.stderr
    assert "train:step: importing it, which runs its code" in result.stderr
    assert "By rule of the spec" in text_of()
    assert "embed -> fsdp spec.yaml:8" in text_of()
    assert "train.py:" in text_of()


def test_a_saved_cost_serves_its_target_and_says_its_day() -> None:
    saved = CliRunner().invoke(
        cli, ["cost", "spec.yaml", "--step", "train:step", "-t", "pod", "-o", "cost.json", "-q"]
    )
    assert saved.exit_code == 0, saved.stderr
    assert run("spec.yaml", "--cost", "cost.json", "-o", "report.html").exit_code == 0
    found = text_of()
    assert "from cost.json (20" in found
    assert "STALE" not in found
    assert found.count("By rule of the spec") == 1, "the other target has none"
    Path("spec.yaml").write_text(SPEC.replace("moments: 2", "moments: 1"), encoding="utf-8")
    assert run("spec.yaml", "--cost", "cost.json", "-o", "report.html").exit_code == 0
    assert "which is STALE: `spec.yaml` changed" in text_of()


def test_two_specs_are_before_and_after() -> None:
    Path("new.yaml").write_text(SPEC.replace("embed -> fsdp", "embed -> none"), encoding="utf-8")
    result = run("--diff", "spec.yaml", "new.yaml", "-o", "report.html")
    assert result.exit_code == 0, result.stderr
    found = text_of()
    assert "spec.yaml -> new.yaml" in found
    assert "embed: fsdp -> none, by new.yaml:8 (embed -> none); was spec.yaml:8" in found
    printed = CliRunner().invoke(cli, ["diff", "spec.yaml", "new.yaml"]).stdout
    change = next(line for line in printed.splitlines() if "per device" in line)
    assert change.split("per device")[1].strip() in found
    assert run("--diff", "spec.yaml", "spec.yaml", "-o", "report.html").exit_code == 0
    assert "spec.yaml places every array as spec.yaml." in text_of()


def test_names_of_two_specs_are_text() -> None:
    """What moved is named by paths, rules and targets of strangers, too."""
    nasty = SPEC.replace("layers_{0..1}/wi", '"<img src=x onerror=alert(1)>/wi"')
    nasty = nasty.replace("big:", '"<script>big</script>":')
    Path("old.yaml").write_text(nasty, encoding="utf-8")
    Path("new.yaml").write_text(nasty.replace("embed -> fsdp", "embed -> none"), encoding="utf-8")
    assert run("--diff", "old.yaml", "new.yaml", "-o", "report.html").exit_code == 0
    read = Read(Path("report.html").read_text(encoding="utf-8"))
    assert "<img src=x onerror=alert(1)>/wi" in read.text
    assert "<script>big</script>" in read.text
    assert [tag for tag, _ in read.tags if tag in ("img", "script")] == ["script"] * 2
    assert not [name for _, found in read.tags for name in found if name.startswith("on")]


@pytest.mark.parametrize(
    ("arguments", "said", "help"),
    [
        (["--diff", "a.yaml", "b.lock"], "b.lock is a lock", "name the spec"),
        (["spec.yaml", "--diff", "a", "b"], "--diff names both specs", "take spec.yaml out"),
        (["spec.yaml", "-o", "-", "--open"], "`-o -` names none", "-o report.html --open"),
        (["spec.yaml", "-o", "none/x.html"], "no such file or directory", "a file that can"),
    ],
)
def test_what_does_not_work_says_what_does(arguments: list[str], said: str, help: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert help in result.stderr


def test_without_jinja_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "jinja2" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    result = run("spec.yaml", "-o", "report.html")
    assert result.exit_code == 2
    assert "`shardspec report` needs jinja2" in result.stderr
    assert "pip install 'shardspec[report]'" in result.stderr
    assert not Path("report.html").exists()


def test_open_opens_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or len(opened) < 2)
    assert run("spec.yaml", "-o", "report.html", "--open").exit_code == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = run("spec.yaml", "--open")
    assert result.exit_code == 0
    assert opened[1].startswith((tmp_path / "shardspec-").as_uri())
    assert "no browser was found: open" in result.stderr


def test_a_saved_search_is_drawn(folder: Path) -> None:
    (folder / "small.yaml").write_text(SEARCHED, encoding="utf-8")
    saved = CliRunner().invoke(cli, ["search", "small.yaml", "-q", "-o", "found.json"])
    assert saved.exit_code == 0, saved.stderr
    assert run("small.yaml", "--search", "found.json", "-o", "report.html").exit_code == 0
    assert "What a search found" in text_of()
    assert "Pareto front" in text_of()
    refused = run("small.yaml", "--search", "small.yaml", "-o", "other.html")
    assert refused.exit_code == 2
    assert "shardspec search SPEC -o FILE" in refused.stderr


def test_a_title_has_no_folders(folder: Path) -> None:
    old, new = (str(folder / name) for name in ("old.yaml", "spec.yaml"))
    Path(old).write_text(SPEC.replace("mlp -> tensor", "mlp -> none"), encoding="utf-8")
    assert run("--diff", old, new, "-o", "report.html").exit_code == 0
    text = Path("report.html").read_text(encoding="utf-8")
    assert "<h1>old.yaml -&gt; spec.yaml</h1>" in text
    assert "<title>old.yaml -&gt; spec.yaml</title>" in text


# watching


def test_it_writes_the_page_again_after_each_save_and_says_what_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    edits = iter((BAD, "targets: [", SPEC))

    def edit(seconds: float) -> None:
        found.append(text_of())
        text = next(edits, None)
        if text is None:
            raise KeyboardInterrupt
        (folder / "spec.yaml").write_text(text, encoding="utf-8")

    monkeypatch.setattr(streams.time, "sleep", edit)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    result = run("spec.yaml", "--watch", "--open", "-o", "report.html")
    assert result.exit_code == 130
    assert ["SHD201" in text for text in found] == [False, True, True, False]
    assert result.stderr.count("error[SHD201]") == 1
    assert "error[SHD0" in result.stderr, "a spec that is none leaves the page as it was"
    assert result.stderr.count("watching 1 file; Ctrl-C ends it") == 4
    assert len(opened) == 1, "the page shows itself anew; no other window opens"


@pytest.mark.parametrize(
    "more", [["spec.yaml", "--step", "train:step", "-o", "a.html"], ["-", "-o", "a.html"]]
)
def test_code_and_stdin_are_not_watched(more: list[str]) -> None:
    result = run("--watch", *more)
    assert result.exit_code == 2
    assert "--watch" in result.stderr
    assert not Path("a.html").exists()
