"""`check` claims no check where there was nothing to check: in every format, with exit 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

_RULES = "rules: [embed -> fsdp]\n"
_MESH = "mesh: {fsdp: 8}\n"
_ARRAYS = "arrays: {w: 'bf16[embed=64]'}\n"
_ACTIVATIONS = "axes: {embed: 64}\nactivations: {x: embed, y: embed _}\n"


def _check(folder: Path, text: str, *flags: str) -> Result:
    (folder / "s.yaml").write_text(f"shardspec: 1\n{text}", encoding="utf-8")
    return CliRunner().invoke(cli, ["check", str(folder / "s.yaml"), *flags])


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (_RULES + _MESH + _ARRAYS, "No findings in 1 file (1 array, 1 target)."),
        (
            _RULES + _MESH + _ACTIVATIONS,
            "No findings in 1 file (0 arrays, 2 activations, 1 target).",
        ),
        (
            _RULES,
            "No findings in the text of 1 file (0 arrays, 0 targets); nothing else was checked:"
            " `arrays:`, `manifest:` or --arrays says what to check.",
        ),
        (
            f"{_RULES}{_MESH}lints: {{nothing-checked: allow}}\n",
            "No findings in the text of 1 file (0 arrays, 1 target); nothing else was checked:"
            " `arrays:`, `manifest:` or --arrays says what to check.",
        ),
        (
            _RULES + _MESH,
            "Found 1 warning in 1 file (0 arrays, 1 target).   Details: shardspec explain SHD020",
        ),
    ],
)
def test_the_last_line_claims_what_was_checked(tmp_path: Path, text: str, last: str) -> None:
    result = _check(tmp_path, text)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == last


def test_it_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    result = _check(tmp_path, "rules: [embed -> fdsp]\n" + _MESH)
    assert "SHD201" in result.stdout
    assert "SHD020" not in result.stdout


def test_its_ways_out_work(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"w": {"shape": [64], "dtype": "bf16", "axes": ["embed"]}}')
    for flags in (["--arrays", str(tmp_path / "m.json")], ["--ignore", "SHD020"]):
        result = _check(tmp_path, _RULES + _MESH, *flags)
        assert "SHD020" not in result.stdout
        assert result.exit_code == 0
    assert _check(tmp_path, _RULES + _MESH + _ARRAYS).stdout.startswith("No findings in 1 file")


def test_a_comment_silences_it_and_is_used(tmp_path: Path) -> None:
    mesh = "mesh: {fsdp: 8}  # shardspec: ignore[SHD020]\n"
    result = _check(tmp_path, _RULES + mesh)
    assert result.stdout.startswith("No findings in the text of 1 file")


@pytest.mark.parametrize("flags", [(), ("--pedantic",)])
def test_other_formats_say_so(tmp_path: Path, flags: tuple[str, ...]) -> None:
    found = json.loads(_check(tmp_path, _RULES + _MESH, "--format", "json", *flags).stdout)
    assert found["checked"] == {"files": 1, "arrays": 0, "activations": 0, "targets": 1}
    assert [each["code"] for each in found["findings"]] == ["SHD020"]
    (run,) = json.loads(_check(tmp_path, _RULES + _MESH, "--format", "sarif", *flags).stdout)[
        "runs"
    ]
    assert run["properties"] == {"files": 1, "arrays": 0, "activations": 0, "targets": 1}
    assert [each["ruleId"] for each in run["results"]] == ["SHD020"]
    assert "::warning" in _check(tmp_path, _RULES + _MESH, "--format", "github").stdout


def test_data_on_a_preset_says_how_much_was_checked(tmp_path: Path) -> None:
    found = json.loads(_check(tmp_path, _RULES, "--format", "json").stdout)
    assert found["findings"] == []
    assert found["checked"]["arrays"] == found["checked"]["targets"] == 0
    assert "nothing else was checked" in _check(tmp_path, _RULES, "--format", "github").stderr


def test_of_several_files_those_without_arrays_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"shardspec: 1\n{_RULES}{_MESH}{_ARRAYS}")
    (tmp_path / "b.yaml").write_text(f"shardspec: 1\n{_RULES}")
    result = CliRunner().invoke(cli, ["check", str(tmp_path)])
    assert result.stdout == (
        "No findings in 2 files (1 array, 1 target); 1 of them lists no arrays: only the text was"
        " checked.\n"
    )


@pytest.mark.parametrize(
    "verb", ["compile", "cost", "mesh", "report -o -", "diff none.yaml", "cost --format json"]
)
def test_no_arrays_neither_fit_nor_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hardware = "hardware: tpu v5e 2x4\n"
    Path("none.yaml").write_text(f"shardspec: 1\n{hardware}{_MESH}{_RULES}axes: {{embed: 64}}\n")
    name, *more = verb.split()
    result = CliRunner().invoke(cli, [name, "none.yaml", *more])
    assert result.exit_code == 0
    for claim in (", fits", '"fits": true', "nothing moves", "100 %"):
        assert claim not in result.stdout


_DROPPED = [
    "state: {optimizer: zero9}\n",
    "step: {pipeline: 1f1b, program: ['x[embed], \"w\" -> y']}\n",
]


@pytest.mark.parametrize("dropped", _DROPPED)
@pytest.mark.parametrize("verb", ["compile", "report -o -"])
def test_no_figure_depends_on_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, dropped: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = f"shardspec: 1\nhardware: tpu v5e 2x4\n{_MESH}{_RULES}{_ARRAYS}{dropped}"
    Path("s.yaml").write_text(spec + "lints: {SHD: allow}\n")
    name, *more = verb.split()
    result = CliRunner().invoke(cli, [name, "s.yaml", *more])
    assert result.exit_code == 1
    for figure in ("fits,", "per device, fits", "may fit", "bound by"):
        assert figure not in result.stdout
