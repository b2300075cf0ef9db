"""Files that are no spec, or not in the spelling of their name: one fault each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec import assets, pipeline
from shardspec.cli.main import cli
from shardspec.diagnostics import SourceFile
from shardspec.language.document import Document
from shardspec.language.loader import mistaken

SPEC = """\
shardspec: 1
hardware: 4 cpu
mesh: {tensor: 4}
rules: [mlp -> tensor]
arrays: {wi: 'f32[mlp=64]'}
"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (["compile", "spec.yaml", "-o", "plan.json"], "plan.json", "is a plan"),
        (["lock", "spec.yaml"], "spec.lock", "is a lock"),
    ],
)
def test_what_shardspec_writes_is_told_as_such(
    folder: Path, make: list[str], name: str, says: str
) -> None:
    assert run(*make)[0] == 0
    exit_code, output = run("check", name)
    assert exit_code == 1
    assert output.count("SHD") == 2  # the finding, and where to read of it
    assert says in output
    for verb in ("compile", "fmt", "mesh"):
        exit_code, output = run(verb, name)
        assert exit_code in (1, 2)
        assert "Traceback" not in output


def test_every_output_is_told_as_such(folder: Path) -> None:
    for verb in (["check", "--format"], ["mesh", "--format"], ["compile", "--format"]):
        result = CliRunner().invoke(cli, [verb[0], "spec.yaml", verb[1], "json"])
        (folder / "out.json").write_text(result.stdout, encoding="utf-8")
        assert "SHD021" in run("check", "out.json")[1]


@pytest.mark.parametrize("name", sorted(assets.spec_names("arrays")))
def test_lists_of_arrays(name: str) -> None:
    path = assets.spec_path("arrays", name)
    assert path is not None
    found = mistaken(SourceFile("a.yaml", path.read_text(encoding="utf-8")), is_dsl=False)
    assert found is not None
    assert found.code.id == "SHD021"
    assert "manifest: ./a.yaml" in (found.help or "")


@pytest.mark.parametrize("suffix", [".yaml", ".shard"])
@pytest.mark.parametrize("path", sorted(Path("specs/examples").glob("*.*")), ids=lambda p: p.name)
def test_a_spelling_in_the_others_name(path: Path, suffix: str) -> None:
    text = path.read_text(encoding="utf-8")
    source = SourceFile(f"renamed{suffix}", text)
    found = mistaken(source, is_dsl=suffix == ".shard")
    if path.suffix == suffix:
        assert found is None
    else:
        assert found is not None
        assert found.code.id == "SHD002"
        assert path.suffix in (found.help or "")


def test_a_spec_may_speak_of_itself() -> None:
    text = "# lock 1, language 1 is what `shardspec lock` writes\nmesh: {a: 2}\nrules: [x -> a]\n"
    assert pipeline.load_text(text, "s.yaml")[1] == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"w": "f32[4, 4]"}',
        '{\n  "a/w": {"shape": [4], "dtype": "f32"}\n}\n',
        '"a/w": bf16[4]\n"b": f32[]\n',
        "# from a checkpoint\n---\na/w: bf16[ 4 ]\n",
        "a/w:\n  shape: [4]\n  dtype: f32\n",
        "'h_{0..3}/w': {dtype: f32, shape: [4]}\n",
        "params/embedding: f32[vocab=32000 embed=2048]\n",
    ],
)
def test_a_list_of_arrays_without_its_header(text: str) -> None:
    found = mistaken(SourceFile("a.yaml", text), is_dsl=False)
    assert found is not None
    assert found.code.id == "SHD021"


@pytest.mark.parametrize(
    "text",
    [
        'arrays:\n  w: "f32[4]"\n',
        "arrays: {w: 'f32[4]'}\n",
        "axes: {a: 4}\n",
        "rules: [a -> b]\n",
        "params:\n  shape: a\n",
        '{"axes": {"shape": 4}}',
        '{\n  "axes": {"dtype": 4}\n}',
        "arrays w { f32[4] }\n",
    ],
)
def test_a_spec_that_begins_with_arrays_is_one(text: str) -> None:
    assert mistaken(SourceFile("a.yaml", text), is_dsl=False) is None


def test_a_configuration_of_maxtext_is_one_fault_with_the_import(folder: Path) -> None:
    text = "model_name: default\nscan_layers: True\nlogical_axis_rules: [[mlp, [tensor]]]\n"
    (folder / "base.yml").write_text(text, encoding="utf-8")
    code, output = run("check", "base.yml")
    assert code == 1
    assert output.count("error[") == 1
    assert "`base.yml` is a configuration of MaxText, and no spec" in output
    assert "`shardspec import maxtext base.yml -o spec.yaml` makes a spec of it" in output


SECTIONS = [
    name
    for name, field in Document.model_fields.items()
    if name not in {"shardspec", "doc", "rules", "drop", "hardware", "mesh", "devices", "manifest"}
]


@pytest.mark.parametrize("section", SECTIONS)
def test_help_for_a_section_of_a_wrong_type_has_an_entry_that_works(section: str) -> None:
    """It said what the section is for, and not how an entry looks."""
    _, faults = pipeline.load_text(f"shardspec: 1\nmesh: {{data: 2}}\n{section}: 7\n")
    (found,) = [each for each in faults if each.code.id == "SHD004"]
    form = re.findall(r"`([^`]*)`", found.help or "")[1]
    inline = form if form[0] in "[{" else f"\n  {form}"
    mesh = "" if section == "targets" else "mesh: {data: 2}\n"
    text = f"shardspec: 1\n{mesh}{section}: {inline}\n"
    _, faults = pipeline.load_text(text)
    assert not {"SHD002", "SHD003", "SHD004"} & {each.code.id for each in faults}, text


@pytest.mark.parametrize("entry", ['overrides: [{"**/wi": mlp}]', 'replicate: [{"**/wi": tiny}]'])
def test_a_path_that_stands_as_a_key_is_shown_as_an_entry(folder: Path, entry: str) -> None:
    (folder / "spec.yaml").write_text(SPEC + entry + "\n", encoding="utf-8")
    status, output = run("check", "-q", "spec.yaml")
    assert status == 1
    assert "SHD003" in output
    (shown,) = re.findall(r"`- (\{.*?\})`", output)
    fixed = f"{SPEC}{entry.split(':')[0]}: [{shown}]\nlints: {{SHD2: allow, SHD4: allow}}\n"
    (folder / "spec.yaml").write_text(fixed, encoding="utf-8")
    assert "SHD003" not in run("check", "-q", "spec.yaml")[1]
