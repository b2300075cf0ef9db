"""`shardspec diff`: what moved between two specs, two locks, or two revisions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from shardspec import pipeline
from shardspec.analysis.layout_diff import Reasons, TargetDiff, diff_layouts, reasons_of
from shardspec.analysis.layouts import layout_of
from shardspec.cli import options
from shardspec.cli.discovery import find_spec
from shardspec.cli.session import (
    FAILED,
    FINDINGS,
    FINE,
    fail,
    load_or_exit,
    params_or_exit,
    report,
    sound_or_exit,
)
from shardspec.cli.streams import echo
from shardspec.diagnostics import Diagnostic
from shardspec.ir.grouping import counted
from shardspec.ir.layout import Layout

_GIT = "git:"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a diff.

    Attributes:
      reasons: None for a lock, which keeps none.
      errors: what is wrong with its plans; a lock was free of errors when it was made.
    """

    name: str
    layout: Layout = field(repr=False)
    reasons: Reasons | None = field(default=None, repr=False)
    errors: tuple[Diagnostic, ...] = ()


@click.command("diff")
@click.argument("old")
@click.argument("new", required=False)
@options.spec_option
@options.target_option
@options.params_option
@options.color_option
@options.format_option("text", "md", "json")
@click.option(
    "--fail-on",
    "limits",
    metavar="WHAT",
    multiple=True,
    help="Exit 1 only for this: memory+5%, memory+64MiB, reshard, or change.",
)
def command(
    old: str,
    new: str | None,
    spec_name: str | None,
    target: str | None,
    manifest: str | None,
    color: str,
    output_format: str,
    limits: Sequence[str],
) -> None:
    """Show what moved, the line that moved it, and what a restore would have to reshard.

    OLD and NEW are specs, locks (`spec.lock`), or `git:REV` for the other side's file at a
    revision (`git:REV:PATH` for another). NEW left out is the spec of this project, as the other
    verbs find it; which one that is is said.
    """
    from shardspec.cli.diff_limits import parse_limit, tripped

    parsed = [parse_limit(text) for text in limits]
    if new is None:
        new = find_spec(spec_name)
        _tell_of_found(old, new, is_named=spec_name is not None)
    before = _side(_at_revision(old, new), manifest, color)
    after = _side(_at_revision(new, old), manifest, color)
    diffs = diff_layouts(before.layout, after.layout, before.reasons, after.reasons)
    diffs = _of_target(diffs, target)
    limits_or_any = parsed or [parse_limit("change")]
    failed = [said for limit in limits_or_any if (said := tripped(limit, diffs)) is not None]
    if after.errors:
        failed.append(f"errors: {after.name} has {counted(len(after.errors), 'error')}")
    _print(diffs, before, after, output_format, failed)
    _report_errors(before, after, color)
    for said in failed:
        echo(f"exit {FINDINGS} for {said}", err=True)
    raise SystemExit(FINDINGS if failed else FINE)


def _tell_of_found(old: str, new: str, *, is_named: bool) -> None:
    """Say what a single name is compared with; a lock or a revision has its own spec."""
    if is_named or old.startswith(_GIT):
        return
    if os.path.realpath(old) == os.path.realpath(new):
        help = f"name what to compare it with, as in `shardspec diff git:HEAD {new}`"
        fail(f"{old} is the spec of this project, so both sides are one", help)
    echo(
        f"compared with {new}, the spec found here: `shardspec diff {old} OTHER` names another",
        err=True,
    )


def _report_errors(before: Side, after: Side, color: str) -> None:
    """Say on stderr what is wrong with either side: a broken plan may well be the same plan."""
    report(after.errors, color)
    if before.errors:
        echo(f"{before.name} has {counted(len(before.errors), 'error')} of its own", err=True)


def _at_revision(name: str, other: str) -> str:
    """Return `git:REV` with the path of the other side."""
    if not name.startswith(_GIT) or ":" in name.removeprefix(_GIT):
        return name
    if other.startswith(_GIT):
        raise click.UsageError(f"`{name}` of which file? as in `{name}:spec.yaml`")
    return f"{name}:./{os.path.relpath(other)}"


def _side(name: str, manifest: str | None, color: str) -> Side:
    if name.endswith(".lock"):
        return _locked(name)
    spec, diagnostics = load_or_exit(name, {}, color, with_manifests=manifest is None)
    faults = [diagnostic for diagnostic in diagnostics if diagnostic.is_error]
    if faults:
        report(faults, color)
        raise SystemExit(FAILED)
    plans = pipeline.compile_plans(spec, params_or_exit(spec, manifest))
    if not plans:
        fail(f"{name} has no target", "add `mesh: {data: 8}`, or `targets:` with a mesh each")
    for target in spec.targets:
        sound_or_exit(target, diagnostics, color)
    found = pipeline.findings(spec, plans)
    errors = tuple(diagnostic for diagnostic in found if diagnostic.is_error)
    return Side(name, layout_of(spec, plans), reasons_of(plans), errors)


def _locked(name: str) -> Side:
    from shardspec.frontend.files import read_argument
    from shardspec.lock.lock_file import read_lock

    source = read_argument(name)
    layout = source if isinstance(source, Diagnostic) else read_lock(source)
    if isinstance(layout, Diagnostic):
        report([layout])
        raise SystemExit(FAILED)
    return Side(name, layout)


def _of_target(diffs: tuple[TargetDiff, ...], name: str | None) -> tuple[TargetDiff, ...]:
    if name is None:
        return diffs
    found = tuple(diff for diff in diffs if diff.name == name)
    if not found:
        fail(f"no target is called `{name}`", f"targets: {', '.join(diff.name for diff in diffs)}")
    return found


def _print(
    diffs: tuple[TargetDiff, ...],
    before: Side,
    after: Side,
    output_format: str,
    failed: Sequence[str],
) -> None:
    if output_format == "json":
        from shardspec.lock.diff_forms import diff_text

        echo(diff_text(diffs, before.name, after.name, failed).rstrip("\n"))
        return
    if output_format == "md":
        from shardspec.lock.diff_forms import markdown_lines

        lines = list(markdown_lines(diffs, before.name, after.name))
    else:
        from shardspec.lock.diff_forms import diff_lines

        lines = list(diff_lines(diffs))
        if lines:
            lines = [f"{before.name} -> {after.name}", "", *lines]
        else:
            lines = [f"{after.name} places every array as {before.name}."]
    for line in lines:
        echo(line)
