"""`shardspec mesh`: which devices each mesh axis runs over, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.session import (
    FINDINGS,
    fail,
    load_or_exit,
    report,
    sound_or_exit,
    target_or_exit,
    wants_color,
    write_file,
)
from shardspec.cli.streams import echo
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Target
from shardspec.topology.placement import Order, Placement, place


@click.command("mesh")
@click.argument("spec_file", required=False)
@options.spec_option
@options.target_option
@options.set_option
@options.format_option("text", "json", "svg")
@options.color_option
@click.option(
    "--order",
    type=click.Choice(["t5x", "ring"]),
    help="How an axis counts the chips of its tile: row by row, or along a ring. It beats the"
    " spec's `policy: {order: ..}`; else t5x.",
)
@click.option("--compare", is_flag=True, help="The spec as it is, beside the one with --set.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write to FILE.")
def command(
    spec_file: str | None,
    spec_name: str | None,
    target: str | None,
    settings: Mapping[str, str],
    output_format: str,
    color: str,
    order: Order | None,
    compare: bool,
    output: str,
) -> None:
    """Show which devices each mesh axis runs over, and what that costs."""
    if compare and not settings:
        fail(
            "--compare needs something to compare with", "add `--set 'mesh.model=submesh 2x2x4x1'`"
        )
    if compare and output_format != "text":
        fail(f"--compare prints text, not {output_format}")
    name = spec_file or spec_name
    chosen, placement = _placed(name, target, settings, order, color)
    if compare:
        from shardspec.report.mesh_text import compare_lines

        lines = compare_lines(_placed(name, target, {}, order, color), (chosen, placement))
        write_file(output, "\n".join(lines) + "\n")
    elif output_format == "text":
        from shardspec.report.mesh_text import mesh_lines

        paint = wants_color(color if output == "-" or color == "always" else "never")
        lines = mesh_lines(chosen, placement, color=paint)
        write_file(output, "\n".join(lines) + "\n", is_painted=True)
    else:
        write_file(output, _data(chosen, placement, output_format))


def _placed(
    name: str | None,
    target: str | None,
    settings: Mapping[str, str],
    order: Order | None,
    color: str,
) -> tuple[Target, Placement]:
    """Return the target and its placement; exit where there is none."""
    spec, diagnostics = load_or_exit(name, settings, color)
    chosen = target_or_exit(spec, target, diagnostics)
    sound_or_exit(chosen, pipeline.about(diagnostics, chosen.name), color)
    placement = place(chosen, order or spec.policy.order)
    if isinstance(placement, Diagnostic):
        report((*diagnostics, *_unsaid(placement, diagnostics)), color)
        raise SystemExit(FINDINGS)
    others = [each.name for each in spec.targets if each.name != chosen.name]
    if target is None and others:
        echo(f"target {chosen.name}; also there: {', '.join(others)} (--target)", err=True)
    return chosen, placement


def _unsaid(fault: Diagnostic, said: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the fault, or nothing where the spec's own checks point at the same place."""
    places = {(other.code, other.primary.span) for other in said if other.primary}
    known = fault.primary is not None and (fault.code, fault.primary.span) in places
    return () if known else (fault,)


def _data(target: Target, placement: Placement, output_format: str) -> str:
    if output_format == "json":
        from shardspec.report.mesh_json import mesh_json

        return mesh_json(target, placement) + "\n"
    from shardspec.report.mesh_svg import mesh_svg

    return mesh_svg(target, placement)
