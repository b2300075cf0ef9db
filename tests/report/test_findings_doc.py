"""docs/findings.md says what `shardspec explain` says, of every finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.site.findings import findings_doc
from shardspec.diagnostics import codes
from shardspec.report.pages import code_lines, find_code, finding_page

FILE = Path(__file__).parents[2] / "docs" / "findings.md"


def test_file_is_fresh(request: pytest.FixtureRequest) -> None:
    """`pytest --update-cases`, or `make docs`, writes it."""
    if request.config.getoption("--update-cases"):
        FILE.write_text(findings_doc(), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == findings_doc()


def test_every_finding_has_its_section_and_its_line() -> None:
    text = findings_doc()
    assert re.findall(r"^### (SHD\d{3}) ", text, re.MULTILINE) == [code.id for code in codes.ALL]
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    links = re.findall(r"\]\(#([\w-]+)\)", text)
    assert len(links) == len(codes.ALL)
    assert set(links) <= anchors


def test_examples_stand_fenced_as_they_are() -> None:
    text = findings_doc()
    assert text.count("```yaml") == 2 * len(codes.ALL)
    assert text.count("```") == 4 * len(codes.ALL)
    assert "**Bad**\n\n```yaml\nshardspec: 1\nmesh:" in text


@pytest.mark.parametrize("code", codes.ALL, ids=lambda code: code.name)
def test_a_finding_is_found_as_people_write_it(code: object) -> None:
    words = (code.id, code.id.lower(), code.id[3:], f"[{code.id}]", f"SHD-{code.id[3:]}")  # type: ignore[attr-defined]
    name = code.name  # type: ignore[attr-defined]
    for text in (*words, name, name.upper(), name.replace("-", "_"), name.replace("-", " ")):
        assert find_code(text) is code, text


@pytest.mark.parametrize(
    "text", ["", "SHD", "SHD3", "SHD9999", "30", "rules", "301x", "indivisibl"]
)
def test_other_words_are_none(text: str) -> None:
    assert find_code(text) is None


def test_pedantic_ones_are_marked() -> None:
    lines = list(code_lines())
    assert len(lines) == len(codes.ALL)
    for code, line in zip(codes.ALL, lines, strict=True):
        assert (" pedantic " in line) == code.is_pedantic
        assert finding_page(code).startswith(f"{code.id}  {code.name}  (")
        assert ("--pedantic" in finding_page(code).splitlines()[0]) == code.is_pedantic
