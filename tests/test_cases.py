"""Literate golden cases: files with marks where findings must stand, and the real output.

A case is `tests/cases/<CODE>-<name>.md`. Its fenced blocks are files, each named by a line
`file: NAME` above it (`spec.yaml`, by the language of the block, when left out). A line of a file
that has a finding ends in `# error: 17 [SHD201]`: level, column, code. A finding without a place in
these files has a line of its own in the text: `error: - [SHD001]`, or
`error: preset:t5x/2d:5:3 [SHD201]`. The `output` block holds what a terminal shows, of a verb
(`$ shardspec check`) or of a file of the case (`$ python train.py`);
`pytest --update-cases` rewrites that block, and nothing else.
"""

from __future__ import annotations

import re
import runpy
import shlex
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec import ShardspecError
from shardspec.cli.main import cli
from tests.versions_of_jax import NAMES_OTHER_CAUSES

#: What these say of causes is Shardy's to know.
_CAUSES = ("SHD508-xla-15207",)

CASES = sorted((Path(__file__).parent / "cases").glob("*.md"))

_FILE = re.compile(
    r"(?:^file: (?P<name>\S+)\n\n?)?^```(?P<language>(?!output)\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_OUTPUT = re.compile(r"^```output\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"(error|warning): (\d+) \[(SHD\d{3})\]")
_UNPLACED = re.compile(r"^(error|warning): (\S+) \[(SHD\d{3})\]$", re.MULTILINE)
_FINDING = re.compile(
    r"^(?:\w+Warning: |(?P<before>\S+:\d+:\d+): )?"
    r"(?P<level>error|warning)\[(?P<code>SHD\d{3})\]: .*(?:\n +--> (?P<below>\S+))?",
    re.MULTILINE,
)

Finding = tuple[str, str, str]


def files_of(case: str) -> dict[str, str]:
    """Return the files of a case by name."""
    return {
        found["name"] or f"spec.{found['language']}": found["body"]
        for found in _FILE.finditer(case)
    }


def marks_of(case: str) -> list[Finding]:
    """Return what the case says must be found: level, place and code, sorted."""
    marks = [(level, place, code) for level, place, code in _UNPLACED.findall(case)]
    for name, body in files_of(case).items():
        for number, line in enumerate(body.splitlines(), start=1):
            _, hash_sign, comment = line.rpartition("#")
            if hash_sign:
                for level, column, code in _MARK.findall(comment):
                    marks.append((level, f"{name}:{number}:{column}", code))
    return sorted(marks)


def found_in(output: str) -> list[Finding]:
    """Return the findings in a terminal's text, as `marks_of` does."""
    return sorted(
        (found["level"], found["before"] or found["below"] or "-", found["code"])
        for found in _FINDING.finditer(output)
    )


def command_of(case: str) -> str:
    """Return the command line of the output block; an empty one asks for `check`."""
    shown = _OUTPUT.search(case)
    assert shown, "a case has an `output` block"
    return shown[1].partition("\n")[0] or "$ shardspec check"


def printed_by(command: str) -> str:
    """Return a terminal's text: the command, what it prints, and its exit code."""
    prompt, program, *arguments = shlex.split(command)
    assert prompt == "$", "an output block starts with its command"
    if program == "python":
        output, exit_code = run_python(*arguments)
    else:
        assert program == "shardspec"
        result = CliRunner().invoke(cli, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        output, exit_code = result.output, result.exit_code
    return f"{command}\n{output}(exit {exit_code})\n"


def run_python(file: str) -> tuple[str, int]:
    """Return what a file prints, its warnings and its `ShardspecError` too, and its exit code."""
    output, exit_code = StringIO(), 0
    with redirect_stdout(output), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            runpy.run_path(file)
        except ShardspecError as error:
            print(error)
            exit_code = 1
        for each in seen:
            print(f"{each.category.__name__}: {each.message}")
    return output.getvalue(), exit_code


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    if NAMES_OTHER_CAUSES and path.stem in _CAUSES:
        pytest.skip("jaxlib names another cause")
    case = path.read_text(encoding="utf-8")
    for name, body in files_of(case).items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    output = printed_by(command_of(case))

    assert found_in(output) == marks_of(case)
    own = path.name.partition("-")[0]
    if own.startswith("SHD"):
        assert own in {code for _, _, code in marks_of(case)}, "a case shows the finding it is for"

    if pytestconfig.getoption("--update-cases"):
        start, end = _OUTPUT.search(case).span(1)  # type: ignore[union-attr]
        path.write_text(case[:start] + output + case[end:], encoding="utf-8")
    else:
        assert _OUTPUT.search(case)[1] == output  # type: ignore[index]


def test_there_are_cases() -> None:
    assert len(CASES) > 30


def test_an_empty_output_asks_for_check() -> None:
    assert command_of("```output\n```\n") == "$ shardspec check"
    assert command_of("```output\n$ shardspec cost\n```\n") == "$ shardspec cost"


def test_a_wrong_mark_is_noticed() -> None:
    line = "- mlp -> tenosr  # error: 10 [SHD201] warning: 3 [SHD203]"
    case = f"```yaml\n{line}\n```\nerror: - [SHD001]\n"
    assert marks_of(case) == [
        ("error", "-", "SHD001"),
        ("error", "spec.yaml:1:10", "SHD201"),
        ("warning", "spec.yaml:1:3", "SHD203"),
    ]


@pytest.mark.parametrize("name", ["ten-mistakes", "ten-mistakes-dsl"])
def test_ten_mistakes_are_ten_findings(name: str) -> None:
    case = (Path(__file__).parent / "cases" / f"{name}.md").read_text(encoding="utf-8")
    assert len(marks_of(case)) == 10
