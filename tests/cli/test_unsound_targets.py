"""Where the mesh of a target cannot be solved, or a what-if is refused, nothing is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import shardspec
from shardspec.cli.main import cli

#: Writes spec.yaml: the target `big`, and lines to add.
Write = Callable[..., None]

_SOUND = "{hardware: 8 cpu, mesh: {data: rest, model: 2}}"
_SPEC = """shardspec: 1
targets:
  big: BIG
  small: {hardware: 8 cpu, mesh: {data: rest, model: 2}}
rules:
  - batch -> data
  - embed -> data | none
  - mlp -> model | none
arrays:
  mlp/wi: bf16[embed=1024 mlp=4096]
activations:
  hidden: batch embed
"""

#: Meshes that cannot be solved, each with the finding that says so.
_UNSOLVED = {
    "SHD105": "{hardware: tpu v4 4x4x4, mesh: {data: rest, model: submesh 3x2x1x1}}",
    "SHD102": "{hardware: 8 cpu, mesh: {data: 3, model: 2}}",
    "SHD103": "{hardware: 8 cpu, mesh: {data: rest, model: rest}}",
    "SHD104": "{mesh: {data: rest, model: 2}}",
    "SHD101": "{hardware: tpu v9 4x4, mesh: {data: rest, model: 2}}",
    "SHD002": "{hardware: 8 cpu, mesh: {data: 4 4, model: 2}}",
    "SHD211": "{hardware: 8 cpu, mesh: {data: eight, model: 2}}",
}

#: What-ifs that are refused, each with the finding that says so.
_REFUSED = {
    "mesh.model=3": "SHD102",
    "mesh.modle=4": "SHD003",
    "mesh.model=many": "SHD211",
    "mesh.model=submesh 3x2x1x1": "SHD105",
    "targets.big.hardware=9_cpu": "SHD002",
    "targets.big.hardware=tpu v9 4x4": "SHD101",
    "targets.huge.mesh.data=4": "SHD003",
    "axes.embde=64": "SHD003",
    "rules.0=batch -> -> data": "SHD002",
    "rules.9=batch -> data": "SHD003",
    "nonsense=1": "SHD003",
}

#: Every verb that shows a plan, a mesh or a figure of one target.
_SHOWS = [
    ["compile"],
    ["compile", "--format", "json"],
    ["compile", "-o", "-"],
    ["compile", "--select", "mlp/*"],
    ["mesh"],
    ["mesh", "--format", "json"],
    ["mesh", "--format", "svg"],
    ["explain", "mlp/wi"],
    ["explain", "mlp/*"],
    ["explain", "hidden"],
    ["explain", "axis:data"],
    ["explain", "axis:embed"],
    ["explain", "spec.yaml:7"],
    ["explain", "mlp/wi", "--porcelain"],
    ["explain", "mlp/wi", "--draw"],
    ["explain", "--why-not", "mlp/wi:0=model"],
    ["export", "regex"],
    ["export", "flax"],
]
_IDS = [" ".join(each) for each in _SHOWS]


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def written(big: str = _SOUND, more: str = "") -> None:
        Path("spec.yaml").write_text(_SPEC.replace("BIG", big) + more)

    return written


@pytest.mark.parametrize("verb", _SHOWS, ids=_IDS)
def test_every_verb_shows_a_sound_target(write: Write, verb: list[str]) -> None:
    write()
    result = _run(*verb)
    assert result.exit_code in (0, 1), result.output
    assert result.stdout


@pytest.mark.parametrize("code", _UNSOLVED)
@pytest.mark.parametrize("verb", _SHOWS, ids=_IDS)
def test_nothing_is_shown_of_a_mesh_without_a_solution(
    write: Write, verb: list[str], code: str
) -> None:
    write(_UNSOLVED[code])
    result = _run(*verb)
    other = _run(*verb, "-t", "small").stdout if verb[0] == "explain" else ""
    assert (result.stdout, result.exit_code) == (other, 1)
    assert f"error[{code}]" in result.stderr
    if other and "--porcelain" not in verb:
        assert "on target small; --target shows another of 2" in result.stderr


@pytest.mark.parametrize("code", _UNSOLVED)
def test_explain_shows_nothing_where_no_target_is_sound(write: Write, code: str) -> None:
    write(_UNSOLVED[code])
    Path("spec.yaml").write_text(Path("spec.yaml").read_text().replace("  small:", "  # small:"))
    result = _run("explain", "mlp/wi")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert f"error[{code}]" in result.stderr


@pytest.mark.parametrize("verb", _SHOWS, ids=_IDS)
def test_the_sound_target_beside_it_is_shown(write: Write, verb: list[str]) -> None:
    write()
    whole = _run(*verb, "-t", "small")
    write(_UNSOLVED["SHD105"])
    result = _run(*verb, "-t", "small")
    assert result.stdout == whole.stdout
    assert result.exit_code == whole.exit_code


@pytest.mark.parametrize("setting", _REFUSED)
@pytest.mark.parametrize("verb", _SHOWS, ids=_IDS)
def test_nothing_is_shown_of_a_refused_what_if(write: Write, verb: list[str], setting: str) -> None:
    write()
    result = _run(*verb, "--set", setting)
    assert (result.stdout, result.exit_code) == ("", 1)
    assert f"error[{_REFUSED[setting]}]" in result.stderr


@pytest.mark.parametrize("verb", _SHOWS, ids=_IDS)
@pytest.mark.parametrize(
    ("big", "flags", "lints"),
    [
        (_UNSOLVED["SHD105"], [], "{SHD: allow}"),
        (_UNSOLVED["SHD104"], [], "{unsolved-size: warn}"),
        (_SOUND, ["--set", "mesh.modle=4"], "{SHD0: allow}"),
    ],
)
def test_a_finding_that_is_silenced_shows_nothing_either(
    write: Write, verb: list[str], big: str, flags: list[str], lints: str
) -> None:
    write(big, f"lints: {lints}\n")
    result = _run(*verb, *flags)
    is_other = verb[0] == "explain" and not flags
    other = _run(*verb, "-t", "small").stdout if is_other else ""
    assert (result.stdout, result.exit_code) == (other, 1)
    codes = ("[SHD105]", "[SHD003]", "the mesh of target `big` does not work out")
    assert any(each in result.stderr for each in codes)


@pytest.mark.parametrize("lints", ["", "lints: {SHD: allow}\n"])
def test_no_lock_and_no_diff_either(write: Write, lints: str) -> None:
    write()
    Path("sound.yaml").write_text(Path("spec.yaml").read_text())
    write(_UNSOLVED["SHD105"], lints)
    assert _run("lock").exit_code == 1
    assert not Path("spec.lock").exists()
    for sides in (["sound.yaml", "spec.yaml"], ["spec.yaml", "sound.yaml"]):
        result = _run("diff", *sides)
        assert result.stdout == ""
        assert result.exit_code in (1, 2)


def test_a_comparison_needs_both_sides(write: Write) -> None:
    write()
    assert _run("mesh", "--compare", "--set", "mesh.model=3").stdout == ""
    write(_UNSOLVED["SHD102"])
    result = _run("mesh", "--compare", "--set", "targets.big.mesh.data=4")
    assert (result.stdout, result.exit_code) == ("", 1)


def test_the_list_of_targets_has_those_that_are_sound(write: Write) -> None:
    write(_UNSOLVED["SHD105"])
    result = _run("compile", "--list-targets")
    assert result.stdout.splitlines() == ["target small: 8 CPU devices   mesh data=4 model=2"]
    assert "error[SHD105]" in result.stderr
    assert result.exit_code == 1


def test_a_file_is_said_not_to_be_written(write: Write) -> None:
    write(_UNSOLVED["SHD105"])
    result = _run("compile", "-o", "plan.json")
    assert "plan.json is not written" in result.stderr
    assert not Path("plan.json").exists()


def test_findings_about_arrays_still_come_with_the_table(write: Write) -> None:
    write()
    result = _run("compile", "--set", "axes.embed=1000")
    assert "mlp/wi" in result.stdout
    assert "error[SHD302]" in result.stderr


@pytest.mark.parametrize("lints", ["", "lints: {SHD105: allow}\n"])
def test_the_python_api_raises(write: Write, lints: str) -> None:
    write(_UNSOLVED["SHD105"], lints)
    with pytest.raises(shardspec.ShardspecError):
        shardspec.load("spec.yaml").compile()
    with pytest.raises(shardspec.ShardspecError):
        shardspec.Resolver("spec.yaml", "big")


@pytest.mark.parametrize("verb", [*_SHOWS, ["check"]])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mesh: {data: 2}\n  rules: [a -> data]\n", "SHD002"),
        ("mesh: 5\n", "SHD004"),
        ("targets: {}{\n", "SHD002"),
        ("extends: nowhere\n", "SHD008"),
    ],
)
def test_no_target_because_of_a_fault_is_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str], text: str, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"shardspec: 1\n{text}axes: {{a: 4}}\narrays: {{mlp/wi: 'f32[a]'}}\n"
    Path("spec.yaml").write_text(text, encoding="utf-8")
    result = _run(*verb)
    assert "SHD106" not in result.output
    assert result.output.count(f"error[{code}]") == 1
    assert result.exit_code == 1


def test_a_spec_that_has_no_target_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text("shardspec: 1\nrules: [a -> b]\n", encoding="utf-8")
    result = _run("compile")
    assert "SHD106" in result.stderr
    assert result.exit_code == 2
