"""The extension for VS Code: whole as files; built nightly, where npm gets what it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardspec.language.dsl_text.layout import KEYWORDS
from shardspec.lsp.hover import KINDS
from tests.lsp.client import has_tool

FOLDER = Path(__file__).parents[2] / "editors" / "vscode"
EXAMPLES = sorted((Path(__file__).parents[2] / "specs/examples").glob("*.shard"))


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_what_it_names_is_there() -> None:
    """But for the schema and the bundle, which the build writes."""
    package = read("package.json")
    contributes = package["contributes"]
    assert package["main"].removeprefix("./") in package["scripts"]["bundle"]
    named = ["extension.js", contributes["languages"][0]["configuration"]]
    named += [contributes["grammars"][0]["path"]]
    assert all((FOLDER / name).is_file() for name in named)
    (language,) = contributes["languages"]
    assert language["extensions"] == [".shard"]
    assert contributes["grammars"][0]["scopeName"] == read(named[2])["scopeName"]
    schema = contributes["yamlValidation"][0]["url"].removeprefix("./")
    assert schema in package["scripts"]["vscode:prepublish"]
    assert schema in (FOLDER / ".gitignore").read_text()


def test_its_settings_are_those_of_the_server() -> None:
    settings = read("package.json")["contributes"]["configuration"]["properties"]
    hints = {name.rpartition(".")[2] for name in settings if ".inlayHints." in name}
    assert hints == {"enabled", *KINDS}
    assert settings["shardspec.path"]["scope"] == "machine", "a workspace names no command"


def grammar_patterns(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for each in node for found in grammar_patterns(each)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("match", "begin", "end") if key in node]
    return own + [found for each in node.values() for found in grammar_patterns(each)]


def statement_of(line: str) -> str | None:
    """Return the word that begins a statement for the grammar."""
    grammar = read("syntaxes/shardspec.tmLanguage.json")
    for pattern in grammar["repository"]["statement"]["patterns"]:
        found = re.match(pattern["match"], line)
        if found is not None:
            return found[1]
    return None


def test_the_grammar_knows_every_statement() -> None:
    grammar = read("syntaxes/shardspec.tmLanguage.json")
    assert len([re.compile(pattern) for pattern in grammar_patterns(grammar)]) > 10
    assert {statement_of(f"{word} ") for word in KEYWORDS} == KEYWORDS
    assert statement_of("  rules {") == "rules"
    assert statement_of("axis/kernel : embed") is None
    assert statement_of("  embed -> data") is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_grammar_sees_what_the_reader_does(path: Path) -> None:
    """A line that begins a statement of the file begins one for the grammar."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1].isalpha()]
    assert lines
    assert all(statement_of(line) in KEYWORDS for line in lines)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: the script is not read")
def test_the_script_can_be_read() -> None:
    subprocess.run(["node", "--check", str(FOLDER / "extension.js")], check=True)


@pytest.mark.nightly
def test_it_builds(tmp_path: Path) -> None:
    if not has_tool("@vscode/vsce"):
        pytest.skip("npx cannot get @vscode/vsce, so the extension is not built")
    folder = tmp_path / "vscode"
    ignored = shutil.ignore_patterns("node_modules", "*.vsix", "shardspec.schema.json")
    shutil.copytree(FOLDER, folder, ignore=ignored)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(FOLDER.parents[1])}
    install = ["npm", "install", "--no-audit", "--no-fund"]
    options = [
        "--no-dependencies",
        "--skip-license",
        "--allow-missing-repository",
        "--out",
        "shardspec.vsix",
    ]
    build = ["npx", "--yes", "@vscode/vsce", "package", *options]
    for command in (install, build):
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=600)
    with zipfile.ZipFile(folder / "shardspec.vsix") as made:
        names = set(made.namelist())
        schema = json.loads(made.read("extension/shardspec.schema.json"))
    assert {"extension/dist/extension.js", "extension/syntaxes/shardspec.tmLanguage.json"} <= names
    assert not [name for name in names if "node_modules" in name], "it is one file"
    assert "rules" in schema["properties"]
