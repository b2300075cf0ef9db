"""`shardspec compile`: the table, or the plan as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.request import NO_ARRAYS, Request, has_errors, plans_and_findings, select
from shardspec.cli.streams import FINDINGS, echo, show, wants_color
from shardspec.diagnostics import Diagnostic
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec


@options.verb(
    "compile",
    *options.ONE_PLAN,
    *options.GIVEN,
    options.ONLY,
    *options.FINDINGS,
    options.format_option("text", "json"),
    *options.OUTPUT,
    options.flag("--list-presets", "Show the presets, one line each."),
    options.flag("--list-targets", "Show the targets of the spec."),
    example="shardspec compile spec.yaml",
    page="tutorial.md",
)
def command(request: Request, *, list_presets: bool, list_targets: bool) -> None:
    """Resolve every array on one target and print the table.

    Without --target that is the first; the others are checked too, so that a mistake does not
    wait for the next machine. -o writes the plan as JSON.
    """
    if list_presets:
        from shardspec.report.pages import list_lines

        show(list_lines("presets"))
        return
    spec, diagnostics = request.load()
    if list_targets:
        _print_targets(spec, diagnostics, request)
        return
    chosen = request.choose_target(spec, diagnostics)
    params = request.params(spec)
    diagnostics = pipeline.about(diagnostics, request.target)
    targets = None if request.target is None else [chosen]
    plans, found = plans_and_findings(spec, diagnostics, params, targets)
    is_broken = not chosen.is_sound or has_errors(found)
    if request.output and is_broken:
        request.undone(f"{request.output} is not written: the plan has errors")
    request.require_sound(chosen, found)
    plan = plans[0]
    if request.only is not None:
        plan = replace(plan, arrays=tuple(select(request.only, plan)))
    _print_plan(plan, plans, found, request)
    request.report(found)
    if not params:
        request.remark(f"the spec lists no arrays: {NO_ARRAYS}")
    if is_broken:
        raise SystemExit(FINDINGS)
    if request.output:
        request.write_to(request.output, _json(plan))


def _print_plan(
    plan: ShardingPlan,
    plans: Iterable[ShardingPlan],
    found: Iterable[Diagnostic],
    request: Request,
) -> None:
    """Print a plan, and where no array is left out whether those of all targets fit."""
    if request.form == "json":
        echo(_json(plan).rstrip("\n"))
    elif request.output != "-":
        from shardspec.report.table import memory_lines, table

        is_whole = request.only is None
        whole = pipeline.without_faults(plans, found) if is_whole else []
        sound = [each for each in whole if each.target.is_sound]
        lines = chain(table(plan, is_whole=is_whole, findings=found), memory_lines(sound))
        show(lines, color=wants_color(request.color))


def _json(plan: ShardingPlan) -> str:
    from shardspec.foreign.json_plan import plan_text

    return plan_text(plan)


def _print_targets(spec: Spec, diagnostics: Sequence[Diagnostic], request: Request) -> None:
    """Print the targets with their meshes; exit with 1 where one of them has none."""
    from shardspec.report.table import target_title

    sound = (target for target in spec.targets if target.is_sound)
    show(f"{target_title(target)}   mesh {target.mesh}" for target in sound)
    for target in spec.targets:
        request.require_sound(target, diagnostics)
