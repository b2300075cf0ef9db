"""The pages of `docs/`: blocks that start with a command hold what it prints.

`pytest --update-cases` rewrites the blocks. A page may bring files of its own: a block whose first
line is `# NAME`; its commands run beside them. The examples of a framework's page are run as they
stand, with the page's spec beside it, on eight CPU devices.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FRAMEWORKS = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
_BLOCK = re.compile(r"^```console\n(\$ shardspec [^\n]*\n)(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```(yaml|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```\w+\n# ([\w-]+\.\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_real_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    own = dict(_FILE.findall(page.read_text(encoding="utf-8")))
    for name, body in own.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    monkeypatch.chdir(tmp_path if own else ROOT / "specs" / "examples")
    monkeypatch.setenv("NO_COLOR", "1")

    def printed(block: re.Match[str]) -> str:
        result = CliRunner().invoke(cli, shlex.split(block[1].removeprefix("$ shardspec ")))
        assert result.exit_code == 0, result.output
        return f"```console\n{block[1]}{result.output}```"

    text = page.read_text(encoding="utf-8")
    real = _BLOCK.sub(printed, text)
    if pytestconfig.getoption("--update-cases"):
        page.write_text(real, encoding="utf-8")
    else:
        assert text == real


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", FRAMEWORKS, ids=lambda page: page.stem)
def test_the_example_of_a_framework_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = _FENCED.findall(page.read_text(encoding="utf-8"))
    spec = next(body for kind, body in blocks if kind == "yaml")
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(body for kind, body in blocks if kind == "python")
    exec(compile(code, page.name, "exec"), {"__name__": page.stem})
    assert capsys.readouterr().out.startswith("P(")
