"""`shardspec check`: every finding over all targets of one or many specs."""

from __future__ import annotations

import click

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.discovery import find_spec
from shardspec.cli.session import (
    FAILED,
    FINDINGS,
    FINE,
    MOST_IN_FULL,
    echo,
    has_errors,
    params_or_exit,
    wants_color,
    warn_of_slow_regexes,
)
from shardspec.diagnostics import Diagnostic, Severity
from shardspec.diagnostics.codes import UNKNOWN_TARGET, UNREADABLE
from shardspec.diagnostics.render import render, render_concise
from shardspec.ir.grouping import counted
from shardspec.ir.spec import Spec

#: Findings that leave nothing to check.
_NO_JOB = (UNREADABLE, UNKNOWN_TARGET)


@click.command("check")
@click.argument("spec_files", nargs=-1)
@options.spec_option
@options.target_option
@options.params_option
@options.set_option
@options.format_option("full", "concise", "json", name="--output-format")
@options.color_option
def command(
    spec_files: tuple[str, ...],
    spec_name: str | None,
    target: str | None,
    manifest: str | None,
    settings: dict[str, str],
    output_format: str,
    color: str,
) -> None:
    """Report everything that is wrong, on all targets."""
    files = spec_files or (find_spec(spec_name),)
    found: list[Diagnostic] = []
    arrays = targets = 0
    for file in files:
        spec, diagnostics = pipeline.load_path(file, settings, with_manifests=manifest is None)
        if spec is not None:
            diagnostics, counts = _check(spec, diagnostics, target, manifest)
            arrays, targets = arrays + counts[0], targets + counts[1]
        found += diagnostics
    if output_format == "json":
        from shardspec.formats.findings_json import findings_text

        echo(findings_text(found))
    else:
        _print(found, color, concise=output_format == "concise")
        echo(_closing(found, len(files), arrays, targets), err=output_format == "concise")
    failed = any(diagnostic.code in _NO_JOB for diagnostic in found)
    raise SystemExit(FAILED if failed else FINDINGS if has_errors(found) else FINE)


def _check(
    spec: Spec, diagnostics: tuple[Diagnostic, ...], target: str | None, manifest: str | None
) -> tuple[tuple[Diagnostic, ...], tuple[int, int]]:
    """Return all findings of one spec, and its numbers of arrays and targets."""
    params = params_or_exit(spec, manifest)
    targets = spec.targets
    if target is not None:
        chosen = pipeline.find_target(spec, target)
        if isinstance(chosen, Diagnostic):
            return (*diagnostics, chosen), (0, 0)
        targets = (chosen,)
    elif params and not targets:
        missing = pipeline.find_target(spec, None)
        return (*diagnostics, *([missing] if isinstance(missing, Diagnostic) else [])), (0, 0)
    warn_of_slow_regexes(spec)
    diagnostics = pipeline.about(diagnostics, target)
    plans = pipeline.compile_plans(spec, params, targets)
    found = pipeline.leveled(spec, (*diagnostics, *pipeline.findings(spec, plans)))
    return found, (len(params), len(targets))


def _print(found: list[Diagnostic], color: str, *, concise: bool) -> None:
    paint = wants_color(color)
    for diagnostic in found if concise else found[:MOST_IN_FULL]:
        text = render_concise(diagnostic) if concise else render(diagnostic, color=paint) + "\n"
        echo(text, is_painted=not concise)
    if not concise and len(found) > MOST_IN_FULL:
        rest = len(found) - MOST_IN_FULL
        echo(f"... and {rest} more: --output-format concise shows one a line\n")


def _closing(found: list[Diagnostic], files: int, arrays: int, targets: int) -> str:
    """Return `Found 2 errors in 1 file (723 arrays, 3 targets).   Details: ...`."""
    scope = f"{counted(files, 'file')} ({counted(arrays, 'array')}, {counted(targets, 'target')})"
    if not found:
        return f"No findings in {scope}."
    worst = next((diagnostic for diagnostic in found if diagnostic.is_error), found[0])
    errors = sum(diagnostic.is_error for diagnostic in found)
    warnings = sum(diagnostic.severity is Severity.WARNING for diagnostic in found)
    parts = [counted(n, what) for n, what in ((errors, "error"), (warnings, "warning")) if n]
    return f"Found {' and '.join(parts)} in {scope}.   Details: shardspec explain {worst.code.id}"
