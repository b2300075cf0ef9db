"""`shardspec verify` proves what the examples state, with no code: those that it does stay so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
#: By example, the targets whose compiled program is as predicted and fits.
PROVED = {
    "gemma-2-9b": "node v5e-16 v6e-8",
    "gpt2": "node v5e-8",
    "llama-3-70b": "sixteen-nodes sixty-four-nodes two-v6e-256 v5p-1024",
    "llama-3-70b-scanned": "many-nodes v5p-1024 v7x-1024",
    "llama-3-8b": "four-nodes node two-v5e-32 v5e-64",
    "llama-3-8b-decode": "node v5e-16",
    "llama-3-8b-long": "four-nodes v5e-256 v5p-256",
    "llama-3-8b-lora": "node slices[2] slices[4] slices[8] v5p-32",
    "mixtral-8x7b": "eight-nodes v5p-256 v6e-64",
    "mixtral-8x7b-serving": "node two-nodes v5e-16",
    "phi-4": "node pod v5p-32",
    "t5-1.0-11b": "eight-nodes v3-512",
    "t5-1.1-xxl": "four-nodes two-v5p-256 v4-512",
    "tiny-moe": "node v5e-8",
    "tiny-t5": "node v5e-8",
    "vit-b-16": "node v5e-8",
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "target"),
    [(name, target) for name, found in PROVED.items() for target in found.split()],
)
def test_it_is_proved(name: str, target: str) -> None:
    path = str(EXAMPLES / f"{name}.shard")
    result = CliRunner().invoke(cli, ["verify", path, "-t", target])
    if "is not installed" in result.output:
        pytest.skip("needs the compilers: docs/verify.md")
    assert result.exit_code == 0, result.output
