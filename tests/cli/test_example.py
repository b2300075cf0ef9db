"""`shardspec example` gives a copy that passes `check`, and writes over nothing unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec import assets
from shardspec.cli.main import cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("name", assets.spec_names("examples"))
@pytest.mark.parametrize("spelling", ["yaml", "dsl"])
def test_the_copy_passes_check(name: str, spelling: str, tmp_path: Path) -> None:
    made = run("example", name, str(tmp_path), "--to", spelling)
    assert made.exit_code == 0, made.output
    (spec,) = tmp_path.glob(f"{name}.*")
    assert f"wrote {spec}" in made.stderr
    checked = run("check", str(spec))
    assert checked.exit_code == 0, checked.output
    assert checked.output.startswith("No findings in 1 file (")


def test_its_arrays_and_steps_come_with_it(tmp_path: Path) -> None:
    assert run("example", "t5-1.1-xxl", str(tmp_path)).exit_code == 0
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert files == {"t5-1.1-xxl.yaml", "arrays/t5-1.1-xxl.yaml", "steps/t5.py"}


def test_a_verb_without_a_spec_says_which_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is not called as verbs look for one; its arrays are no spec."""
    assert run("example", "gpt2", str(tmp_path)).exit_code == 0
    monkeypatch.chdir(tmp_path)
    refused = run("compile")
    assert refused.exit_code == 2
    assert "no spec is called shardspec.yaml; here is gpt2.yaml\n" in refused.stderr
    assert "as in `--spec gpt2.yaml`" in refused.stderr
    assert run("compile", "--spec", "gpt2.yaml").exit_code == 0


def test_what_is_there_stays(tmp_path: Path) -> None:
    assert run("example", "llama-3-8b", str(tmp_path)).exit_code == 0
    assert run("example", "llama-3-8b-long", str(tmp_path)).exit_code == 0  # shares its arrays
    spec = tmp_path / "llama-3-8b.yaml"
    spec.write_text("mine", encoding="utf-8")
    refused = run("example", "llama-3-8b", str(tmp_path))
    assert refused.exit_code == 2
    assert "already exists and differs" in refused.stderr
    assert spec.read_text(encoding="utf-8") == "mine"
    assert run("example", "llama-3-8b", str(tmp_path), "--force").exit_code == 0
    assert spec.read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("example", "lama-3-8b"), "did you mean `llama-3-8b`?"),
        (("example", "gpt2", "no/such"), "mkdir -p no/such"),
        (("compile", "gpt2"), "`shardspec example gpt2` copies it"),
        (("check", "t5x/2d"), "`extends: [t5x/2d]`"),
    ],
)
def test_the_way_out(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr + result.stdout
