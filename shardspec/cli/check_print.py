"""Findings on the terminal, in the format that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from shardspec.cli.check_run import Checked
from shardspec.cli.session import MOST_IN_FULL, wants_color
from shardspec.cli.streams import echo
from shardspec.diagnostics import Diagnostic, Severity
from shardspec.diagnostics.render import render, render_concise
from shardspec.ir.grouping import counted


def print_findings(
    checked: Sequence[Checked],
    files: Sequence[str],
    output_format: str,
    color: str,
    *,
    notes: Sequence[str] = (),
    err: bool = False,
) -> None:
    """Print what was found, and what it was found in.

    Args:
      notes: what else is to be said before the last line.
      err: whether all of it goes to stderr, since stdout holds something else.
    """
    found = tuple(chain.from_iterable(each.diagnostics for each in checked))
    if output_format == "full":
        _print_full(found, color, err=err)
    else:
        for text in _texts(found, output_format, _scope(files, checked)):
            echo(text, err=err)
    is_data = output_format != "full"
    for note in notes:
        echo(note, err=err or is_data)
    if output_format not in ("json", "sarif"):
        for line in _closing(found, files, checked, has_fixed=bool(notes)):
            echo(line, err=err or is_data)


def _scope(files: Sequence[str], checked: Sequence[Checked]) -> dict[str, int]:
    """Return how much was checked."""
    return {
        "files": len(files),
        "arrays": sum(each.arrays for each in checked),
        "activations": sum(each.activations for each in checked),
        "targets": sum(each.targets for each in checked),
    }


def _texts(found: Sequence[Diagnostic], output_format: str, scope: Mapping[str, int]) -> list[str]:
    if output_format == "concise":
        return [render_concise(diagnostic) for diagnostic in found]
    if output_format == "github":
        from shardspec.report.findings_forms import commands

        return list(commands(found))
    if output_format == "sarif":
        from shardspec.report.findings_forms import sarif_text

        return [sarif_text(found, scope)]
    from shardspec.report.findings_forms import findings_text

    return [findings_text(found, scope)]


def _print_full(found: Sequence[Diagnostic], color: str, *, err: bool) -> None:
    paint = wants_color(color, stream=2 if err else 1)
    for diagnostic in found[:MOST_IN_FULL]:
        echo(render(diagnostic, color=paint) + "\n", err=err, is_painted=True)
    if len(found) > MOST_IN_FULL:
        rest = len(found) - MOST_IN_FULL
        echo(f"... and {rest} more: --output-format concise shows one a line\n", err=err)


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
        help = "`arrays:`, `manifest:` or --params says what to check"
        return f"No findings in the text of {scope}; nothing else was checked: {help}."
    verb = "lists" if bare == 1 else "list"
    return f"No findings in {scope}; {bare} of them {verb} no arrays: only the text was checked."


def _fixable(found: Sequence[Diagnostic], files: Sequence[str]) -> list[str]:
    """Return how many findings `--fix` would mend, where it would any."""
    if not any(diagnostic.fix for diagnostic in found):
        return []
    from shardspec.cli.check_fix import fixes_within

    fixes = tuple(dict.fromkeys(fixes_within(found, files)))
    sure = sum(fix.is_sure for fix in fixes)
    unsure = len(fixes) - sure
    parts = [f"{sure} with --fix"] if sure else []
    if unsure:
        parts.append(f"{unsure} {'more ' if sure else ''}with --fix --unsafe-fixes")
    return [f"Fixable: {', '.join(parts)}."] if parts else []
