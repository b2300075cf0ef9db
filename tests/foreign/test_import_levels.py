"""What imported specs keep quiet: rules for axes that no array has, and nothing worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

MESH = "data=2 model=4"
FILES = {
    "maxtext": (
        "base.yml",
        "mesh_axes: [data, model]\n"
        "logical_axis_rules: [[embed, data], [{}, model], [spare, data]]\n",
    ),
    "flax": ("rules.py", "RULES = [('embed', 'data'), ('{}', 'model'), ('spare', 'data')]\n"),
    "nnx": ("rules.py", "RULES = [('embed', 'data'), ('{}', 'model'), ('spare', 'data')]\n"),
    "haliax": ("map.json", '{{"embed": "data", "{}": "model", "spare": "data"}}'),
    "t5x-gin": (
        "run.gin",
        "partitioning.PjitPartitioner.logical_axis_rules = "
        "[('embed', 'data'), ('{}', 'model'), ('spare', 'data')]\n",
    ),
}


def check(folder: Path, name: str, axis: str) -> tuple[int, str]:
    """Return what `check` says of a spec that is imported from rules with this axis."""
    file, text = FILES[name]
    (folder / file).write_text(text.format(axis), encoding="utf-8")
    arrays = folder / "arrays.yaml"
    arrays.write_text("wi: bf16[embed=4096 mlp=14336]\n", encoding="utf-8")
    spec = str(folder / "spec.yaml")
    made = CliRunner().invoke(cli, ["import", name, str(folder / file), "--mesh", MESH, "-o", spec])
    assert made.exit_code == 0, made.output
    found = CliRunner().invoke(cli, ["check", spec, "--arrays", str(arrays)])
    return found.exit_code, found.output


@pytest.mark.parametrize("name", FILES)
def test_rules_that_no_array_needs_are_quiet(name: str, tmp_path: Path) -> None:
    exit_code, output = check(tmp_path, name, "mlp")
    assert exit_code == 0
    assert "SHD" not in output


@pytest.mark.parametrize("name", FILES)
def test_a_name_without_a_rule_is_an_error(name: str, tmp_path: Path) -> None:
    exit_code, output = check(tmp_path, name, "mpl")
    assert exit_code == 1
    assert "error[SHD202]: unknown logical axis `mpl`" in output
    assert "did you mean `mlp`?" in output
