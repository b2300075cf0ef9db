"""What `check` shows: levels of the project, the spec and the command line, and suppressions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
mesh: {tensor: 4, one: 1}
axes: {kv: 64}
rules:
  - mlp -> tensor | tensor
  - embed -> one
arrays:
  mlp/kernel: bf16[kv mlp=128]
  mlp/out: bf16[mlp=128 embed=64]
"""
ALL = ["SHD107", "SHD203", "SHD214"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


def run(*arguments: str, verb: str = "check") -> Result:
    result = CliRunner().invoke(cli, [verb, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def levels(*arguments: str) -> dict[str, str]:
    """Return how loud each finding is that `check` shows."""
    findings = json.loads(run(*arguments, "--format", "json").stdout)["findings"]
    return {each["code"]: each["severity"] for each in findings}


def project(folder: Path, text: str, header: str = "[tool.shardspec.lints]") -> None:
    (folder / "pyproject.toml").write_text(f"{header}\n{text}\n", encoding="utf-8")


def test_all_of_it(folder: Path) -> None:
    assert sorted(levels()) == ALL


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--select", "SHD2"], ["SHD203", "SHD214"]),
        (["--select", "shd2"], ["SHD203", "SHD214"]),
        (["--select", "shd203,Size_One_Axis"], ["SHD107", "SHD203"]),
        (["--select", "SHD203,size-one-axis"], ["SHD107", "SHD203"]),
        (["--select", "SHD203", "--select", "SHD1"], ["SHD107", "SHD203"]),
        (["--ignore", "SHD2"], ["SHD107"]),
        (["--select", "SHD214", "--ignore", "SHD2"], ["SHD214"]),
        (["--select", "SHD2", "--ignore", "dead-rule"], ["SHD203"]),
    ],
)
def test_select_and_ignore(folder: Path, flags: list[str], shown: list[str]) -> None:
    assert sorted(levels(*flags)) == shown


def test_an_unknown_finding_on_the_command_line(folder: Path) -> None:
    result = run("--select", "dead-rul")
    assert result.exit_code == 2
    assert "did you mean `dead-rule`?" in result.stderr
    assert run("--ignore", "SHD8").exit_code == 2


def test_the_project_then_the_spec_then_the_command_line(folder: Path) -> None:
    project(folder, 'SHD2 = "allow"\ndead-rule = "warn"\nignore = ["SHD1"]')
    assert levels() == {"SHD214": "warning"}
    spec = folder / "spec.yaml"
    spec.write_text(SPEC + "lints: {SHD214: error, SHD107: error}\n", encoding="utf-8")
    assert levels() == {"SHD214": "error", "SHD107": "error"}
    assert levels("--ignore", "SHD1") == {"SHD214": "error"}
    assert levels("--select", "SHD2") == {"SHD214": "error", "SHD203": "warning"}


def test_the_nearest_project_counts_and_compile_hears_it(folder: Path) -> None:
    assert run("spec.yaml", verb="compile").exit_code == 1
    project(folder, 'dead-rule = "warn"')
    assert run("spec.yaml", verb="compile").exit_code == 0
    deep = folder / "deep"
    deep.mkdir()
    (deep / "pyproject.toml").write_text("[tool.other]\nshardspec = 1\n", encoding="utf-8")
    (deep / "spec.yaml").write_text(SPEC, encoding="utf-8")
    assert levels("deep/spec.yaml")["SHD214"] == "warning"
    project(deep, 'dead-rule = "allow"')
    assert "SHD214" not in levels("deep/spec.yaml")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('dead-rul = "warn"', "2:1", "no finding is called `dead-rul`"),
        ('SHD2 = "loud"', "2:1", "`SHD2` should be `allow`, `warn` or `error`, and is `loud`"),
        ("SHD2 = 3", "2:1", "`SHD2` should be `allow`, `warn` or `error`, and is `3`"),
        ('# SHD8\nignore = ["SHD8"]', "3:12", "no finding is called `SHD8`"),
        ('select = "SHD2"', "2:1", '`select` should be a list of findings, as in `["SHD3"]`'),
        ("pedantic = 1", "2:1", "`pedantic` should be `true` or `false`, and is `1`"),
        ("SHD2 = ", "2:8", "this is not TOML: invalid value"),
    ],
)
def test_faults_of_the_project_point_into_it(
    folder: Path, text: str, place: str, message: str
) -> None:
    project(folder, text)
    result = run("spec.yaml", "--format", "concise")
    assert result.exit_code == 1
    assert f"pyproject.toml:{place}: error" in result.stdout
    assert message in result.stdout
    assert "SHD214" in result.stdout, "the spec is checked all the same"


def test_other_forms_of_the_table(folder: Path) -> None:
    project(folder, 'lints = {SHD2 = "allow"}', header="[tool.shardspec]")
    assert sorted(levels()) == ["SHD107"]
    project(folder, 'lints.SHD1 = "allow"', header="[tool.shardspec]")
    assert sorted(levels()) == ["SHD203", "SHD214"]
    project(folder, "lints = 3", header="[tool.shardspec]")
    assert "SHD004" in levels()


def test_a_fault_of_reading_cannot_be_silenced(folder: Path) -> None:
    text = "# shardspec: ignore-file[SHD002]\n" + SPEC.replace("-> tensor |", "-> |")
    (folder / "spec.yaml").write_text(text + "lints: {syntax: allow}\n", encoding="utf-8")
    project(folder, 'SHD = "allow"')
    assert "SHD002" in levels("--ignore", "SHD0")


def test_suppressions_count_in_every_verb(folder: Path) -> None:
    text = SPEC.replace("| tensor", "| tensor  # shardspec: ignore[SHD214] the same, so what")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert sorted(levels()) == ["SHD107", "SHD203"]
    assert run("spec.yaml", verb="compile").exit_code == 0


def test_idle_suppressions_are_said_of_whole_checks_alone(folder: Path) -> None:
    text = SPEC.replace("kv mlp=128]", "kv mlp=128]  # shardspec: ignore[SHD301]")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert "SHD013" in levels()
    assert "SHD013" not in levels("--target", "default")
    assert "SHD013" not in levels("--set", "mesh.tensor=4")


def test_suppressions_in_what_a_spec_extends(folder: Path) -> None:
    base = "shardspec: 1\nmesh: {tensor: 4, rest: rest}  # shardspec: ignore[SHD104]\n"
    (folder / "base.yaml").write_text(base, encoding="utf-8")
    (folder / "spec.yaml").write_text("extends: ./base.yaml\nrules: [a -> tensor]\n")
    assert "SHD104" not in levels()
    assert "SHD013" not in levels(), "another spec may need it"


def test_a_manifest_beside_its_spec_is_not_called_skipped(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a/one.yaml").write_text(SPEC)
    (folder / "a/arrays.yaml").write_text('w: "f32[8]"\n')
    assert "`a/arrays.yaml` skipped: no spec" in run("a").stderr
    (folder / "a/one.yaml").write_text(f"{SPEC}manifest: ./arrays.yaml\n")
    assert "skipped" not in run("a").stderr


def test_folders(folder: Path) -> None:
    for name, text in {
        "a/one.yaml": SPEC,
        "a/two.yml": "mesh: {x: 2}\nrules: [a -> x]\n",
        "a/three.shard": "shardspec 1\n",
        "a/rules.yaml": "rules: [a -> x]\ngroups: []\n",
        "a/.hidden/four.yaml": SPEC,
        "a/venv/five.yaml": SPEC,
        "a/venv/pyvenv.cfg": "",
        "b/empty.txt": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    result = run("a", "a/one.yaml", "--format", "concise")
    assert "in 3 files" in result.stderr
    assert "`a/rules.yaml` skipped: no spec" in result.stderr
    places = [line.partition(":")[0] for line in result.stdout.splitlines()]
    assert places == sorted(places)
    assert "a/one.yaml" in places
    assert run("b").exit_code == 2
    assert run(".").exit_code == 1


def test_formats(folder: Path) -> None:
    for output_format in ("full", "concise", "json", "github", "sarif"):
        result = run("--format", output_format)
        assert result.exit_code == 1
        assert "SHD214" in result.stdout
    finding = json.loads(run("--format", "json", "--select", "SHD214").stdout)["findings"][0]
    assert finding["fix"]["sure"] is True
    assert finding["fix"]["edits"][0]["line"] == 5
