"""`shardspec import` for lists of paths: the proof, its exit codes, and nothing half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

ARRAYS = {
    "a/{0..3}/kernel": "f32[8, 16]",
    "a/{0..3}/scale": "f32[8]",
    "model.up.weight": "f32[8, 8]",
}
FILES = {
    "regex": ("rules.py", "R = [('kernel', P('data')), ('up', P(None, 'tp')), ('.*', P())]\n"),
    "keras": ("layout.py", "m = LayoutMap(d)\nm['a/.*/kernel'] = (None, 'tp')\n"),
    "haliax": ("axes.yaml", "embed: data\nmlp: [data, tp]\n"),
    "hf-tp-plan": ("plan.json", '{"tp_plan": {"model.up": "colwise"}}'),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays.json").write_text(json.dumps(ARRAYS), encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", *arguments])


@pytest.mark.parametrize("name", FILES)
def test_proof(here: Path, name: str) -> None:
    file, text = FILES[name]
    (here / file).write_text(text, encoding="utf-8")
    options = ["--match", "search"] if name in ("regex", "keras") else []
    mesh = ["--mesh", "data=4 tp=2", "--against", "arrays.json", "-o", "spec.yaml"]
    result = run(name, file, *options, *mesh)
    assert result.exit_code == 0, result.output
    assert "9 arrays of arrays.json on data=4 tp=2: the spec places every array as" in result.stderr
    assert f"# imported from {file}\n" in (here / "spec.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["regex", "keras", "hf-tp-plan"])
def test_a_check_does_not_fail_for_what_the_tool_leaves_whole(here: Path, name: str) -> None:
    file, text = FILES[name]
    (here / file).write_text(text, encoding="utf-8")
    options = ["--match", "search"] if name in ("regex", "keras") else []
    mesh = ["--mesh", "data=4 tp=2", "--against", "arrays.json", "-o", "spec.yaml"]
    assert run(name, file, *options, *mesh).exit_code == 0
    check = ["check", "spec.yaml", "--arrays", "arrays.json"]
    result = CliRunner().invoke(cli, [*check, "--ignore", "size-one-axis,unused-mesh-axis"])
    assert "error[" not in result.output
    assert result.exit_code == 0, result.output


def test_python_comes_from_standard_input_too(here: Path) -> None:
    text = FILES["regex"][1]
    asked = ["import", "regex", "-", "--match", "search"]
    result = CliRunner().invoke(cli, asked, input=text)
    assert result.exit_code == 0, result.output
    assert "- match: .*up.*  # from -:1" in result.stdout


def test_arrays_that_the_tool_refuses(here: Path) -> None:
    (here / "rules.py").write_text("R = [('kernel', P('data'))]\n", encoding="utf-8")
    arguments = ("--match", "search", "--strict", "--mesh", "data=4", "--against", "arrays.json")
    result = run("regex", "rules.py", *arguments)
    assert result.exit_code == 1
    assert "no regex matches (ValueError)" in result.stderr


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_written_of_a_file_that_cannot_be_read(here: Path, name: str) -> None:
    file, text = FILES[name]
    (here / file).write_text(text[: len(text) // 2] + "((", encoding="utf-8")
    result = run(name, file, "-o", "spec.yaml")
    assert result.exit_code == 2, result.output
    assert "nothing is written" in result.stderr
    assert not (here / "spec.yaml").exists()


def test_binary_files(here: Path) -> None:
    for name, (file, _) in FILES.items():
        (here / file).write_bytes(b"\x80\x04\x95\x00cos\nsystem\n\x00\xff")
        assert run(name, file, "-o", "spec.yaml").exit_code == 2
    assert not (here / "spec.yaml").exists()
