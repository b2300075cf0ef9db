"""`shardspec cost`: what a device holds, and what a step of the user's own code sends and takes."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace

import click

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.traffic import BY, By, names_in
from shardspec.cli import options
from shardspec.cli.discovery import project_setting
from shardspec.cli.request import (
    Request,
    has_errors,
    matching,
    plans_and_findings,
    select,
    unknown_path,
)
from shardspec.cli.streams import FAILED, FINDINGS, echo, fail, progress, show, width_of, write_file
from shardspec.diagnostics import ShardspecError
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import Step

#: What `--step` stands for without a value.
_OF_PROJECT = "[tool.shardspec] step"
_AS_IN = "as in `--step train:step`, where `def step(resolver): return train_step, (state, batch)`"
_TOKENS = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,6})?)\s*(?P<unit>[KMBT]?)", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _tokens(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Return the number that `4M` is."""
    if text is None:
        return None
    found = _TOKENS.fullmatch(text.strip())
    number = 0 if found is None else float(found["number"]) * _UNITS[found["unit"].upper()]
    if not 1 <= number <= 10**18:
        fail(f"--tokens {text} is no number of tokens", "as in `--tokens 4194304`, `--tokens 4M`")
    return round(number)


@options.verb(
    "cost",
    *options.ONE_SPEC,
    options.TARGET,
    options.option(
        "--step",
        "step_name",
        metavar="MODULE:FUNCTION",
        is_flag=False,
        flag_value=_OF_PROJECT,
        help="Import this, which runs its code, and trace the step that it makes of a `Resolver`;"
        " alone, the one that `[tool.shardspec] step` of pyproject.toml names.",
    ),
    options.ARRAYS,
    options.SET,
    options.ONLY,
    *options.FINDINGS,
    options.format_option("text", "json"),
    options.option(
        "--by",
        type=click.Choice(BY),
        default="op",
        show_default=True,
        help="What a row of what is sent is: an operation, a mesh axis, a line of the code, a rule"
        " of the spec, an array.",
    ),
    options.option(
        "--top",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        metavar="N",
        help="Rows of what is sent.",
    ),
    options.option(
        "--tokens",
        metavar="N",
        callback=_tokens,
        help="Tokens of a step, on all devices: `4M`; else read off the batch.",
    ),
    options.OUTPUT,
)
def command(
    request: Request, *, step_name: str | None, by: By, top: int, tokens: int | None
) -> None:
    """Show what a device holds, and what a step sends and takes.

    A step is what one call of a function does: `--step train:step` imports `train` and calls
    `step(resolver)`, which returns the function and its arguments, arrays or `ShapeDtypeStruct`s:
    `function, args` or `function, args, kwargs`. It is traced for the target, which need not be
    here. Without a step, it is the memory of parameters and of `state:`. -o saves it as JSON, for
    `explain --cost`.
    """
    plan = _plan(request)
    if step_name is not None:
        step = _step(*_named(step_name), plan, request)
    else:
        step = None
        if request.only is not None:
            plan = replace(plan, arrays=tuple(select(request.only, plan)))
    found = cost_of(plan, step, tokens=tokens)
    _print(found, request, by, top)
    if step is None:
        told = "what a step adds: activations, temporaries, time, and what is sent and why"
        request.remark(f"\n{told}: --step MODULE:FUNCTION")


def _plan(request: Request) -> ShardingPlan:
    """Return the plan on the target that is meant; exit where it has errors."""
    spec, diagnostics = request.load()
    chosen = request.choose_target(spec, diagnostics)
    params = request.params(spec)
    diagnostics = pipeline.about(diagnostics, chosen.name)
    plans, found = plans_and_findings(spec, diagnostics, params, [chosen])
    request.require_sound(chosen, found)
    request.report(found)
    if has_errors(found):
        request.remark(f"no cost is worked out: {spec.source.name} has errors")
        raise SystemExit(FINDINGS)
    count = len(spec.targets)
    if request.target is None and count > 1:
        request.remark(f"target {chosen.name}; --target shows another of {count}")
    return plans[0]


# the step


def _named(name: str) -> tuple[str, str]:
    """Return the name of what makes the step, and the folder where its module is looked for."""
    from shardspec.arrays.reader import is_entry_point

    folder = os.getcwd()
    where = f"--step `{name}`"
    if name == _OF_PROJECT:
        found = project_setting("step", "train:step")
        if found is None:
            help = 'name one, `--step train:step`, or write `step = "train:step"` there'
            fail("no pyproject.toml here or above has `[tool.shardspec] step`", help)
        name, folder = found.value, str(found.folder)
        where = f"`{_OF_PROJECT}` in {found.shown}, `{name}`,"
    if not is_entry_point(name):
        fail(f"{where} is not MODULE:FUNCTION", _AS_IN)
    return name, folder


def _step(name: str, folder: str, plan: ShardingPlan, request: Request) -> Step:
    """Return the traced step; exit where its code, or the spec under it, has faults."""
    request.remark(f"{name}: importing it, which runs its code")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no accelerator is needed, or taken from a run
    started = time.monotonic()
    try:
        with progress(is_quiet=request.is_quiet) as tell:
            tell("loading jax")
            from shardspec.jax_backend.entry_point import step_at
            from shardspec.jax_backend.resolver import Resolver

            spec, target = plan.spec, plan.target.name
            resolver = Resolver(spec, target, devices="abstract", agree_within_s=None)
            step = step_at(name, folder, resolver, tell)
    except ShardspecError as error:
        request.report(error.diagnostics)
        raise SystemExit(FAILED) from None
    request.remark(f"{name}: traced in {time.monotonic() - started:.1f} s")
    return step


# what is printed


def _print(cost: Cost, request: Request, by: By, top: int) -> None:
    from shardspec.diagnostics.lines import fitted
    from shardspec.report.cost import WIDTH, cost_lines

    arrays = None
    if request.only is not None and cost.step is not None:
        arrays = _chosen(request.only, cost.step)
    if request.form == "json" or request.output:
        from shardspec.report.cost_json import cost_text

    if request.output:
        write_file(request.output, cost_text(cost, arrays, date=time.strftime("%Y-%m-%d")))
    if request.form == "json":
        if request.output != "-":
            echo(cost_text(cost, arrays).rstrip("\n"))
    elif request.output != "-":
        show(fitted(cost_lines(cost, by, top=top, arrays=arrays), width_of() or WIDTH))


def _chosen(only: str, step: Step) -> frozenset[str]:
    """Return the arrays that are asked for, of those that the step is given or sends."""
    names = {name for each in step.collectives for name in names_in(each)}
    names |= {each.path for each in step.arguments if each.path}
    return matching(only, names) or unknown_path(only, sorted(names))
