"""`shardspec compile`: the table, or the plan as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.session import (
    FINDINGS,
    has_errors,
    load_or_exit,
    params_or_exit,
    plans_and_findings,
    report,
    sound_or_exit,
    target_or_exit,
    write_file,
)
from shardspec.cli.streams import echo
from shardspec.diagnostics import Diagnostic
from shardspec.ir.param import Params
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec


@click.command("compile")
@click.argument("spec_file", required=False)
@options.spec_option
@options.target_option
@options.params_option
@options.set_option
@options.format_option("text", "json")
@options.color_option
@click.option("--select", metavar="GLOB", help="Only arrays whose path matches.")
@click.option("-o", "--output", metavar="FILE", help="Write the plan as JSON; `-` is stdout.")
@click.option("--list-presets", is_flag=True, help="Show the presets, one line each.")
@click.option("--list-targets", is_flag=True, help="Show the targets of the spec.")
def command(
    spec_file: str | None,
    spec_name: str | None,
    target: str | None,
    manifest: str | None,
    settings: Mapping[str, str],
    output_format: str,
    color: str,
    select: str | None,
    output: str | None,
    list_presets: bool,
    list_targets: bool,
) -> None:
    """Resolve every array on one target and print the table.

    Without --target that is the first; the others are checked too, so that a mistake does not
    wait for the next machine.
    """
    if list_presets:
        _print_presets()
        return
    if spec_file and spec_name:
        raise click.UsageError(f"two specs: {spec_file} and --spec {spec_name}")
    if output == "":
        raise click.UsageError("-o names no file")
    spec, diagnostics = load_or_exit(
        spec_file or spec_name, settings, color, with_manifests=manifest is None
    )
    if list_targets:
        _print_targets(spec, diagnostics, color)
        return
    chosen = target_or_exit(spec, target, diagnostics)
    params = params_or_exit(spec, manifest)
    diagnostics = pipeline.about(diagnostics, target)
    targets = None if target is None else [chosen]
    plans, found = plans_and_findings(spec, diagnostics, params, targets)
    if output and not chosen.is_sound:
        echo(f"{output} is not written: the plan has errors", err=True)
    sound_or_exit(chosen, found, color)
    plan = plans[0] if select is None else _selected(plans[0], select)
    _print_plan(plan, output_format, output)
    report(found, color)
    _finish(plan, params, output, has_errors(found))


def _finish(plan: ShardingPlan, params: Params, output: str | None, failed: bool) -> None:
    """Write the plan where it is asked for and sound; exit with 1 where it is not."""
    if not params:
        echo("the spec lists no arrays: add `arrays:` or `manifest:`, or pass --params", err=True)
    if failed:
        if output:
            echo(f"{output} is not written: the plan has errors", err=True)
        raise SystemExit(FINDINGS)
    if output:
        from shardspec.foreign.json_plan import plan_text

        write_file(output, plan_text(plan))


def _print_plan(plan: ShardingPlan, output_format: str, output: str | None) -> None:
    if output_format == "json":
        from shardspec.foreign.json_plan import plan_text

        echo(plan_text(plan).rstrip("\n"))
    elif output != "-":
        from shardspec.report.table import table

        for line in table(plan):
            echo(line)


def _selected(plan: ShardingPlan, select: str) -> ShardingPlan:
    from shardspec.cli.selection import select_or_exit

    kept = tuple(select_or_exit(select, plan))
    return ShardingPlan(plan.spec, plan.target, kept, plan.activations)


def _print_targets(spec: Spec, diagnostics: Sequence[Diagnostic], color: str) -> None:
    """Print the targets with their meshes; exit with 1 where one of them has none."""
    from shardspec.report.table import target_title

    for target in spec.targets:
        if target.is_sound:
            echo(f"{target_title(target)}   mesh {target.mesh}")
    for target in spec.targets:
        sound_or_exit(target, diagnostics, color)


def _print_presets() -> None:
    from shardspec import assets
    from shardspec.frontend.presets import preset_doc

    names = assets.spec_names("presets")
    width = max((len(name) for name in names), default=0)
    for name in names:
        echo(f"{name:<{width}}   {preset_doc(name)}".rstrip())
