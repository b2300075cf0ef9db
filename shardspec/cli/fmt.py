"""`shardspec fmt`: one spelling, and the way between YAML and the DSL."""

from __future__ import annotations

import os

import click

from shardspec.cli.discovery import find_spec
from shardspec.cli.session import FAILED, FINDINGS, FINE, fail, report, write_file
from shardspec.cli.streams import echo, echo_data
from shardspec.diagnostics import Diagnostic


@click.command("fmt")
@click.argument("spec_files", nargs=-1)
@click.option(
    "--to", "spelling", type=click.Choice(["yaml", "dsl"]), help="Convert; to stdout, or to -o."
)
@click.option("-o", "--output", metavar="FILE", help="Where to write, instead of in place.")
@click.option(
    "--check", "only_check", is_flag=True, help="Write nothing; exit 1 if a file would change."
)
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
def command(
    spec_files: tuple[str, ...],
    spelling: str | None,
    output: str | None,
    only_check: bool,
    diff: bool,
) -> None:
    """Format a spec, or turn YAML into the DSL and back. Keeps comments and meaning."""
    files = spec_files or (find_spec(None),)
    if output and len(files) > 1:
        raise click.UsageError("-o takes one file")
    if spelling and (only_check or diff):
        raise click.UsageError("--check and --diff look at files in their own spelling, not --to")
    codes = [_format(file, spelling, output, only_check=only_check, diff=diff) for file in files]
    raise SystemExit(max(codes))


def _format(
    file: str, spelling: str | None, output: str | None, *, only_check: bool, diff: bool
) -> int:
    from shardspec.frontend.files import read_argument
    from shardspec.frontend.formatting import formatted

    source = read_argument(file)
    if isinstance(source, Diagnostic):
        report([source])
        return FAILED
    if source.is_outside:
        fail(f"{file} is a link that leads out of the project", f"name {os.path.realpath(file)}")
    text, diagnostics = formatted(source, spelling)
    report(diagnostics)
    if text is None:
        echo(f"{file} is left as it is: it cannot be read without loss", err=True)
        return FINDINGS
    if only_check or diff:
        return _compare(file, source.text, text, diff=diff)
    target = output or ("-" if spelling else file)
    if target == file != "-" and text == source.text:
        return FINE
    write_file(target, text)
    if target == file != "-":
        echo(f"formatted {file}", err=True)
    return FINE


def _compare(file: str, old: str, new: str, *, diff: bool) -> int:
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
        echo(f"would reformat {file}", err=True)
    return FINDINGS
