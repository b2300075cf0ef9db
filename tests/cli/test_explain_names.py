"""`explain` takes whatever a message or a page points at, with what it is or without."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec import assets
from shardspec.cli.main import cli
from shardspec.diagnostics.codes import ALL
from shardspec.language import catalogue, document
from shardspec.lints.registry import page
from shardspec.report import pages

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "specs" / "examples"
SPEC = """\
shardspec: 1
extends: [fsdp-tensor, expert]
axes: {batch: 64, length: 128, embed: {size: 512, doc: width of the model}, mlp: 2048, vocab: 4096}
targets:
  slice: {hardware: tpu v5e 4x4, mesh: {fsdp: rest, tensor: 4, expert: 2}}
arrays: {table: "f32[vocab embed]", a/wi: "f32[embed mlp]", a/wo: "f32[mlp embed]"}
activations: {residual: batch length embed}
phases:
  decode: {axes: {batch: 16}}
step:
  program:
    - gather(tokens[batch length], "table") -> residual
    - residual, "a/wi" -> hidden[batch length mlp]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


def explained(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments])


def pointed_at() -> list[str]:
    """Return what pages and messages say to explain, as typed: `preset:t5x/2d`, `rules`."""
    files = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "shardspec").rglob("*.py"),
    ]
    texts = [file.read_text(encoding="utf-8") for file in files]
    texts += [page(code) for code in ALL]
    called = re.compile(r"`shardspec explain ((?!-)[^`{}<\n]+)`")
    found = {" ".join(each.split()) for text in texts for each in called.findall(text)}
    return sorted(each for each in found if not re.search(r"\b[A-Z]{3,}\b|spec\.yaml|/|--", each))


@pytest.mark.parametrize("word", ["8xH100", "h100x8"])
def test_a_machine_in_other_words_is_named_with_what_it_is(folder: Path, word: str) -> None:
    result = explained(word)
    assert result.exit_code == 2
    assert "there is `hardware:8 h100`" in result.output
    assert explained("hardware:8 h100").exit_code == 0
    assert "hardware" not in explained("conv4_8").output


def test_what_pages_and_messages_point_at_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subjects = [each for each in pointed_at() if not each.startswith("axis:")]
    assert len(subjects) >= 4
    for subject in subjects:
        result = explained(*shlex.split(subject))
        assert result.exit_code == 0, (subject, result.output)


def everything_along() -> list[str]:
    """Return names of what comes along; of a few, with the line that findings would name."""
    names = [*pages.names(), *(code.name for code in ALL), *document.Document.model_fields]
    lines = [f"step:{name}:7" for name in assets.spec_names("steps")]
    return [*names, *lines, *(code.id for code in ALL), "2 * tpu v5p 4x4x8", "8 * h100"]


def test_all_that_comes_along_is_explained_with_what_it_is_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in everything_along():
        bare = re.sub(r"^\w+:(?=\D)", "", name)
        for subject in dict.fromkeys((name, bare)):
            if subject not in ("doc",):
                result = explained(subject)
                assert result.exit_code == 0, (subject, result.output)
                assert result.stdout.strip()


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("fsdp", "mesh axis fsdp = 2"),
        ("axis:fsdp", "mesh axis fsdp = 2"),
        ("embed", "logical axis embed = 512\n  width of the model\n"),
        ("slice", "target slice: TPU v5e 4x4, 16 chips\nmesh "),
        ("target:slice", "target slice: TPU v5e 4x4, 16 chips\nmesh "),
        ("residual", "activation residual"),
        ("a", "a/wi   f32[512, 2048]"),
        ("expert", "mesh axis expert = 2"),
        ("zero3", "preset:zero3 "),
        ("preset:expert:9", "rule `expert -> expert"),
        ("preset:expert:2", ">    2 | # Tokens go"),
        ("preset:zero3:3", ">    3 | "),
        ("step:moe:13", ">   13 | "),
        ("spec.yaml:12", "  reads 1 array, table\n"),
        ("spec.yaml:12:7", "  reads 1 array, table\n"),
        ("preset:zero3:3:9", ">    3 | "),
        ("moe:13", ">   13 | "),
        ("v6e", "hardware:v6e "),
        ("TPU v6e", "hardware:v6e "),
        ("NVIDIA H100 SXM", "hardware:h100 "),
        ("activation:residual", "activation residual"),
        ("array:a/wi", "a/wi   f32[512, 2048]"),
        ("decode", "phase decode\n  target slice: TPU v5e 4x4, 16 chips: mesh "),
        ("phase:decode", "phase decode\n"),
        ("mlp -> tensor", "rule `mlp -> tensor`\n  wins: 2 arrays"),
        ("rule:mlp -> tensor", "rule `mlp -> tensor`"),
        ("lints.dead-rule", "SHD214  dead-rule"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_users_own_names_come_first(subject: str, said: str) -> None:
    result = explained(subject)
    assert result.exit_code == 0, result.output
    assert said in result.stdout


@pytest.mark.parametrize(
    ("subject", "near"),
    [
        ("v6x", "`hardware:v6e`"),
        ("fsdp-tensr", "`preset:fsdp-tensor`"),
        ("preset:fsp", "`fsdp`"),
        ("step:decoder-tide", "`decoder-tied`"),
        ("hardware:h10", "`h100`"),
        ("axis:tensr", "`tensor`"),
        ("tensr", "`tensor`"),
        ("slcie", "`slice`"),
        ("target:slcie", "`target:slice`"),
        ("phase:decod", "`phase:decode`"),
        ("activation:residul", "`activation:residual`"),
        ("array:a/wj", "`a/wi`"),
        ("mlp -> tensr", "`rule:mlp -> tensor`"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_nearest_name_is_offered(subject: str, near: str) -> None:
    result = explained(subject)
    assert result.exit_code == 2
    assert near in result.stderr


def test_a_word_of_the_language_may_be_an_axis_of_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SPEC.replace("tensor: 4", "targets: 4").replace("[fsdp-tensor, expert]", "[fsdp]")
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    result = explained("targets")
    assert result.stdout.startswith("targets: ")
    assert "mesh axis targets = 4" in result.stdout


def test_every_place_that_cost_names_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of rules and steps, the spec's own and those of files that come along."""
    monkeypatch.chdir(EXAMPLES)
    cost = CliRunner().invoke(cli, ["cost", "tiny-moe.yaml", "--by", "rule", "-q"]).stdout
    cost += CliRunner().invoke(cli, ["cost", "tiny-moe.yaml", "-q"]).stdout
    places = set(re.findall(r"\b[\w/.-]+(?::[\w/.-]+)?:\d+\b(?!:)", cost))
    places = {each for each in places if re.match(r"preset:|step:|tiny-moe\.yaml:", each)}
    assert len(places) > 3
    for place in places:
        result = explained(place, "--spec", "tiny-moe.yaml")
        assert result.exit_code == 0, (place, result.output)


def test_hardware_names_are_one_of_each() -> None:
    assert {f"hardware:{name}" for name in catalogue.hardware_names()} <= set(pages.names())
