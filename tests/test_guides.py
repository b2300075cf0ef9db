"""README, CONTRIBUTING, `docs/`: blocks that start with a command hold what it prints.

`pytest --update-cases` rewrites the blocks. A page may bring files of its own: a block whose first
line is `# NAME`. That line is part of the file, since readers copy the whole block. Its commands
run beside them. A block that begins with `# specs/...` is a part of that file. A diff on a page
differs, and a check may have errors. How long trials took stays as it is on the page. `$ python
FILE` is run as well. The examples of the page of a
framework are run as they stand, with the page's spec beside it, on eight CPU devices; so are its
files of Python, each by itself.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli
from tests.versions_of_jax import GATHERS_COTANGENTS, NAMES_OTHER_CAUSES, QUICK_FLAGS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FRAMEWORKS = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
_BLOCK = re.compile(
    r"^```console\n(\$ (?:shardspec|python) [^\n]*\n)(.*?)^```$", re.DOTALL | re.MULTILINE
)
_FENCED = re.compile(r"^```(yaml|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```\w+\n(# ([\w-]+\.\w+)\n.*?)^```$", re.DOTALL | re.MULTILINE)
_EXCERPT = re.compile(r"^```\w+\n# (specs/[\w./-]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TOOK = re.compile(r"(?<=trials in )\S+ \w+")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
#: Pages whose figures are of steps that XLA partitions otherwise from jaxlib 0.12 on.
TRACED = ("search",)
_FIGURE = re.compile(r" *\d[\d.,]*(?: (?:[KMGT]iB|B|ms|s)\b)?")


def compared(page: Path, text: str) -> str:
    """Return what of a page is compared: without its figures where those are another jaxlib's."""
    is_other = GATHERS_COTANGENTS and page.stem in TRACED
    return _FIGURE.sub(" 0", text) if is_other else text


def own_files(text: str) -> dict[str, str]:
    """Return the files of a page by name, each exactly the text of its block."""
    return {name: body for body, name in _FILE.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_real_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    if NAMES_OTHER_CAUSES and page.stem in ("cost", "all-gather"):
        pytest.skip("jaxlib names other causes")
    text = page.read_text(encoding="utf-8")
    own = own_files(text)
    folder = tmp_path / "examples"
    folder.mkdir()
    (tmp_path / "arrays").symlink_to(ROOT / "specs" / "arrays")
    for name, body in own.items():
        (folder / name).write_text(body, encoding="utf-8")
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    for example in (ROOT / "specs" / "examples").glob("*.yaml"):
        if example.name in text and example.name not in own:
            (folder / example.name).symlink_to(example)
    monkeypatch.chdir(folder if own else ROOT / "specs" / "examples")
    monkeypatch.setenv("NO_COLOR", "1")

    def printed(block: re.Match[str]) -> str:
        if block[1].startswith("$ python "):
            return f"```console\n{block[1]}{python(block[1])}```"
        result = CliRunner().invoke(cli, shlex.split(block[1].removeprefix("$ shardspec ")))
        differs = block[1].startswith("$ shardspec diff ")
        has_errors = block[1].startswith("$ shardspec check ") and "\nFound " in result.output
        assert result.exit_code == int(differs or has_errors), result.output
        took = _TOOK.search(block[2])
        output = _TOOK.sub(took[0], result.output) if took else result.output
        return f"```console\n{block[1]}{output}```"

    real = _BLOCK.sub(printed, text)
    if pytestconfig.getoption("--update-cases"):
        page.write_text(real, encoding="utf-8")
    else:
        assert compared(page, text) == compared(page, real)


def python(command: str) -> str:
    """Return what a Python file of this folder prints, which runs in a process of its own."""
    arguments = [sys.executable, *shlex.split(command)[2:]]
    environment = {**os.environ, "XLA_FLAGS": QUICK_FLAGS, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        arguments, capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_parts_of_files_are_as_they_stand_there(page: Path) -> None:
    for file, part in _EXCERPT.findall(page.read_text(encoding="utf-8")):
        assert part in (ROOT / file).read_text(encoding="utf-8"), file


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
    text = page.read_text(encoding="utf-8")
    own = own_files(text)
    blocks = [(kind, body) for kind, body in _FENCED.findall(text) if body not in own.values()]
    spec = next(body for kind, body in blocks if kind == "yaml")
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(body for kind, body in blocks if kind == "python")
    exec(compile(code, page.name, "exec"), {"__name__": page.stem})
    assert capsys.readouterr().out.startswith("P(")
    for name, body in own.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    for name in own:
        if name.endswith(".py"):
            runpy.run_path(name, run_name="__main__")
