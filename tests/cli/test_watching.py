"""`check --watch`: what was read is looked at again once it has changed, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli import streams
from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
mesh: {data: 2}
rules: [embed -> data]
manifest: ./arrays.yaml
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "arrays.yaml").write_text("a: f32[embed=8]\n")
    return tmp_path


def test_it_checks_again_after_each_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = iter(
        (
            lambda: (folder / "spec.yaml").write_text(SPEC.replace("> data", "> dtaa")),
            lambda: (folder / "spec.yaml").unlink(),
            lambda: (folder / "spec.yaml").write_text(SPEC),
            lambda: (folder / "arrays.yaml").write_text("a: f32[embed=8]\nb: f32[embed=9]\n"),
        )
    )

    def edit(seconds: float) -> None:
        try:
            next(edits)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(streams.time, "sleep", edit)
    result = CliRunner().invoke(cli, ["check", "spec.yaml", "--watch", "--format", "concise"])
    assert result.exit_code == 130
    said = [line for line in result.output.splitlines() if not line.startswith("No findings")]
    assert [line for line in said if line.startswith("watching")] == [
        "watching 2 files; Ctrl-C ends it",
        "watching 2 files; Ctrl-C ends it",
        "watching 1 file; Ctrl-C ends it",
        "watching 2 files; Ctrl-C ends it",
        "watching 2 files; Ctrl-C ends it",
    ]
    assert "SHD201" in result.output
    assert "SHD001" in result.output
    assert "SHD301" in result.output, "the manifest is read again as well"


def test_a_file_that_could_not_be_read_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that is gone, and comes back, ends the wait."""
    arrays = folder / "arrays.yaml"
    edits = iter((arrays.unlink, lambda: arrays.write_text("a: f32[embed=9]\n")))
    waits = 0

    def edit(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits > 9:
            raise KeyboardInterrupt
        next(edits, lambda: None)()

    monkeypatch.setattr(streams.time, "sleep", edit)
    result = CliRunner().invoke(cli, ["check", "spec.yaml", "--watch", "--format", "concise"])
    assert "SHD008" in result.output
    assert "SHD301" in result.output, "it is read again"


def test_nothing_to_look_at_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    result = CliRunner().invoke(cli, ["check", "--watch"])
    assert result.exit_code == 2
    assert "no spec found" in result.output


def test_both_sides_of_a_diff_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "old.yaml").write_text(SPEC)
    edits = iter(((folder / "old.yaml").unlink, lambda: (folder / "old.yaml").write_text(SPEC)))
    monkeypatch.setattr(streams.time, "sleep", lambda seconds: next(edits, stop)())
    asked = ["report", "--diff", "old.yaml", "spec.yaml", "--watch", "-o", "page.html"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 130
    assert result.output.count("page.html: ") == 2
    assert "there is no file `old.yaml`" in result.output


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("more", [["--step", "train:step"], ["-"]])
def test_what_cannot_be_read_again_is_refused(folder: Path, more: list[str]) -> None:
    result = CliRunner().invoke(cli, ["check", "--watch", *more], input=SPEC)
    assert result.exit_code == 2
    assert "--watch" in result.stderr


def test_a_file_that_does_not_change_ends_no_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(folder / "spec.yaml")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (folder / "spec.yaml").write_text(SPEC + "doc: more\n")

    monkeypatch.setattr(streams.time, "sleep", sleep)
    streams.wait_for_change([file])
    assert len(waits) == 3
