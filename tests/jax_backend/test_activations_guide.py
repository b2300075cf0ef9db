"""docs/activations.md runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "activations.md"
_FENCED = re.compile(r"^```(yaml|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "activations"}
    checked = 0
    for language, body in _FENCED.findall(PAGE.read_text(encoding="utf-8")):
        if language == "yaml":
            named = re.match(r"# (\S+\.yaml)\n", body)
            name = named[1] if named else "spec.yaml"
            (tmp_path / name).write_text(body, encoding="utf-8")
        elif language == "python":
            exec(compile(body, PAGE.name, "exec"), namespace)
        else:
            printed = capsys.readouterr().out
            assert printed.rstrip() == body.rstrip()
            checked += 1
    assert checked == 5


def test_its_spec_has_no_findings(tmp_path: Path) -> None:
    import shardspec

    spec = next(body for name, body in _FENCED.findall(PAGE.read_text("utf-8")) if name == "yaml")
    assert shardspec.loads(spec).findings() == ()
