"""The scripts that shells run, and what comes back; bash itself where it is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli import help
from shardspec.cli.main import cli
from tests.cli.test_completion import SPEC

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a spec, files, and `bin/shardspec`."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "broken.yaml").write_text("rules: [\n\tx: {")
    (tmp_path / "my file.json").touch()
    (tmp_path / "specs").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "shardspec"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shardspec "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(command: list[str], folder: Path, **environment: str) -> str:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    clean = {"PATH": path, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", "HOME": str(folder)}
    clean |= {"SHARDSPEC_PROGRESS": "never"}
    result = subprocess.run(
        command,
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


#: A line with the words that bash makes of it -> the words it then offers, or leaves to readline.
LINES = {
    ("explain axis:em", "explain axis : em"): "embed",
    ("explain axis:", "explain axis :"): "fsdp tensor batch mlp embed",
    ("explain sp", "explain sp"): "spin/wi spec.yaml specs/",
    ("explain my", "explain my"): "COMPOPT default",
    ("compile sp", "compile sp"): "COMPOPT default",
    ("compile --target=la", "compile --target = la"): "laptop",
    ("compile --target=", "compile --target ="): "pod laptop",
    ("compile spec.yaml -t l", "compile spec.yaml -t l"): "laptop",
    ("explain hardware:v5p", "explain hardware : v5p"): "v5p",
    ("check --select SHD301,indiv", "check --select SHD301,indiv"): "SHD301,indivisible",
    ("example llama-3-8b s", "example llama-3-8b s"): "COMPOPT dirnames",
    ("compile broken.yaml -t l", "compile broken.yaml -t l"): "",
}
_ASK = """
asked() {
    COMP_LINE="$1" COMP_POINT=${#1} COMPREPLY=()
    IFS=' ' read -r -a COMP_WORDS <<< "$2"
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _shardspec_completion shardspec
    echo "${COMPREPLY[*]}"
}
compopt() { [[ $2 == nospace ]] || printf 'COMPOPT %s' "$2"; }
eval "$(_SHARDSPEC_COMPLETE=bash_source shardspec)"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_offers_what_stands_behind_colons_and_files(folder: Path) -> None:
    asked = "\n".join(f"asked 'shardspec {line}' 'shardspec {cut}'" for line, cut in LINES)
    lines = run(["bash", "--norc", "-c", _ASK + asked], folder).splitlines()
    found = {line: sorted(said.split(" ")) for line, said in zip(LINES, lines, strict=True)}
    assert found == {line: sorted(said.split(" ")) for line, said in LINES.items()}


@pytest.mark.parametrize(
    ("shell", "word", "said"),
    [
        ("zsh", "--target=la", "plain\n--target=laptop\n_\n"),
        ("zsh", "sp", "file\nsp\n_\n"),
        ("fish", "--target=la", "plain,--target=laptop\n"),
        ("fish", "sp", "file,sp\n"),
    ],
)
def test_zsh_and_fish_hear_whole_words_and_files(
    folder: Path, shell: str, word: str, said: str
) -> None:
    line = {"COMP_WORDS": f"shardspec compile {word}", "_SHARDSPEC_COMPLETE": f"{shell}_complete"}
    at = word if shell == "fish" else "2"
    assert run(["shardspec"], folder, COMP_CWORD=at, **line) == said


def test_completion_loads_no_jax(folder: Path) -> None:
    code = (
        "import sys, os; from shardspec.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    )
    line = {"COMP_WORDS": "shardspec explain s", "_SHARDSPEC_COMPLETE": "bash_complete"}
    assert run([sys.executable, "-c", code], folder, **line).splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", help.SHELLS)
def test_completion_prints_the_line_of_the_page(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    page = (ROOT / "docs/command-line.md").read_text("utf-8").replace("\\|", "|")
    assert f"| {shell}" in page
    assert f"`{result.stdout.strip()}`" in page
