"""`shardspec mesh`: which devices each mesh axis runs over, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import FINDINGS, fail, wants_color
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Target
from shardspec.report.mesh import compare_lines, mesh_json, mesh_lines, mesh_svg
from shardspec.topology.placement import Order, Placement, place


@options.verb(
    "mesh",
    *options.ONE_PLAN,
    options.SET,
    *options.FINDINGS,
    options.format_option("text", "json", "svg"),
    options.option(
        "--order",
        type=click.Choice(["t5x", "ring"]),
        help="How an axis counts the chips of its tile: row by row, or along a ring. It beats the"
        " spec's `policy: {order: ..}`; else t5x.",
    ),
    options.flag("--compare", "The spec as it is, beside the one with --set."),
    *options.OUTPUT,
    example="shardspec mesh spec.yaml",
    page="mesh.md",
)
def command(request: Request, *, order: Order | None, compare: bool) -> None:
    """Show which devices each mesh axis runs over, and what that costs."""
    if compare and not request.settings:
        help = "as in `--set 'mesh.model=submesh 2x2x4x1'`"
        fail("--compare needs something to compare with", help)
    if compare and request.form != "text":
        fail(f"--compare prints text, not {request.form}", "leave --format out")
    chosen, placement = _placed(request, order)
    if compare:
        plain = _placed(replace(request, settings={}), order)
        request.show(compare_lines(plain, (chosen, placement)))
    elif request.form == "text":
        is_file = request.output not in (None, "-")
        paint = wants_color("never" if is_file and request.color == "auto" else request.color)
        request.show(mesh_lines(chosen, placement, color=paint), is_painted=True)
    else:
        is_json = request.form == "json"
        text = f"{mesh_json(chosen, placement)}\n" if is_json else mesh_svg(chosen, placement)
        request.write(text)


def _placed(request: Request, order: Order | None) -> tuple[Target, Placement]:
    """Return the target and its placement; exit where there is none."""
    spec, diagnostics = request.load()
    chosen = request.choose_target(spec, diagnostics)
    request.require_sound(chosen, pipeline.about(diagnostics, chosen.name))
    placement = place(chosen, order or spec.policy.order)
    if isinstance(placement, Diagnostic):
        request.report((*diagnostics, *_unsaid(placement, diagnostics)))
        raise SystemExit(FINDINGS)
    others = [each.name for each in spec.targets if each.name != chosen.name]
    if request.target is None and others:
        request.remark(f"target {chosen.name}; also there: {', '.join(others)} (--target)")
    return chosen, placement


def _unsaid(fault: Diagnostic, said: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the fault, or nothing where the spec's own checks point at the same place."""
    places = {(other.code, other.primary.span) for other in said if other.primary}
    known = fault.primary is not None and (fault.code, fault.primary.span) in places
    return () if known else (fault,)
