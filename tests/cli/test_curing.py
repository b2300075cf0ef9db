"""`shardspec search --step` of a spec without `step:`, on the example of docs/search.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from shardspec import assets
from shardspec.cli.main import cli
from shardspec.ir.step import Added, Cure
from tests.test_cases import files_of
from tests.test_guides import ROOT, own_files


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in own_files((ROOT / "docs" / "search.md").read_text("utf-8")).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "lm", raising=False)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["search", "lm.yaml", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_json_says_what_the_schema_describes_and_git_applies_the_patch(folder: Path) -> None:
    schema = json.loads(CliRunner().invoke(cli, ["schema", "--of", "cure"]).stdout)
    assert schema == json.loads(assets.schema_path("cure").read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    found = run("--step", "lm:step", "--no-compile", "--format", "json", "--patch", "lm.diff")
    data = json.loads(found.stdout)
    jsonschema.Draft7Validator(schema).validate(data)
    best = data["answers"][data["best"]]
    assert best["step_s"] < 0.94 * data["now"]["step_s"]
    assert data["patch"] == (folder / "lm.diff").read_text()
    (added,) = re.findall(r"(?m)^\+ +(.*constrain.*)$", data["patch"])
    (line,) = best["lines"]
    named = f"add `{added}` at lm.py:{line['line']}, which `shardspec search` found: "
    assert named in help_of_check()
    (folder / "lm.py").write_text((folder / "lm.py").read_text() + "\n# a remark\n")
    assert "`shardspec search lm.yaml --step lm:step` looks for" in help_of_check()
    subprocess.run(["git", "apply", "lm.diff"], check=True)
    assert "shardspec.constrain(hidden" in (folder / "lm.py").read_text()


CASES = (
    "SHD503-whole-and-split",
    "SHD507-gate",
    "SHD508-xla-15207",
    "SHD513-fsdp",
)
FOUND = Cure(
    (Added("m.py", 3, 'x = resolver.constrain(x, "batch _")'),), "2 times as fast, compiled"
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("found", [None, Cure((), ""), FOUND], ids=["unsearched", "none", "line"])
def test_help_names_what_search_found(
    name: str, found: Cure | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = (ROOT / "tests" / "cases" / f"{name}.md").read_text("utf-8")
    for file, text in files_of(case).items():
        (folder / file).write_text(text)
    monkeypatch.setattr("shardspec.jax_backend.cure.remembered.remembered", lambda *_: found)
    step = re.search(r"--step (\S+)", case)
    assert step
    help = help_of_check("spec.yaml", step[1], name[:6])
    if found is None:
        assert f"`shardspec search spec.yaml --step {step[1]}` looks for the line to add" in help
    elif found.lines:
        added = (
            f"add `{found.lines[0].text}` at m.py:3, which `shardspec search` found: {found.gain}"
        )
        assert help.startswith(added)
    else:
        assert "`shardspec search` found no line that" in help


SQUARE = """
import jax, jax.numpy as jnp

def step(resolver):
    x = jax.ShapeDtypeStruct((65536, 4096), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((4096, 1022), jnp.bfloat16)
    return (lambda w, x: x @ w["gate"]), ({"gate": w}, x)
"""


def test_a_line_that_was_found_takes_the_place_of_what_allows_repeated_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = "shardspec: 1\nhardware: tpu v5e 4x4\nmesh: {data: 4, tensor: 4}\n"
    spec += "axes: {batch: 65536, wide: 1022}\nrules: [batch -> data, wide -> tensor | none]\n"
    (folder / "square.yaml").write_text(f"{spec}params: {{gate: _ wide}}\n")
    (folder / "square.py").write_text(SQUARE)
    told = [help_of_check("square.yaml", "square:step", "SHD507")]
    monkeypatch.setattr("shardspec.jax_backend.cure.remembered.remembered", lambda *_: FOUND)
    told.append(help_of_check("square.yaml", "square:step", "SHD507"))
    assert ["repeated-work: allow" in each for each in told] == [True, False]


def help_of_check(spec: str = "lm.yaml", step: str = "lm:step", code: str = "") -> str:
    found = CliRunner().invoke(cli, ["check", spec, "--step", step, "--format", "json"])
    assert found.exit_code in (0, 1), found.output
    findings = json.loads(found.stdout)["findings"]
    return " ".join(each["help"] or "" for each in findings if each["code"].startswith(code))


def test_a_line_inside_of_vmap_names_what_it_maps(folder: Path) -> None:
    """A model of one example, which training maps over the batch, as in Equinox."""
    text = (folder / "lm.py").read_text()
    text = text.replace("ble,ve->blv", "le,ve->lv").replace(
        "axis=1)[..., None]", "axis=0)[..., None]"
    )
    text = text.replace("def loss(params, tokens)", "def one(params, tokens)")
    mapped = "def loss(params, tokens):\n    return jax.vmap(one, (None, 0))(params, tokens).mean()"
    (folder / "lm.py").write_text(text.replace("@jax.jit", f"{mapped}\n\n\n@jax.jit"))
    found = run("--step", "lm:step", "--no-compile", "--json", "--patch", "lm.diff")
    data = json.loads(found.stdout)
    best = data["answers"][data["best"]]
    assert best["sends"] < data["now"]["sends"] / 5
    assert {line["mapped"] for line in best["lines"]} == {1}
    subprocess.run(["git", "apply", "lm.diff"], check=True)
    assert 'mapped="batch")' in (folder / "lm.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--over", "constraints"), "--over constraints needs code to trace"),
        (("--over", "constraints,remat=full", "--step", "lm:step"), "--over remat=full needs a"),
        (("--over", "remat,stages", "--step", "lm:step"), "--over stages needs a `step:`"),
    ],
)
def test_constraints_are_searched_in_code_alone(arguments: tuple[str, ...], told: str) -> None:
    assert told in run(*arguments, code=2).output
