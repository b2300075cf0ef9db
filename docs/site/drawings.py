"""Drawings of the layouts that pages explain: each stands below the command whose answer it draws.

A page is read as its readers follow it: its own files and the examples that it names lie in one
folder. What `shardspec explain ARRAY` explains is drawn as who holds which part; what `shardspec
mesh` and `shardspec compile` show, as the machine with its mesh.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shlex
import tempfile
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from shardspec import pipeline
from shardspec.cli.main import cli
from shardspec.ir.plan import ShardingPlan
from shardspec.report.drawing import drawing_of

_EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
_BLOCK = re.compile(r"^```console\n\$ shardspec (\w+ [^\n]*)\n.*?^```\n", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```\w+\n(# ([\w-]+\.\w+)\n.*?)^```$", re.DOTALL | re.MULTILINE)
#: What of a command says which layout it is about; with others it is about something else.
_ABOUT = {"--spec", "--target", "--set", "--order", "--phase", "--only"}


def drawn(text: str) -> str:
    """Return the text of a page with its drawings, each machine once."""
    seen: set[str] = set()

    def below(block: re.Match[str]) -> str:
        verb, *words = shlex.split(block[1])
        said = {key: value for key, value in pairwise(words) if key.startswith("-")}
        if verb == "explain" and said.keys() <= _ABOUT:
            return block[0] + _array(words[0], said)
        if verb not in ("mesh", "compile") or not said.keys() - {"-q"} <= _ABOUT:
            return block[0]
        picture = _machine([words[0], *_options(said)])
        if not picture or picture in seen:
            return block[0]
        seen.add(picture)
        source = base64.b64encode(picture.encode()).decode()
        title = escape(f"The machine of {' '.join(words)}")
        return f'{block[0]}\n<img alt="{title}" src="data:image/svg+xml;base64,{source}">\n'

    with _folder_of(text):
        return _BLOCK.sub(below, text)


@contextlib.contextmanager
def _folder_of(text: str) -> Iterator[None]:
    """Work in a folder that has the files of a page, and the examples that it names."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "examples"
        folder.mkdir()
        (Path(top) / "arrays").symlink_to(_EXAMPLES.parent / "arrays")
        for body, name in _FILE.findall(text):
            (folder / name).write_text(body, encoding="utf-8")
        for example in _EXAMPLES.glob("*.yaml"):
            if example.name in text and not (folder / example.name).exists():
                (folder / example.name).symlink_to(example)
        with contextlib.chdir(folder):
            yield


def _options(said: dict[str, str]) -> list[str]:
    kept = (pair for pair in said.items() if pair[0] in _ABOUT - {"--only"})
    return [word for pair in kept for word in pair]


def _machine(words: list[str]) -> str:
    """Return the picture of a machine; empty where none is stated."""
    result = CliRunner().invoke(cli, ["mesh", *words, "--format", "svg"])
    return result.stdout if result.exit_code == 0 else ""


def _array(name: str, said: dict[str, str]) -> str:
    """Return who holds which part of an array; empty for what is no single array."""
    found = _plan(said)
    if found is None:
        return ""
    try:
        html = drawing_of(name, found)._repr_html_()
    except KeyError:
        return ""
    return f'\n<div class="drawn">{" ".join(html.split())}</div>\n'


def _plan(said: dict[str, str]) -> ShardingPlan | None:
    name = said.get("--spec", "spec.yaml")
    if not Path(name).exists():
        return None
    spec, _ = pipeline.load_path(name)
    if spec is None:
        return None
    plans = pipeline.plans_of_phases(spec)
    wanted = said.get("--target")
    return next((plan for plan in plans if wanted in (None, plan.name)), None)
