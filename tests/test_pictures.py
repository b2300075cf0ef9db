"""The pictures of the README and the docs are what the tool draws."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import layouts
from benchmarks.figure import Point, picture
from shardspec.cli.main import cli

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
#: By the name of its file, the command that draws it.
PICTURES = {
    "t5-on-v4.svg": "mesh specs/examples/t5-1.0-11b-v4.yaml -t 4x2x2 --format svg",
    "llama-on-nodes.svg": "mesh specs/examples/llama-3-70b.yaml -t sixteen-nodes --format svg",
}
#: By the name of its file, the script that draws it from measured rows.
FIGURES = {"predicted.svg": "benchmarks/figure.py"}


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
    assert shown == {*PICTURES, *FIGURES} == {path.name for path in IMAGES.iterdir()}
    for command in PICTURES.values():
        assert f"shardspec {command}" in texts
    for script in FIGURES.values():
        assert f"python {script}" in texts


def test_the_figure_has_every_row_once() -> None:
    found = [Point("TPU", 2.0, 2.1), Point("TPU", 30.0, 60.0), Point("GPU", 0.5, 0.5)]
    root = ET.fromstring(picture(found))
    assert len(root.findall("{*}circle")) == 3
    texts = [each.text for each in root.findall("{*}text")]
    assert "1 of 2 within 15%" in texts
    assert "1 of 1 within 15%" in texts
    drawn = ET.fromstring((IMAGES / "predicted.svg").read_text(encoding="utf-8"))
    published = json.loads(layouts.DATA.read_text(encoding="utf-8"))["sheets"]
    own = [
        row
        for sheet in published
        if sheet.get("transcribed") != "recalled"
        for row in sheet["rows"]
        if not row.get("oom")
    ]
    told = [each.text for each in drawn.findall("{*}text")]
    assert any((text or "").endswith(f"of {len(own)} within 15%") for text in told)
