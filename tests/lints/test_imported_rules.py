"""What an import allows hides no missing rule: MaxText's list without the rules of its experts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

BASE = Path(__file__).parents[1] / "data" / "maxtext" / "base.yml"
MIXTRAL = """\
decoder/moe_layers/MoeBlock_0/wi_0: bf16[exp=8 layers=32 embed_moe=4096 mlp_moe=14336]
decoder/moe_layers/MoeBlock_0/wi_1: bf16[exp=8 layers=32 embed_moe=4096 mlp_moe=14336]
decoder/moe_layers/MoeBlock_0/wo: bf16[exp=8 layers=32 mlp_moe=14336 embed_moe=4096]
decoder/moe_layers/query: bf16[embed=4096 layers=32 q_heads=32 kv=128]
decoder/moe_layers/scale: bf16[norm=4096 layers=32]
"""
GIB = 3 * 8 * 32 * 4096 * 14336 * 2 / 2**30


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(rules: str, mesh: str = "fsdp=8 tensor=4 expert=2") -> tuple[int, str]:
    """Return the exit code and text of `check` after an import of these rules."""
    Path("base.yml").write_text(rules, encoding="utf-8")
    Path("arrays.yaml").write_text(MIXTRAL, encoding="utf-8")
    asked = ["import", "maxtext", "base.yml", "--mesh", mesh, "--against", "arrays.yaml"]
    imported = CliRunner().invoke(cli, [*asked, "-o", "spec.yaml"])
    assert imported.exit_code == 0, imported.output
    found = CliRunner().invoke(cli, ["check", "spec.yaml", "--arrays", "arrays.yaml"])
    return found.exit_code, found.output


def complete() -> str:
    """Return MaxText's list with a rule for each axis of the experts."""
    text = BASE.read_text(encoding="utf-8")
    at = text.index("logical_axis_rules: [") + len("logical_axis_rules: [")
    moe = "\n  ['exp', 'expert'],\n  ['embed_moe', 'fsdp'],\n  ['mlp_moe', 'tensor'],"
    kept = [
        line
        for line in text[at:].splitlines()
        if not re.match(r"\s*\['(exp|embed_moe|mlp_moe)',", line)
    ]
    return text[:at] + moe + "\n".join(kept)


def test_all_of_the_rules_are_sound() -> None:
    code, text = said(complete())
    assert code == 0, text
    assert not re.search("SHD20|SHD230|SHD4", text), text


def test_rules_that_are_missing_are_loud() -> None:
    rules = complete()
    for name in ("exp", "embed_moe", "mlp_moe"):
        rules = re.sub(rf"\n\s*\['{name}',.*", "", rules)
    code, text = said(rules)
    assert code == 1
    assert round(GIB) == 84
    for name in ("exp", "embed_moe", "mlp_moe"):
        assert f"unknown logical axis `{name}`" in text
    assert text.count("84.0 GiB on every device") == 3
    assert "SHD230" not in text


def test_a_rule_with_a_slip_is_loud() -> None:
    code, text = said(complete().replace("['mlp_moe',", "['mpl_moe',"))
    assert code == 1
    assert "did you mean `mlp_moe`?" in text
    assert "unknown logical axis `mpl_moe`" in text
    assert os.path.exists("spec.yaml")
