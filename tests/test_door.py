"""One door: the command line, `load`, `loads`, `Resolver` and `Spec.findings` say the same."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner

import shardspec
from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic
from tests.test_cases import CASES, command_of, files_of

UNEVEN = """\
shardspec: 1
mesh: {tensor: 8}
rules: [mlp -> tensor]
arrays: {wi: 'f32[mlp=63]'}
"""
NAMED = "params: {wi: mlp}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> str:
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    return "spec.yaml"


def check(*arguments: str) -> tuple[int, list[tuple[str, str, str]]]:
    result = CliRunner().invoke(cli, ["check", *arguments, "--format", "json"])
    found = json.loads(result.stdout)["findings"]
    return result.exit_code, [(f["code"], f["severity"], f["message"]) for f in found]


def said(diagnostics: tuple[Diagnostic, ...]) -> list[tuple[str, str, str]]:
    return [(each.code.id, str(each.severity), each.message) for each in diagnostics]


def ways_in(path: str, **asked: dict[str, str]) -> None:
    """Load, compile and resolve a spec; raises what any of them raises."""
    text = Path(path).read_text(encoding="utf-8")
    for spec in (shardspec.load(path, **asked), shardspec.loads(text, path, **asked)):
        spec.compile()
        shardspec.Resolver(spec, target="default")
    shardspec.Resolver(path, target="default", **asked)


def loaded(path: str) -> shardspec.Spec | shardspec.ShardspecError:
    try:
        return shardspec.load(path)
    except shardspec.ShardspecError as error:
        return error


def test_a_warning_of_the_spec_is_one_everywhere(folder: Path) -> None:
    path = write(folder, UNEVEN + "lints: {indivisible: warn}\n")
    exit_code, found = check(path)
    assert exit_code == 0
    assert [row[:2] for row in found] == [("SHD301", "warning")]
    ways_in(path)
    assert said(shardspec.load(path).findings()) == found


def test_a_warning_of_the_project_is_one_everywhere(folder: Path) -> None:
    path = write(folder, UNEVEN)
    with pytest.raises(shardspec.ShardspecError, match="SHD301"):
        shardspec.load(path).compile()
    project = '[tool.shardspec.lints]\nindivisible = "warn"\n'
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    exit_code, found = check(path)
    assert exit_code == 0
    ways_in(path)
    assert said(shardspec.load(path).findings()) == found


def test_the_project_is_that_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, UNEVEN)
    project = '[tool.shardspec.lints]\nindivisible = "warn"\n'
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.shardspec.lints]\n", encoding="utf-8")
    monkeypatch.chdir(inner)
    shardspec.load(f"../{path}").compile()
    (inner / path).write_text(UNEVEN, encoding="utf-8")
    with pytest.raises(shardspec.ShardspecError, match="SHD301"):
        shardspec.load(path).compile()


def test_a_broken_project_is_told_everywhere(folder: Path) -> None:
    path = write(folder, UNEVEN.replace("63", "64"))
    (folder / "pyproject.toml").write_text("[tool.shardspec.lints]\nindivisble = 'warn'\n")
    assert check(path)[0] == 1
    with pytest.raises(shardspec.ShardspecError, match="indivisible"):
        shardspec.load(path)
    with pytest.raises(shardspec.ShardspecError, match="indivisible"):
        shardspec.Resolver(path)


def test_the_callers_levels_beat_project_and_spec(folder: Path) -> None:
    path = write(folder, UNEVEN + "lints: {indivisible: error}\n")
    with pytest.raises(shardspec.ShardspecError, match="SHD301"):
        shardspec.load(path).compile()
    ways_in(path, levels={"indivisible": "warn"})
    ways_in(path, levels={"SHD301": "allow"})
    found = shardspec.load(path, levels={"SHD3": "allow", "indivisible": "warn"}).findings()
    assert [row[:2] for row in said(found)] == [("SHD301", "warning")]


def test_a_resolvers_levels_beat_those_of_load(folder: Path) -> None:
    spec = shardspec.load(write(folder, UNEVEN + NAMED), levels={"SHD4": "allow"})
    tree = {"wi": jax.ShapeDtypeStruct((63,), "float32")}
    with pytest.raises(shardspec.ShardspecError, match="SHD301"):
        shardspec.Resolver(spec, target="default").shardings(tree)
    resolver = shardspec.Resolver(spec, target="default", levels={"indivisible": "warn"})
    assert resolver.shardings(tree)["wi"].is_fully_replicated


@pytest.mark.parametrize(
    ("levels", "hint"),
    [({"indivisble": "warn"}, "did you mean `indivisible`"), ({"SHD301": "loud"}, "not `loud`")],
)
def test_levels_that_are_none(levels: dict[str, str], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        shardspec.loads(UNEVEN, levels=levels)


def test_check_tells_that_code_does_not_know_of_ignore(folder: Path) -> None:
    path = write(folder, UNEVEN)
    result = CliRunner().invoke(cli, ["check", path, "--ignore", "SHD3"])
    assert result.exit_code == 0
    assert "1 error not shown under --ignore" in result.stderr
    assert "`Resolver` do not know" in result.stderr
    quiet = CliRunner().invoke(cli, ["check", path, "--ignore", "SHD2"])
    assert quiet.stderr == ""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_is_the_same_in_python(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = path.read_text(encoding="utf-8")
    for name, body in files_of(case).items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = command_of(case).split()
    name = next((n for n in files_of(case) if n.startswith("spec.")), None)
    if name is None or any(word.startswith("-") for word in words[2:]):
        pytest.skip("a case of the command line alone")
    exit_code, found = check(name)
    spec = loaded(name)
    assert (exit_code == 1) >= isinstance(spec, shardspec.ShardspecError)
    if isinstance(spec, shardspec.ShardspecError):
        assert {row[0] for row in said(spec.diagnostics)} <= {row[0] for row in found}
        return
    assert said(spec.findings()) == found
    if exit_code == 0:
        for target in spec.targets:
            spec.compile(target=target)


@pytest.mark.parametrize("path", ["a/" * 3000, "shardspec: 1\nmesh: {data: 2}\n" + "/#" * 3000])
def test_what_is_too_long_for_a_path_is_no_file(path: str) -> None:
    """As a text is that somebody hands to `load`."""
    with pytest.raises(shardspec.ShardspecError) as raised:
        shardspec.load(path)
    assert [each.code.id for each in raised.value.diagnostics] == ["SHD001"]
