"""`shardspec check`: every finding over all targets of one or many specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from shardspec.cli import options, streams
from shardspec.cli.check_run import Checked, Fixing, check_file, diff_text, fixes_within, write
from shardspec.cli.request import MOST_IN_FULL, Request, has_errors
from shardspec.cli.steps import STEP
from shardspec.cli.streams import FAILED, FINDINGS, FINE, echo, show
from shardspec.diagnostics import Diagnostic, Severity, codes
from shardspec.diagnostics.render import render, render_concise
from shardspec.diagnostics.words import counted

#: Findings that leave nothing to check.
_NO_JOB = (codes.UNREADABLE, codes.UNKNOWN_TARGET)


@options.verb(
    "check",
    *options.SPECS,
    options.TARGET,
    STEP,
    options.ARRAYS,
    options.SET,
    options.COST,
    *options.FINDINGS,
    options.option(
        "--pedantic", "is_pedantic", is_flag=True, help="Also what is a matter of taste or of care."
    ),
    options.flag("--fix", "Mend what can be mended beyond doubt, in place."),
    options.flag("--diff", "Show what --fix would change; write nothing."),
    options.flag("--unsafe-fixes", "With --fix or --diff: also what may not be meant."),
    options.format_option("full", "concise", "json", "github", "sarif"),
)
def command(
    request: Request, *, step_name: str | None, fix: bool, diff: bool, unsafe_fixes: bool
) -> None:
    """Report everything that is wrong, on all targets; of a folder, in all specs in it.

    With `--step`, what a step of your own code sends and computes in vain as well (SHD503 to
    SHD510); only then does it run code.
    """
    if unsafe_fixes and not (fix or diff):
        streams.fail("--unsafe-fixes alone fixes nothing", "say --fix or --diff as well")
    files = request.spec_files()
    if step_name is not None and (fix or diff):
        streams.fail(
            "--step with --fix or --diff", "fix first: no finding of a step can be fixed here"
        )
    if step_name is not None and len(files) > 1:
        streams.fail(f"--step for {len(files)} specs", "name the one spec that it runs under")
    if diff:
        raise SystemExit(_diff(files, request, is_unsafe=unsafe_fixes))
    notes: tuple[str, ...] = ()
    if fix:
        checked, notes = _fix(files, request, is_unsafe=unsafe_fixes)
    else:
        checked = tuple(check_file(file, request, step_name=step_name) for file in files)
    _print_findings(checked, files, request, notes=notes, err=fix and "-" in files)
    _tell_of_hidden(checked, request)
    raise SystemExit(_exit_code(_all(checked)))


def _tell_of_hidden(checked: Sequence[Checked], request: Request) -> None:
    """Say that code which loads the spec does not know of this command's flags."""
    hidden = sum(each.hidden for each in checked)
    if hidden:
        request.remark(
            f"{counted(hidden, 'error')} not shown under --ignore or --select. `shardspec.load` and"
            " `Resolver` do not know of these flags and refuse the spec: `lints:` in it, or"
            " `[tool.shardspec.lints]`, counts for them, too."
        )


def _all(checked: Sequence[Checked]) -> tuple[Diagnostic, ...]:
    return tuple(chain.from_iterable(each.diagnostics for each in checked))


def _exit_code(found: Sequence[Diagnostic]) -> int:
    if any(diagnostic.code in _NO_JOB for diagnostic in found):
        return FAILED
    return FINDINGS if has_errors(found) else FINE


def _fix(
    files: tuple[str, ...], request: Request, *, is_unsafe: bool
) -> tuple[tuple[Checked, ...], tuple[str, ...]]:
    """Fix the files; return what is found afterwards, and what to say of the fixes."""
    fixing = Fixing(files, request, is_unsafe)
    fixing.run()
    write(fixing.changed)
    if "-" in files:
        streams.echo_bytes(fixing.stdin_text())
    notes = [f"not done, since the text could not be read then: {t}" for t in fixing.refused]
    more = f" ({fixing.unsure} more with --unsafe-fixes)" if fixing.unsure else ""
    return fixing.checked, (*notes, f"Fixed {len(fixing.fixed)}{more}.")


def _diff(files: tuple[str, ...], request: Request, *, is_unsafe: bool) -> int:
    """Show what fixing would change; return the exit code."""
    fixing = Fixing(files, request, is_unsafe)
    fixing.run()
    streams.echo_data(diff_text(fixing.changed))
    more = f" ({fixing.unsure} more with --unsafe-fixes)" if fixing.unsure else ""
    request.remark(f"Would fix {len(fixing.fixed)}{more}.")
    if _exit_code(_all(fixing.checked)) == FAILED:
        return FAILED
    return FINDINGS if fixing.changed else FINE


# what is printed


def _print_findings(
    checked: Sequence[Checked],
    files: Sequence[str],
    request: Request,
    *,
    notes: Sequence[str],
    err: bool,
) -> None:
    """Print what was found, and what it was found in.

    Args:
      notes: what else is to be said before the last line.
      err: whether all of it goes to stderr, since stdout holds something else.
    """
    found = tuple(chain.from_iterable(each.diagnostics for each in checked))
    is_data = request.form != "full"
    if is_data:
        for text in _texts(found, request.form, _scope(files, checked)):
            echo(text, err=err)
    else:
        _print_full(found, request.color, err=err)
    if request.is_quiet:
        return
    for note in notes:
        show([note], err=err or is_data)
    if request.form not in ("json", "sarif"):
        show(_closing(found, files, checked, has_fixed=bool(notes)), err=err or is_data)


def _scope(files: Sequence[str], checked: Sequence[Checked]) -> dict[str, int]:
    """Return how much was checked."""
    return {
        "files": len(files),
        "arrays": sum(each.arrays for each in checked),
        "activations": sum(each.activations for each in checked),
        "targets": sum(each.targets for each in checked),
    }


def _texts(found: Sequence[Diagnostic], form: str, scope: Mapping[str, int]) -> list[str]:
    if form == "concise":
        return [render_concise(diagnostic) for diagnostic in found]
    if form == "github":
        from shardspec.report.findings_forms import commands

        return list(commands(found))
    if form == "sarif":
        from shardspec.report.findings_forms import sarif_text

        return [sarif_text(found, scope)]
    from shardspec.report.findings_forms import findings_text

    return [findings_text(found, scope)]


def _print_full(found: Sequence[Diagnostic], color: str, *, err: bool) -> None:
    stream = 2 if err else 1
    paint, width = streams.wants_color(color, stream), streams.width_of(stream)
    for diagnostic in found[:MOST_IN_FULL]:
        echo(render(diagnostic, color=paint, width=width) + "\n", err=err, is_painted=True)
    if len(found) > MOST_IN_FULL:
        rest = len(found) - MOST_IN_FULL
        echo(f"... and {rest} more: --format concise shows one a line\n", err=err)


def _closing(
    found: Sequence[Diagnostic],
    files: Sequence[str],
    checked: Sequence[Checked],
    *,
    has_fixed: bool,
) -> list[str]:
    """Return `Found 2 errors in 1 file (723 arrays, 3 targets).   Details: ...`."""
    count = _scope(files, checked)
    named = [counted(count["arrays"], "array"), counted(count["targets"], "target")]
    if not count["arrays"] and count["activations"]:
        named.insert(1, counted(count["activations"], "activation"))
    scope = f"{counted(len(files), 'file')} ({', '.join(named)})"
    if not found:
        return [_without_findings(scope, checked)]
    worst = next((diagnostic for diagnostic in found if diagnostic.is_error), found[0])
    errors = sum(diagnostic.is_error for diagnostic in found)
    warnings = sum(diagnostic.severity is Severity.WARNING for diagnostic in found)
    parts = [counted(n, what) for n, what in ((errors, "error"), (warnings, "warning")) if n]
    said = f"Found {' and '.join(parts)} in {scope}.   Details: shardspec explain {worst.code.id}"
    return [said] if has_fixed else [said, *_fixable(found, files)]


def _without_findings(scope: str, checked: Sequence[Checked]) -> str:
    """Return that there are no findings; of what lists no arrays, that its text alone was read."""
    bare = sum(each.is_bare for each in checked)
    if not bare:
        return f"No findings in {scope}."
    if bare == len(checked):
        help = "`arrays:`, `manifest:` or --arrays says what to check"
        return f"No findings in the text of {scope}; nothing else was checked: {help}."
    verb = "lists" if bare == 1 else "list"
    return f"No findings in {scope}; {bare} of them {verb} no arrays: only the text was checked."


def _fixable(found: Sequence[Diagnostic], files: Sequence[str]) -> list[str]:
    """Return how many findings `--fix` would mend, where it would any."""
    if not any(diagnostic.fix for diagnostic in found):
        return []
    fixes = tuple(dict.fromkeys(fixes_within(found, files)))
    sure = sum(fix.is_sure for fix in fixes)
    unsure = len(fixes) - sure
    parts = [f"{sure} with --fix"] if sure else []
    if unsure:
        parts.append(f"{unsure} {'more ' if sure else ''}with --fix --unsafe-fixes")
    return [f"Fixable: {', '.join(parts)}."] if parts else []
