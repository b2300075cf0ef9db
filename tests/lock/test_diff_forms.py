"""What a diff says where the two sides have nothing, or little, in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

Diff = Callable[..., str]
_SPEC = """shardspec: 1
targets: {t: {hardware: 8 cpu, mesh: {data: 2, model: 4}}}
rules: [embed -> data, mlp -> model]
arrays: {ARRAYS}
"""
_ONE, _OTHER = '"a/w": "bf16[embed=64 mlp=128]"', '"b/w": "bf16[embed=64 mlp=128]"'


@pytest.fixture
def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diff:
    monkeypatch.chdir(tmp_path)

    def run(old: str, new: str, *flags: str) -> str:
        for name, arrays in (("old", old), ("new", new)):
            text = _SPEC.replace("ARRAYS", arrays)
            Path(f"{name}.yaml").write_text(text, encoding="utf-8")
        return CliRunner().invoke(cli, ["diff", "old.yaml", "new.yaml", *flags]).stdout

    return run


@pytest.mark.parametrize("form", ["text", "md"])
@pytest.mark.parametrize(
    ("old", "new"), [(_ONE, _OTHER), (_ONE, ""), ("", _ONE), ("", "")], ids=str
)
def test_nothing_is_claimed_of_no_arrays(diff: Diff, old: str, new: str, form: str) -> None:
    told = diff(old, new, "--format", form)
    assert "nothing to compare" in told
    assert "keeps a part" not in told
    assert "places every array" not in told


def test_what_is_compared_is_counted(diff: Diff) -> None:
    told = diff(_ONE, f"{_ONE}, {_OTHER}")
    assert "nothing moves of 1 array" in told
    assert "1 new or of another shape not counted" in told
    found = json.loads(diff(_ONE, f"{_ONE}, {_OTHER}", "--format", "json"))
    assert found["targets"][0]["restore"]["compared"] == 1


def test_machines_of_several_nodes_say_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, nodes in (("old", 2), ("new", 4)):
        mesh = f"{{hardware: {nodes} * h100, mesh: {{data: {nodes} @ dcn, model: 8}}}}"
        text = _SPEC.replace("{hardware: 8 cpu, mesh: {data: 2, model: 4}}", mesh)
        Path(f"{name}.yaml").write_text(text.replace("ARRAYS", _ONE), encoding="utf-8")
    told = CliRunner().invoke(cli, ["diff", "old.yaml", "new.yaml"]).stdout
    assert "target t   4 * h100 (32 GPUs), mesh" in told
    assert "was 2 * h100 (16 GPUs), mesh" in told
    line = CliRunner().invoke(cli, ["explain", "new.yaml:2"]).stdout
    assert "target t: 4 nodes of 8 NVIDIA H100 SXM, 32 GPUs: mesh " in line
