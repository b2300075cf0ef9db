"""docs/training.md runs as it stands, from the root of the checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training.md"
_FENCED = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    blocks = dict(_FENCED.findall(PAGE.read_text(encoding="utf-8")))
    exec(compile(blocks["python"], PAGE.name, "exec"), {"__name__": PAGE.stem})
    assert capsys.readouterr().out == blocks["text"]
