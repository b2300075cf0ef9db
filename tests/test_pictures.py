"""The pictures of the README and the docs are what the tool draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
#: By the name of its file, the command that draws it.
PICTURES = {
    "t5-on-v4.svg": "mesh specs/examples/t5-1.0-11b-v4.yaml -t 4x2x2 --format svg",
    "llama-on-nodes.svg": "mesh specs/examples/llama-3-70b.yaml -t sixteen-nodes --format svg",
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_command_draws(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(cli, PICTURES[name].split())
    assert result.exit_code == 0, result.output
    if request.config.getoption("--update-cases"):
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_text(result.stdout, encoding="utf-8")
    assert result.stdout == (IMAGES / name).read_text(encoding="utf-8")


def test_each_is_shown_with_its_command() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    shown = set(re.findall(r"!\[[^]]+\]\((?:docs/)?images/([^)]+)\)", texts))
    assert shown == set(PICTURES) == {path.name for path in IMAGES.iterdir()}
    for command in PICTURES.values():
        assert f"shardspec {command}" in texts
