"""`shardspec fmt`: one spelling, and the way between YAML and the DSL."""

from __future__ import annotations

import os

import click

from shardspec.cli import options
from shardspec.cli.request import Request, for_each
from shardspec.cli.streams import FINDINGS, FINE, echo_data, fail


@options.verb(
    "fmt",
    *options.SPECS,
    *options.FINDINGS,
    options.option(
        "--to", "spelling", type=click.Choice(["yaml", "dsl"]), help="Convert; to stdout, or to -o."
    ),
    *options.OUTPUT,
    options.flag("--check", "Write nothing; exit 1 if a file would change."),
    options.flag("--diff", "Write nothing; show what would change."),
    example="shardspec fmt spec.yaml",
    page="language.md",
)
def command(request: Request, *, spelling: str | None, check: bool, diff: bool) -> None:
    """Format specs in place, or turn YAML into the DSL and back. Keeps comments and meaning."""
    if spelling and (check or diff):
        fail("--check and --diff look at files in their own spelling", "leave --to out")
    files = request.spec_files()
    for_each(files, lambda file: _format(file, spelling, request, check=check, diff=diff))


def _format(file: str, spelling: str | None, request: Request, *, check: bool, diff: bool) -> int:
    from shardspec.cli.edits import write
    from shardspec.fixing import Changed
    from shardspec.language.formatting import formatted

    (source,) = request.sources([file], inside=True)
    text, diagnostics = formatted(source, spelling)
    request.report(request.heard(diagnostics))
    if text is None:
        request.undone(f"{file} is left as it is: it cannot be read without loss")
        return FINDINGS
    if check or diff:
        return _compare(file, source.text, text, request, diff=diff)
    target = request.output or ("-" if spelling else file)
    if target == file != "-" and text == source.text:
        return FINE
    is_own = not spelling and os.path.isfile(file)
    if is_own and os.path.realpath(target) == os.path.realpath(file):
        write([Changed(file, source.text, text)])
    else:
        request.write_to(target, text)
    if target == file:
        request.wrote(file, f"formatted {file}")
    return FINE


def _compare(file: str, old: str, new: str, request: Request, *, diff: bool) -> int:
    if old == new:
        return FINE
    if diff:
        import difflib

        name = os.path.basename(file)
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            name,
            f"{name} (formatted)",
        )
        echo_data("".join(line if line.endswith("\n") else line + "\n" for line in lines))
    else:
        request.remark(f"would reformat {file}")
    return FINDINGS
