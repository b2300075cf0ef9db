"""`shardspec export`: the rules or the plan of a spec for another tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from shardspec import pipeline
from shardspec.cli import options
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
from shardspec.diagnostics import Diagnostic, Severity
from shardspec.foreign.exported import Request
from shardspec.foreign.registry import EXPORTS, Export, export_named, module_of
from shardspec.ir.grouping import counted
from shardspec.ir.plan import ShardingPlan

_FORMATS = "\n".join(f"  {entry.name:<11} {entry.title}" for entry in EXPORTS)


@click.command("export", epilog=f"\b\nFormats:\n{_FORMATS}")
@click.argument("format_name", metavar="FORMAT", type=click.Choice([e.name for e in EXPORTS]))
@click.argument("spec_file", required=False, metavar="[SPEC]")
@options.spec_option
@options.target_option
@options.params_option
@options.set_option
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write it.")
@click.option("--resolved", is_flag=True, help="Only the rules that count on the target.")
@click.option("--axis", metavar="NAME", help="The mesh axis that a tp_plan is about.")
@click.option("--lossy", is_flag=True, help="What the format cannot hold may be lost.")
@options.color_option
def command(
    format_name: str,
    spec_file: str | None,
    spec_name: str | None,
    target: str | None,
    manifest: str | None,
    settings: Mapping[str, str],
    output: str,
    resolved: bool,
    axis: str | None,
    lossy: bool,
    color: str,
) -> None:
    """Write the rules or the plan of a spec as another tool reads them.

    What the format has no place for is said, and the exit code is 1. Where the file would lay an
    array out otherwise than the plan does, nothing is written. --lossy accepts both.
    """
    entry = export_named(format_name)
    for flag, given in (("resolved", resolved), ("axis", axis)):
        if given and flag not in entry.options:
            raise click.UsageError(f"--{flag} means nothing for `{entry.name}`")
    if spec_file and spec_name:
        raise click.UsageError(f"two specs: {spec_file} and --spec {spec_name}")
    plan = _plan(entry, spec_file or spec_name, settings, manifest, target, color)
    text, found = module_of(entry).write(Request(plan, resolved, axis))
    if lossy:
        found = [each.with_level(Severity.WARNING) for each in found]
    report(found, color)
    raise SystemExit(_finish(text, found, output, plan, lossy))


def _plan(
    entry: Export,
    name: str | None,
    settings: Mapping[str, str],
    manifest: str | None,
    target: str | None,
    color: str,
) -> ShardingPlan:
    """Return the plan of one target; exit, after a report, where it has errors."""
    spec, diagnostics = load_or_exit(name, settings, color, with_manifests=manifest is None)
    chosen = target_or_exit(spec, target, diagnostics)
    params = params_or_exit(spec, manifest)
    if entry.needs_arrays and not params:
        fail(
            f"`{entry.name}` is made of the layouts of arrays, and the spec lists none",
            "add `arrays:` or `manifest:`, or pass --params",
        )
    diagnostics = pipeline.about(diagnostics, chosen.name)
    plans, found = plans_and_findings(spec, diagnostics, params, [chosen])
    errors = [each for each in found if each.is_error]
    if errors:
        report(errors, color)
        echo("nothing is written: the plan has errors", err=True)
        raise SystemExit(FINDINGS)
    return plans[0]


def _finish(
    text: str | None, found: Sequence[Diagnostic], output: str, plan: ShardingPlan, lossy: bool
) -> int:
    """Write the text where it may be; return the exit code."""
    if text is None:
        echo("nothing is written", err=True)
        return FAILED
    if has_errors(found):
        echo("nothing is written; --lossy writes it all the same", err=True)
        return FINDINGS
    write_file(output, text)
    if output != "-":
        arrays = counted(len(plan.params), "array")
        echo(f"{output}: {arrays} on target {plan.target.name}", err=True)
    return FINDINGS if found and not lossy else FINE
