"""`shardspec lock`: what every device holds on every target, kept in git."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from shardspec.cli import options
from shardspec.cli.discovery import find_spec
from shardspec.cli.session import (
    FAILED,
    FINDINGS,
    FINE,
    fail,
    has_errors,
    load_or_exit,
    params_or_exit,
    plans_and_findings,
    report,
    target_or_exit,
    write_file,
)
from shardspec.cli.streams import echo
from shardspec.ir.grouping import counted
from shardspec.ir.layout import Layout
from shardspec.ir.plan import ShardingPlan


@click.command("lock")
@click.argument("spec_files", nargs=-1)
@options.spec_option
@options.params_option
@options.color_option
@click.option("--check", is_flag=True, help="Write nothing; exit 1, with what moved, if stale.")
@click.option("-o", "--output", metavar="FILE", help="Where to write; `-` is stdout.")
def command(
    spec_files: tuple[str, ...],
    spec_name: str | None,
    manifest: str | None,
    color: str,
    check: bool,
    output: str | None,
) -> None:
    """Write what every device holds on every target, one line for each group of arrays.

    The lock of `model/spec.yaml` is `model/spec.lock`. It is made for git: a review shows what a
    change of the spec, of a preset or of shardspec itself moves.
    """
    from shardspec.analysis.layouts import layout_of
    from shardspec.lock.lock_file import lock_path

    files = spec_files or (find_spec(spec_name),)
    if output is not None and len(files) > 1:
        raise click.UsageError(f"-o names one file for {len(files)} specs")
    if output == "":
        raise click.UsageError("-o names no file")
    exit_code = FINE
    for file in files:
        path = output or (lock_path(file) if file != "-" else "-")
        plans = _plans(file, manifest, color)
        if not plans:
            echo(
                f"{path} is not {'compared' if check else 'written'}: the plan has errors", err=True
            )
            exit_code = max(exit_code, FINDINGS)
        elif check:
            exit_code = max(exit_code, _check(path, plans))
        else:
            _write(path, layout_of(plans[0].spec, plans))
    raise SystemExit(exit_code)


def _plans(file: str, manifest: str | None, color: str) -> tuple[ShardingPlan, ...]:
    """Return the plans of a spec on all its targets; none, after a report, if it has errors."""
    spec, diagnostics = load_or_exit(file, {}, color, with_manifests=manifest is None)
    params = params_or_exit(spec, manifest)
    target_or_exit(spec, None, diagnostics)
    plans, found = plans_and_findings(spec, diagnostics, params)
    report(found, color)
    if has_errors(found):
        return ()
    if not params:
        fail(f"{file} lists no arrays to lock", "add `arrays:` or `manifest:`, or pass --params")
    return plans


def _write(path: str, layout: Layout) -> None:
    from shardspec.lock.lock_file import lock_text

    text = lock_text(layout)
    write_file(path, text)
    if path != "-":
        arrays = counted(len(layout.targets[0].arrays), "array")
        echo(f"{path}: {arrays} on {counted(len(layout.targets), 'target')}, {len(text):,} bytes")


def _check(path: str, plans: Sequence[ShardingPlan]) -> int:
    """Say what moved since the lock was written; return the exit code."""
    from shardspec.analysis.layouts import layout_of
    from shardspec.diagnostics import Diagnostic
    from shardspec.frontend.files import read_argument
    from shardspec.lock.lock_file import lock_text, read_lock

    if path == "-" or not os.path.exists(path):
        echo(f"there is no {path}: `shardspec lock` writes it", err=True)
        return FINDINGS
    layout = layout_of(plans[0].spec, plans)
    source = read_argument(path)
    if isinstance(source, Diagnostic):
        report([source])
        return FAILED
    if source.text.replace("\r\n", "\n") == lock_text(layout):
        echo(f"{path} is what the spec says.")
        return FINE
    locked = read_lock(source)
    if isinstance(locked, Diagnostic):
        report([locked])
        return FINDINGS
    from shardspec.analysis.layout_diff import diff_layouts, reasons_of
    from shardspec.lock.diff_forms import diff_lines

    moved = list(diff_lines(diff_layouts(locked, layout, why_after=reasons_of(plans))))
    for line in moved or ["no array moved; the files it was made from, or its text, did change"]:
        echo(line)
    echo(f"{path} is stale: `shardspec lock` writes it anew", err=True)
    return FINDINGS
