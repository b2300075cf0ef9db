"""`shardspec verify` proves what the examples state, with no code: those that it does stay so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec import load
from shardspec.cli.main import cli
from shardspec.jax_backend.xla.compiling import need_compiler

EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
#: By example, the targets whose compiled program is as predicted and fits.
PROVED = {
PAIRS}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name, found in PROVED.items() for target in found.split()]
)
def test_it_is_proved(name: str, target: str) -> None:
    path = str(EXAMPLES / f"{name}.shard")
    found = next(each for each in load(path).targets if each == target)
    result = CliRunner().invoke(cli, ["verify", path, "-t", found])
    if "is not installed" in result.output:
        pytest.skip("needs the compilers: docs/verify.md")
    assert result.exit_code == 0, result.output
