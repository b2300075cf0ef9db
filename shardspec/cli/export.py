"""`shardspec export`: the rules or the plan of a spec for another tool."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.cli import options
from shardspec.cli.request import NO_ARRAYS, Request, has_errors
from shardspec.cli.streams import FAILED, FINDINGS, FINE, fail
from shardspec.diagnostics import Diagnostic, Severity
from shardspec.diagnostics.words import counted
from shardspec.foreign.formats import EXPORTS, Export, export_named, module_of
from shardspec.foreign.formats import Request as Order
from shardspec.ir.plan import ShardingPlan

_FORMATS = {each.name: each.title for each in EXPORTS}


@options.verb(
    "export",
    options.format_argument(_FORMATS),
    *options.ONE_PLAN,
    *options.GIVEN,
    *options.FINDINGS,
    *options.OUTPUT,
    options.flag("--resolved", "Only the rules that count on the target."),
    options.option("--axis", metavar="NAME", help="The mesh axis that a tp_plan is about."),
    options.flag("--lossy", "What the format cannot hold may be lost."),
    epilog=options.format_page(_FORMATS),
    example="shardspec export flax spec.yaml",
    page="migrating.md",
)
def command(request: Request, *, tool: str, resolved: bool, axis: str | None, lossy: bool) -> None:
    """Write the rules or the plan of a spec as another tool reads them.

    Rules that the format cannot express are reported, and the exit code is 1. If the other tool
    would shard an array differently from the plan, nothing is written. --lossy accepts both.
    """
    entry = export_named(tool)
    for flag, given in (("resolved", resolved), ("axis", axis)):
        if given and flag not in entry.options:
            fail(f"--{flag} means nothing for `{tool}`", "leave it out")
    plan = _plan(entry, request)
    text, found = module_of(entry).write(Order(plan, resolved, axis))
    found = list(request.heard(found))
    if lossy:
        found = [each.with_level(Severity.WARNING) for each in found]
    request.report(found)
    raise SystemExit(_finish(text, found, plan, request, lossy=lossy))


def _plan(entry: Export, request: Request) -> ShardingPlan:
    """Return the plan of one target; exit, after a report, where it has errors."""
    plan, found = request.plan()
    if entry.needs_arrays and not plan.arrays:
        fail(f"`{entry.name}` is made of the layouts of arrays, and the spec lists none", NO_ARRAYS)
    errors = [each for each in found if each.is_error]
    if errors:
        request.report(errors)
        request.undone("nothing is written: the plan has errors")
        raise SystemExit(FINDINGS)
    return plan


def _finish(
    text: str | None,
    found: Sequence[Diagnostic],
    plan: ShardingPlan,
    request: Request,
    *,
    lossy: bool,
) -> int:
    """Write the text where it may be; return the exit code."""
    if text is None:
        request.undone("nothing is written")
        return FAILED
    if has_errors(found):
        request.undone("nothing is written; --lossy writes it all the same")
        return FINDINGS
    request.write(text)
    if request.output not in (None, "-"):
        held = counted(len(plan.arrays), "array") if plan.arrays else "rules"
        request.remark(f"{request.output}: {held} on target {plan.target.name}")
    return FINDINGS if found and not lossy else FINE
