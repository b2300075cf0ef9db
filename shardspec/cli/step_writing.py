"""`shardspec cost --write-step`: lines of `step:` that say what code does, put into the spec."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_cost
from shardspec.analysis.step_time import SPREAD
from shardspec.cli.request import NO_ARRAYS, Request, has_errors
from shardspec.cli.steps import Tell, plan_on_target, with_step
from shardspec.cli.streams import FINDINGS, echo_data, fail, show
from shardspec.diagnostics.words import counted
from shardspec.fixing import Changed
from shardspec.language.formatting import with_section

if TYPE_CHECKING:
    from shardspec.ir.plan import ShardingPlan
    from shardspec.ir.step import Step
    from shardspec.jax_backend.entry_point import Call
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.jax_backend.step_lines.writing import WrittenStep

#: Keys of `step:` that a step which is extended may set otherwise.
_DEFAULTS = {"mode": "train", "microbatches": 1, "remat": "none", "attention": "flash"}


def write_step_of(
    step_name: str | None, request: Request, *, is_diff: bool, is_asked: bool, is_replacing: bool
) -> None:
    """Write `step:` of the code that `--step` names into the spec, or show what would change."""
    if not is_asked:
        given = "--diff" if is_diff else "--replace"
        fail(f"{given} says how --write-step goes about it", "say --write-step as well")
    step_name, plan = _step_and_plan(step_name, request)
    file = request.spec_file()
    if file == "-":
        fail("--write-step writes into a file", "name one: `shardspec cost spec.yaml ...`")
    own = plan.spec.step
    has_one = own is not None and own.span is not None and own.span.source is plan.spec.source
    if has_one and not (is_diff or is_replacing):
        help = "--replace writes over it; --diff shows what would change"
        fail(f"{file} has a `step:` already, which stays", help)
    (source,) = request.sources([file], inside=True)
    written, step = _traced(step_name, plan, request)
    fields = _with_defaults(written.fields, plan)
    text = with_section(source, "step", fields)
    if text is None:
        fail(f"`step:` of {file} cannot be replaced", "take it out by hand, then run this again")
    for place, why in dict.fromkeys(written.unwritten):
        show([f"not written: {why}, at {place}"], err=True)
    _compare(request, cost_of(plan, step), _stated(request, plan, file, text), file)
    changed = [Changed(file, source.text, text)] if text != source.text else []
    from shardspec.cli.edits import diff_text, write

    if is_diff:
        echo_data(diff_text(changed))
    else:
        write(changed)
        request.remark(f"{file}: `step:` written, {counted(len(fields['program']), 'line')}")


def _step_and_plan(step_name: str | None, request: Request) -> tuple[str, ShardingPlan]:
    """Return the step that is asked for, and the plan whose arrays its lines are held to."""
    if step_name is None:
        fail("--write-step without a step", "name its code: `--step train:step`")
    if request.phase is not None or request.output:
        fail("--write-step writes the spec's own `step:`, in place", "leave --phase and -o out")
    plan = plan_on_target(request, "no step is written", has_code=True)
    if not plan.arrays:
        message = "no step is written: lines are held to the code by arrays, and there are none"
        fail(message, NO_ARRAYS)
    return step_name, plan


def _traced(name: str, plan: ShardingPlan, request: Request) -> tuple[WrittenStep, Step]:
    paths = [each.path for each in plan.arrays if not each.is_state]

    def both(resolver: Resolver, call: Call, tell: Tell) -> tuple[WrittenStep, Step]:
        from shardspec.jax_backend.step.reading import traced_step
        from shardspec.jax_backend.step_lines.writing import written_step

        found, step = traced_step(resolver, call.function, call.args, call.kwargs)
        tell("naming what it computes")
        return written_step(resolver, found, paths), step

    return with_step(name, plan.spec, plan.target.name, request, both)


def _with_defaults(fields: dict[str, Any], plan: ShardingPlan) -> dict[str, Any]:
    """Return the keys to write: those too that the spec has otherwise from what it extends."""
    own = plan.spec.step
    is_own = own is None or own.span is None or own.span.source is plan.spec.source
    return fields if is_own else {**_DEFAULTS, **fields}


def _stated(request: Request, plan: ShardingPlan, file: str, text: str) -> Cost:
    """Return what the new text costs without the code; exit where its step has faults."""
    spec, faults = pipeline.load_path(
        file, request.settings, with_manifests=request.arrays is None,
        texts={os.path.realpath(file): text},
    )  # fmt: skip
    if has_errors(faults):
        request.report(faults)
        request.undone(f"{file} is left as it is: the lines cannot be read")
        raise SystemExit(FINDINGS)
    assert spec is not None
    targets = [each for each in spec.targets if each.name == plan.target.name]
    (again,) = pipeline.compile_plans(spec, request.params(spec), targets)
    found = pipeline.about(pipeline.findings(spec, [again]).shown, plan.target.name)
    odd = tuple(each for each in found if each.code.id == "SHD240")
    stated = stated_cost(again)
    request.report(odd)
    if stated.step is None or has_errors(odd):
        request.undone(f"{file} is left as it is: names do not say what the code does")
        raise SystemExit(FINDINGS)
    return stated


def _compare(request: Request, traced: Cost, stated: Cost, file: str) -> None:
    """Show both sides; exit where the lines are not what was traced."""
    from shardspec.report.cost_diff import off_by, written_lines

    show(written_lines(traced, stated))
    off, error = off_by(traced, stated), SPREAD["tpu"]
    if off > error:
        told = f"the lines are off by {off:.0%}, and {error:.0%} may be"
        request.error(
            f"{file} is left as it is: {told}", "price the code itself: leave --write-step out"
        )
        raise SystemExit(FINDINGS)
