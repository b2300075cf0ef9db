"""`cost --write-step`: lines of `step:` in place, with all else as it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec import pipeline
from shardspec.cli.main import cli

GUIDE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")


def block(head: str) -> str:
    """Return the file of the guide to `cost` that begins with a line."""
    return GUIDE.partition(f"{head}\n")[2].partition("```")[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    spec = block("# stated.yaml").partition("step:\n")[0].replace("v5e-64:", "pod:")
    (tmp_path / "spec.yaml").write_text(
        f"# why it is so\n{spec}step: {{remat: full}}  # old\n# end\n"
    )
    (tmp_path / "written_step.py").write_text(block("# mlp_step.py"))
    yield tmp_path
    sys.modules.pop("written_step", None)


def cost(*arguments: str) -> Result:
    asked = ["cost", "spec.yaml", "-t", "pod", *arguments]
    result = CliRunner().invoke(cli, asked)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_lines_take_the_place_of_the_step_and_comments_stay(folder: Path) -> None:
    windows = (folder / "spec.yaml").read_bytes().replace(b"\n", b"\r\n")
    (folder / "spec.yaml").write_bytes(windows)
    kept = cost("--step", "written_step:step", "--write-step")
    assert kept.exit_code == 2
    assert "--replace writes over it" in kept.output
    assert (folder / "spec.yaml").read_bytes() == windows
    found = cost("--step", "written_step:step", "--write-step", "--replace")
    assert found.exit_code == 0, found.output
    written = (folder / "spec.yaml").read_bytes()
    assert written.count(b"\n") == written.count(b"\r\n")
    text = (folder / "spec.yaml").read_text()
    assert text.startswith("# why it is so\n")
    assert text.endswith("# end\n")
    assert text.count("\nstep:\n") == 1
    assert "# old" not in text
    spec, faults = pipeline.load_path(str(folder / "spec.yaml"))
    assert faults == ()
    assert spec is not None
    assert spec.step is not None
    assert spec.step.program
    rows = [line.split() for line in found.stdout.splitlines()]
    assert ["traced", "written"] in rows
    assert {"FLOPs", "fsdp", "tensor", "memory"} <= {row[0] for row in rows if row}
    again = cost("--step", "written_step:step", "--write-step", "--diff")
    assert "@@" not in again.stdout


def test_diff_writes_nothing(folder: Path) -> None:
    before = (folder / "spec.yaml").read_text()
    found = cost("--step", "written_step:step", "--write-step", "--diff")
    assert found.exit_code == 0
    assert "+step:" in found.stdout
    assert (folder / "spec.yaml").read_text() == before


def test_the_dsl_has_a_block(folder: Path) -> None:
    from shardspec.diagnostics import SourceFile
    from shardspec.language.formatting import formatted

    text, _ = formatted(SourceFile("spec.yaml", (folder / "spec.yaml").read_text()), "dsl")
    assert text is not None
    (folder / "spec.shard").write_text(text)
    asked = ["cost", "spec.shard", "-t", "pod", "--step", "written_step:step", "--write-step"]
    asked.append("--replace")
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    assert (folder / "spec.shard").read_text().count("step {") == 1
    spec, faults = pipeline.load_path(str(folder / "spec.shard"))
    assert faults == ()
    assert spec is not None
    assert spec.step is not None
    assert spec.step.program


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--write-step",), "name its code"),
        (("--diff",), "say --write-step as well"),
        (
            ("--write-step", "--step", "written_step:step", "-o", "x.json"),
            "leave --phase and -o out",
        ),
    ],
)
def test_what_is_missing_is_said(arguments: tuple[str, ...], said: str, folder: Path) -> None:
    before = (folder / "spec.yaml").read_text()
    found = cost(*arguments)
    assert found.exit_code == 2
    assert said in found.output
    assert (folder / "spec.yaml").read_text() == before


def test_lines_that_nothing_can_hold_to_the_code_are_not_written(folder: Path) -> None:
    spec = folder / "spec.yaml"
    text = re.sub(r"(?m)^(arrays|manifest):.*\n(  .*\n)*", "", spec.read_text())
    spec.write_text(text)
    found = cost("--step", "written_step:step", "--write-step", "--replace")
    assert found.exit_code == 2
    assert "lines are held to the code by arrays, and there are none" in found.stderr
    assert spec.read_text() == text


def test_lines_that_are_off_are_not_written_and_q_hides_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardspec.ir.step import Place
    from shardspec.jax_backend.step_lines import writing

    whole = writing.written_step

    def short(*args: Any) -> writing.WrittenStep:
        found = whole(*args)
        fields = {**found.fields, "program": found.fields["program"][:1]}
        return writing.WrittenStep(fields, ((Place("a.py", 1), "a kernel"),))

    monkeypatch.setattr(writing, "written_step", short)
    before = (folder / "spec.yaml").read_text()
    found = cost("--step", "written_step:step", "--write-step", "--replace", "-q")
    assert found.exit_code == 1
    assert "spec.yaml is left as it is: the lines are off by" in found.stderr
    assert "not written: a kernel, at a.py:1" in found.stderr
    assert (folder / "spec.yaml").read_text() == before


def test_lines_that_the_reader_refuses_are_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardspec.jax_backend.step_lines import writing

    bad = writing.WrittenStep({"program": ["a[_ as] -> b"]}, ())
    monkeypatch.setattr(writing, "written_step", lambda *_: bad)
    before = (folder / "spec.yaml").read_text()
    found = cost("--step", "written_step:step", "--write-step", "--replace", "-q")
    assert found.exit_code == 1
    assert "spec.yaml is left as it is: the lines cannot be read" in found.stderr
    assert (folder / "spec.yaml").read_text() == before
