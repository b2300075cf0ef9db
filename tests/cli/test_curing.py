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


def help_of_check() -> str:
    found = CliRunner().invoke(cli, ["check", "lm.yaml", "--step", "lm:step", "--format", "json"])
    assert found.exit_code in (0, 1), found.output
    return " ".join(each["help"] or "" for each in json.loads(found.stdout)["findings"])


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
