"""`shardspec check`: every finding over all targets of one or many specs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import click

from shardspec.cli import options
from shardspec.cli.check_print import print_findings
from shardspec.cli.check_run import Checked, Wishes, check_file
from shardspec.cli.discovery import expand, find_spec
from shardspec.cli.session import FAILED, FINDINGS, FINE, has_errors
from shardspec.cli.streams import echo, echo_data
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import UNKNOWN_TARGET, UNREADABLE
from shardspec.diagnostics.levels import LevelTable
from shardspec.ir.grouping import counted

#: Findings that leave nothing to check.
_NO_JOB = (UNREADABLE, UNKNOWN_TARGET)


@click.command("check")
@click.argument("spec_files", metavar="[SPEC|FOLDER]...", nargs=-1)
@options.spec_option
@options.target_option
@options.params_option
@options.set_option
@options.findings_option("--select", "Findings to show, and no others: `SHD3`, `indivisible`.")
@options.findings_option("--ignore", "Findings not to show.")
@click.option("--pedantic", is_flag=True, help="Also what is a matter of taste or of care.")
@click.option("--fix", is_flag=True, help="Mend what can be mended beyond doubt, in place.")
@click.option("--diff", is_flag=True, help="Show what --fix would change; write nothing.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix or --diff: also what may not be meant."
)
@options.format_option("full", "concise", "json", "github", "sarif", name="--output-format")
@options.color_option
def command(
    spec_files: tuple[str, ...],
    spec_name: str | None,
    target: str | None,
    manifest: str | None,
    settings: dict[str, str],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    pedantic: bool,
    fix: bool,
    diff: bool,
    unsafe_fixes: bool,
    output_format: str,
    color: str,
) -> None:
    """Report everything that is wrong, on all targets; of a folder, in all specs in it."""
    if unsafe_fixes and not (fix or diff):
        raise click.UsageError("--unsafe-fixes goes with --fix or --diff")
    files, others = expand(spec_files or (find_spec(spec_name),))
    if others:
        echo(f"{counted(others, 'YAML file')} passed over: not specs", err=True)
    table = LevelTable(select=select, ignore=ignore, is_pedantic=pedantic)
    wishes = Wishes(target, manifest, settings, table)
    if diff:
        raise SystemExit(_diff(files, wishes, is_unsafe=unsafe_fixes))
    notes: tuple[str, ...] = ()
    if fix:
        checked, notes = _fix(files, wishes, is_unsafe=unsafe_fixes)
    else:
        checked = tuple(check_file(file, wishes) for file in files)
    err = fix and "-" in files
    print_findings(checked, files, output_format, color, notes=notes, err=err)
    _tell_of_hidden(checked, output_format)
    raise SystemExit(_exit_code(_all(checked)))


def _tell_of_hidden(checked: Sequence[Checked], output_format: str) -> None:
    """Say that code which loads the spec does not know of this command's flags."""
    hidden = sum(each.hidden for each in checked)
    if hidden:
        echo(
            f"{counted(hidden, 'error')} not shown under --ignore or --select. `shardspec.load` and"
            " `Resolver` do not know of these flags and refuse the spec: `lints:` in it, or"
            " `[tool.shardspec.lints]`, counts for them, too.",
            err=True,
        )


def _all(checked: Sequence[Checked]) -> tuple[Diagnostic, ...]:
    return tuple(chain.from_iterable(each.diagnostics for each in checked))


def _exit_code(found: Sequence[Diagnostic]) -> int:
    if any(diagnostic.code in _NO_JOB for diagnostic in found):
        return FAILED
    return FINDINGS if has_errors(found) else FINE


def _fix(
    files: tuple[str, ...], wishes: Wishes, *, is_unsafe: bool
) -> tuple[tuple[Checked, ...], tuple[str, ...]]:
    """Fix the files; return what is found afterwards, and what to say of the fixes."""
    from shardspec.cli.check_fix import Fixing, print_stdin, write

    fixing = Fixing(files, wishes, is_unsafe)
    fixing.run()
    write(fixing.changed)
    if "-" in files:
        print_stdin(fixing.stdin_text())
    notes = [f"not done, since the text could not be read then: {t}" for t in fixing.refused]
    more = f" ({fixing.unsure} more with --unsafe-fixes)" if fixing.unsure else ""
    return fixing.checked, (*notes, f"Fixed {len(fixing.fixed)}{more}.")


def _diff(files: tuple[str, ...], wishes: Wishes, *, is_unsafe: bool) -> int:
    """Show what fixing would change; return the exit code."""
    from shardspec.cli.check_fix import Fixing, diff

    fixing = Fixing(files, wishes, is_unsafe)
    fixing.run()
    echo_data(diff(fixing.changed))
    more = f" ({fixing.unsure} more with --unsafe-fixes)" if fixing.unsure else ""
    echo(f"Would fix {len(fixing.fixed)}{more}.", err=True)
    if _exit_code(_all(fixing.checked)) == FAILED:
        return FAILED
    return FINDINGS if fixing.changed else FINE
