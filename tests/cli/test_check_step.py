"""`check --step` and `cost --step`: findings of a step on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {data: 4, tensor: 4}}
  flat: {hardware: tpu v5e 4x4, mesh: {data: 16}}
axes: {batch: 16384, features: 4096}
rules:
  - batch -> data
  - mlp -> tensor
  - features -> none
params:
  w: features mlp
arrays:
  w: bf16[4096, 16384]
replicate: [{path: w, because: small}]
activations:
  x: batch features
"""
STEP = """\
import jax
import jax.numpy as jnp


def train(resolver):
    def step(params, x):
        w = resolver.constrain(params["w"], "features _")
        return x @ w

    x = jax.ShapeDtypeStruct((16384, 4096), jnp.bfloat16)
    return step, ({"w": jax.ShapeDtypeStruct((4096, 16384), jnp.bfloat16)}, x)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "checked_step.py").write_text(STEP)
    yield tmp_path
    sys.modules.pop("checked_step", None)


def test_a_step_is_something_that_was_checked(folder: Path) -> None:
    bare = f"{SPEC.partition('params:')[0]}lints: {{nothing-checked: allow}}\n"
    (folder / "spec.yaml").write_text(bare)
    assert "nothing else was checked" in run("check", "spec.yaml").output
    step = run("check", "spec.yaml", "--step", "checked_step:train", "-t", "flat")
    assert "nothing else was checked" not in step.output


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def check(*arguments: str) -> Result:
    return run("check", "spec.yaml", "--step", "checked_step:train", *arguments)


def test_every_target_is_looked_at() -> None:
    found = check()
    assert found.exit_code == 0
    assert found.stderr.count("importing it, which runs its code") == 2
    assert found.stdout.count("warning[SHD505]") == 1
    assert "`w` is gathered over `tensor`" in found.stdout
    assert "Found 1 warning in 1 file (1 array, 2 targets)." in found.stdout
    assert check("--target", "flat").stdout == "No findings in 1 file (1 array, 1 target).\n"


def test_without_a_step_no_code_runs(folder: Path) -> None:
    (folder / "checked_step.py").write_text("raise SystemExit(7)")
    assert run("check", "spec.yaml").stdout == "No findings in 1 file (1 array, 2 targets).\n"


def test_levels_and_comments_hold_for_them_too(folder: Path) -> None:
    assert check("--ignore", "SHD505").stdout.startswith("No findings")
    (folder / "spec.yaml").write_text(SPEC + "lints: {needless-gather: error}\n")
    assert check("-t", "pod").exit_code == 1
    silent = SPEC.replace("mlp -> tensor", "mlp -> tensor  # shardspec: ignore[SHD505]")
    (folder / "spec.yaml").write_text(silent)
    assert check().stdout.startswith("No findings")
    assert run("check", "spec.yaml").stdout.startswith("No findings"), "nobody has looked for it"
    other = silent.replace("SHD505", "SHD301")
    (folder / "spec.yaml").write_text(other)
    assert "SHD013" in run("check", "spec.yaml").stdout


def test_a_spec_with_errors_is_not_traced(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC.replace("mlp -> tensor", "mlp -> tenosr"))
    found = check()
    assert found.exit_code == 1
    assert "no step is traced: spec.yaml has errors" in found.stderr
    assert "importing" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fix",), "--step with --fix or --diff"),
        (("--diff",), "--step with --fix or --diff"),
        (("spec.yaml",), "--step for 2 specs"),
    ],
)
def test_what_a_step_does_not_go_with(arguments: tuple[str, ...], said: str, folder: Path) -> None:
    (folder / "other.yaml").write_text(SPEC)
    more = ("other.yaml",) if arguments == ("spec.yaml",) else arguments
    found = check(*more)
    assert (found.exit_code, said in found.stderr) == (2, True)


def test_findings_come_in_every_form() -> None:
    assert "spec.yaml:8:12: warning[SHD505]" in check("--format", "concise").stdout
    assert '"SHD505"' in check("--format", "json").stdout
    assert "SHD505" in check("--format", "github").stdout
    assert "SHD505" in check("--format", "sarif").stdout


def test_cost_prints_them_below(folder: Path) -> None:
    found = run("cost", "spec.yaml", "--step", "checked_step:train")
    assert found.exit_code == 0
    assert "warning[SHD505]: `w` is gathered over `tensor`" in found.stderr
    (folder / "spec.yaml").write_text(SPEC + "lints: {SHD505: error}\n")
    assert run("cost", "spec.yaml", "--step", "checked_step:train").exit_code == 1
    (folder / "spec.yaml").write_text(SPEC + "lints: {SHD505: allow}\n")
    assert "SHD505" not in run("cost", "spec.yaml", "--step", "checked_step:train").stderr


def test_in_python_a_cost_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    import shardspec

    monkeypatch.syspath_prepend(".")
    step = importlib.import_module("checked_step")
    resolver = shardspec.Resolver("spec.yaml", "pod", devices="abstract")
    function, arguments = step.train(resolver)
    (found,) = resolver.cost(function, *arguments).findings
    assert found.code.id == "SHD505"


def test_arrays_that_only_the_code_has_are_something_to_check(folder: Path) -> None:
    head, _, rest = SPEC.partition("arrays:\n  w: bf16[4096, 16384]\n")
    text = (head + rest).partition("activations:")[0]
    (folder / "spec.yaml").write_text(text)
    assert "SHD020" in run("check", "spec.yaml").stdout
    assert "SHD020" not in check().stdout


def test_an_axis_that_only_the_code_may_name_is_no_finding(folder: Path) -> None:
    """As `cost --step` has it; one that is spelt much like another is one still."""
    rules = "  - pages -> data\n  - featurs -> none\n"
    (folder / "spec.yaml").write_text(SPEC.replace("  - mlp", f"{rules}  - mlp"))
    said = run("check", "spec.yaml", "--step", "checked_step:train", "--format", "concise").stdout
    assert "`pages`" not in said
    assert "SHD230" in said
    assert "featurs" in said
