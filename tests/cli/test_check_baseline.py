"""`check --baseline` and `--write-baseline`: only what is new fails, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from tests.cli.test_check_levels import SPEC

FORMATS = ["full", "concise", "json", "github", "sarif"]
NEW = "  norm/scale: bf16[4096]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "a.yaml").write_text(SPEC)
    (tmp_path / "specs" / "b.yaml").write_text(SPEC)
    return tmp_path


def check(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def rewrite(folder: Path, old: str, new: str) -> None:
    file = folder / "specs" / "a.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def found(*arguments: str) -> list[tuple[str, str]]:
    document = json.loads(check(*arguments, "--format", "json").stdout)
    findings = document.get("findings", ())
    return [(each["code"], each["labels"][0]["file"]) for each in findings]


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_run_is_clean_and_one_more_is_shown(folder: Path, form: str) -> None:
    assert check("specs").exit_code == 1
    wrote = check("specs", "--write-baseline", "base.json")
    assert (wrote.exit_code, "wrote base.json" in wrote.output) == (0, True)
    clean = check("specs", "--baseline", "base.json", "--format", form)
    assert clean.exit_code == 0
    assert "6 findings of the baseline are not shown" in clean.output
    assert "SHD214" not in clean.output
    rewrite(folder, "arrays:\n", f"# moved\n\narrays:\n{NEW}")
    more = check("specs", "--baseline", "base.json", "--format", form)
    assert more.exit_code == 1
    assert "SHD205" in more.output
    assert "SHD214" not in more.output


def test_which_are_shown(folder: Path) -> None:
    check("specs", "--write-baseline", "base.json")
    assert found("specs", "--baseline", "base.json") == []
    rewrite(folder, "arrays:\n", f"arrays:\n{NEW}")
    assert found("specs", "--baseline", "base.json") == [("SHD205", "specs/a.yaml")]


def test_from_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("specs", "--write-baseline", "base.json")
    monkeypatch.chdir(folder / "specs")
    assert check("a.yaml", "--baseline", "../base.json").exit_code == 0
    assert check(str(folder / "specs"), "--baseline", str(folder / "base.json")).exit_code == 0
    written = json.loads((folder / "base.json").read_text())
    assert list(written["specs"]) == ["specs/a.yaml", "specs/b.yaml"]


def test_fixed_entries_are_told_of_and_removed(folder: Path) -> None:
    check("specs", "--write-baseline", "base.json")
    rewrite(folder, "tensor | tensor", "tensor")
    told = check("specs", "--baseline", "base.json")
    assert told.exit_code == 0
    assert "fixed: SHD214 in specs/a.yaml" in told.stdout
    assert "1 finding of the baseline fixed: remove with --write-baseline base.json" in told.stdout
    data = json.loads(check("specs", "--baseline", "base.json", "--format", "json").stdout)
    assert (data["checked"]["known"], data["checked"]["fixed"]) == (5, 1)
    # Another question knows nothing of what is fixed.
    assert "fixed" not in check("specs", "--baseline", "base.json", "--ignore", "SHD214").output
    before = (folder / "base.json").read_text()
    check("specs/a.yaml", "--write-baseline", "base.json")
    after = (folder / "base.json").read_text()
    assert len(after) < len(before)
    assert "fixed" not in check("specs", "--baseline", "base.json").stdout
    (folder / "specs" / "b.yaml").unlink()
    check("specs", "--write-baseline", "base.json")
    assert "b.yaml" not in (folder / "base.json").read_text()


def test_a_fault_stays(folder: Path) -> None:
    rewrite(folder, "shardspec: 1\n", "shardspec: 1\npolcy: 3\n")
    wrote = check("specs", "--write-baseline", "base.json")
    assert wrote.exit_code == 1
    assert "SHD003" in wrote.stdout
    assert "SHD003" not in (folder / "base.json").read_text()
    assert found("specs", "--baseline", "base.json") == [("SHD003", "specs/a.yaml")]


def test_nothing_is_written_where_a_file_cannot_be_read(folder: Path) -> None:
    wrote = check("specs/a.yaml", "nope.yaml", "--write-baseline", "base.json")
    assert wrote.exit_code == 2
    assert "base.json is not written" in wrote.stderr
    assert not (folder / "base.json").exists()


def test_of_the_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text('[tool.shardspec]\nbaseline = "base.json"\n')
    assert check("specs").exit_code == 2
    assert check("specs", "--write-baseline", "base.json").exit_code == 0
    monkeypatch.chdir(folder / "specs")
    assert check("a.yaml").exit_code == 0
    (folder / "pyproject.toml").write_text('[tool.shardspec]\nbaseline = "../base.json"\n')
    assert check("a.yaml").exit_code == 2


@pytest.mark.parametrize("flag", ["--baseline", "--write-baseline"])
@pytest.mark.parametrize("text", ["{}", "shardspec: 1\n", "\0", "[", '{"schema": "x"}'])
def test_what_is_no_baseline_is_neither_read_nor_written_over(
    folder: Path, flag: str, text: str
) -> None:
    (folder / "base.json").write_text(text)
    result = check("specs", flag, "base.json")
    assert result.exit_code == 2
    assert "base.json" in result.stderr
    assert (folder / "base.json").read_text() == text


def test_usage(folder: Path) -> None:
    assert check("specs", "--baseline", "nope.json").exit_code == 2
    assert check("specs", "--write-baseline", "-").exit_code == 2
    assert check("specs", "--diff", "--write-baseline", "base.json").exit_code == 2
    assert check("specs", "--write-baseline", "nope/base.json").exit_code == 2
    assert check("specs", "--fix", "--write-baseline", "base.json").exit_code == 0
    assert check("specs", "--baseline", "base.json").exit_code == 0


def test_other_verbs_do_not_write_over_it(folder: Path) -> None:
    check("specs", "--write-baseline", "base.json")
    text = (folder / "base.json").read_text()
    made = CliRunner().invoke(cli, ["schema", "-o", "base.json"])
    assert made.exit_code == 2
    assert "base.json is a baseline, so it is not overwritten" in made.stderr
    assert (folder / "base.json").read_text() == text
