"""What shells offer: names of the spec, findings, what comes along, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from shardspec import assets
from shardspec.cli.main import cli
from shardspec.diagnostics import codes

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  laptop: {mesh: {fsdp: 1, tensor: 1}}
axes: {batch: 64, embed: 1024, mlp: 4096}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp]
phases: {decode: {rules: [embed -> tensor]}}
arrays: {spin/wi: "bf16[embed mlp]", wo: "bf16[mlp embed]"}
activations: {out: batch embed}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "other.yaml").write_text(SPEC.replace("laptop", "lab").replace("wo:", "zzz:"))
    (tmp_path / "broken.yaml").write_text("rules: [\n\tx: {")
    return tmp_path


def offered(line: str) -> list[str]:
    """Return what is offered for the last word of a line, `<file>` and `<dir>` among it."""
    *words, start = line.split(" ")
    shell = ShellComplete(cli, {}, "shardspec", "_SHARDSPEC_COMPLETE")
    found = shell.get_completions(words, start)
    return [each.value if each.type == "plain" else f"<{each.type}>" for each in found]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("compile --target la", ["laptop"]),
        ("compile -t ", ["pod", "laptop"]),
        ("compile other.yaml --target la", ["lab"]),
        ("compile --spec other.yaml --target la", ["lab"]),
        ("check other.yaml spec.yaml -t la", ["lab"]),
        ("cost --phase d", ["decode"]),
        ("cost --only s", ["spin/wi"]),
        ("check --select SHD30", [f"SHD30{at}" for at in range(1, 7)]),
        ("check --ignore shd301", ["shd301"]),
        ("check --select SHD301,indiv", ["SHD301,indivisible"]),
        ("explain axis:em", ["axis:embed"]),
        ("explain axis:", [f"axis:{each}" for each in ("fsdp", "tensor", "batch", "mlp", "embed")]),
        ("explain SHD301", ["SHD301", "<file>"]),
        ("explain sp", ["spin/wi", "<file>"]),
        ("explain ou", ["out", "<file>"]),
        ("explain other.yaml zz", ["zzz", "<file>"]),
        ("explain preset:t5x/2", ["preset:t5x/2d"]),
        ("explain hardware:v5p", ["hardware:v5p"]),
        ("search --hardware v6", ["v6e"]),
        ("example llama-3-8b-lon", ["llama-3-8b-long"]),
        ("example llama-3-8b sp", ["<dir>"]),
        ("import maxtext -I sp", ["<dir>"]),
        ("explain --list f", ["findings"]),
        ("expl", ["explain"]),
    ],
)
def test_names(line: str, names: list[str]) -> None:
    assert offered(line) == names


@pytest.mark.parametrize(
    "verb", ["compile", "check", "cost", "fmt", "lock", "diff", "manifest", "mesh", "search"]
)
def test_files_where_specs_go(verb: str) -> None:
    assert offered(f"{verb} ") == ["<file>"]


@pytest.mark.parametrize(
    "line",
    [
        "compile --spec",
        "diff spec.yaml",
        "cost --arrays",
        "explain --cost",
        "compile -o",
        "import maxtext",
        "import maxtext a --against",
        "lsp --log",
        "report --diff",
        "export maxtext",
    ],
)
def test_files_where_files_go(line: str) -> None:
    assert offered(f"{line} ") == ["<file>"]


def test_all_findings_presets_and_examples_are_offered() -> None:
    everything = {name for code in codes.ALL for name in (code.id, code.name)}
    assert set(offered("check --select ")) == everything
    assert offered("init --like ") == list(assets.spec_names("presets"))
    assert offered("example ") == list(assets.spec_names("examples"))
    assert offered("explain preset:") == [f"preset:{e}" for e in assets.spec_names("presets")]


@pytest.mark.parametrize(
    "line",
    [
        "compile broken.yaml -t",
        "compile nowhere.yaml --phase",
        "cost broken.yaml --only",
        "explain broken.yaml --why-not",
        "nonsense --target",
    ],
)
def test_a_spec_that_cannot_be_read_offers_nothing_and_says_nothing(
    line: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "spec.yaml").unlink()
    (folder / "other.yaml").unlink()
    found = offered(f"{line} ")
    assert found == [] or line.startswith("nonsense")
    assert capsys.readouterr() == ("", "")
