"""`shardspec search --step` of a spec without `step:`: the lines that the code lacks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.steps import Tell, plan_on_target, step_and_folder, with_step
from shardspec.cli.streams import (
    FAILED,
    FINDINGS,
    FINE,
    echo,
    fail,
    progress,
    show,
    width_of,
    write_file,
)
from shardspec.cure.figures import Figures
from shardspec.cure.patching import Refused, diff_of
from shardspec.cure.searching import MOST, Trial
from shardspec.cure.telling import Report, Tried, ordered, report_lines, report_text
from shardspec.diagnostics.lines import fitted
from shardspec.report.search import WIDTH

if TYPE_CHECKING:
    from shardspec.jax_backend.cure.again import Asked
    from shardspec.jax_backend.cure.curing import Again, Search
    from shardspec.jax_backend.entry_point import Call
    from shardspec.jax_backend.resolver import Resolver

#: Answers that are written into the code, traced again and compiled.
_MOST_TRIED = 3
_WORD = "constraints"

#: How lines that code lacks are searched for.
CURE = (
    options.option(
        "--patch",
        metavar="FILE",
        help="Write the lines as a diff for `git apply`; `-` for stdout. The code stays as it is.",
    ),
    options.option(
        "--within",
        "within_s",
        type=click.FloatRange(min=1, max=86400),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="How long lines are searched for.",
    ),
    options.flag("--no-compile", "Show the model's figures; no compiler is asked."),
)


def is_of_code(request: Request, step_name: str | None, over: str | None) -> bool:
    """Say whether lines of code are searched for: there is a step of code, and no other.

    It fails where an option was given that this search has no use for.
    """
    request.require_place()
    is_code = _is_of_code(request, step_name, over)
    context = click.get_current_context()
    others = _OF_MESHES if is_code else _OF_CODE
    for each in context.command.params:
        if each.name in others and context.get_parameter_source(each.name) in _STATED:
            what = "meshes, which needs `step:` in the spec" if is_code else "code, by `--step`"
            fail(f"{each.opts[0]} is of a search over {what}", "leave it out")
    return is_code


def _is_of_code(request: Request, step_name: str | None, over: str | None) -> bool:
    words = [] if over is None else [word.strip() for word in over.split(",")]
    others = ", ".join(word for word in words if word != _WORD)
    if step_name is None:
        if _WORD in words:
            fail("--over constraints needs code to trace", "name it: `--step train:step`")
        return False
    if _WORD in words and others:
        fail(f"--over {others} is of a `step:` in the spec", "search one after the other")
    if _WORD in words:
        return True
    is_stated = request.load()[0].step is not None
    if others and not is_stated:
        fail(f"--over {others} is of a `step:` in the spec", "leave it out, or write one")
    return not is_stated


#: Options of a search over meshes, which a search over code has no use for.
_OF_MESHES = frozenset(
    (
        *("keep", "machines", "prices", "max_chips", "fits", "per_device_batch", "by", "pareto"),
        *("most", "write", "confirm", "verify", "measured"),
    )
)
_OF_CODE = frozenset(each.name for each in CURE)


_STATED = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def cured(
    request: Request,
    step_name: str,
    *,
    top: int,
    patch: str | None,
    within_s: float,
    no_compile: bool,
) -> int:
    """Search, try and show the lines that a step lacks; return the exit status."""
    plan = plan_on_target(request, "nothing is searched", is_told=False, has_code=True)
    name, folder = step_and_folder(step_name)
    here = os.getcwd()

    def work(resolver: Resolver, call: Call, tell: Tell) -> Search:
        from shardspec.jax_backend.cure.curing import search

        return search(resolver, call, here, most=MOST, within_s=within_s, tell=tell)

    found = with_step(step_name, plan.spec, plan.target.name, request, work)
    from shardspec.jax_backend.cure.again import Asked

    asked = Asked(plan.spec, plan.target.name, name, folder, {})
    with progress(is_quiet=request.is_quiet) as tell:
        most = min(top, _MOST_TRIED)
        report = _tried(found, asked, most, request, tell, is_compiled=not no_compile)
    diff = _diff(report, here)
    _print(report, diff, request, is_data=patch == "-")
    if patch is not None:
        _write(diff, patch, request)
    if report.found is None:
        return FAILED
    after = report.best or report.base
    return FINDINGS if after.figures.fits is False else FINE


def _tried(
    found: Search, asked: Asked, most: int, request: Request, tell: Tell, *, is_compiled: bool
) -> Report:
    """Return the best answers as they are once they are written, traced and compiled."""
    from shardspec.jax_backend.cure.curing import again, compiled
    from shardspec.jax_backend.xla.compiling import most_at_once

    answers = found.found.answers[:most] if found.found is not None else ()
    reload = partial(request.reload, asked.spec.source.name)

    def traced(answer: tuple[Trial, Figures]) -> Again:
        return again(found, *answer, asked, reload)

    tell("tracing the best again")
    with ThreadPoolExecutor(most_at_once()) as pool:
        lowered = [found.now, *pool.map(traced, answers)]
        if is_compiled and len(lowered) > 1:
            tell("compiling the best")
            base, *others = pool.map(lambda each: compiled(each, _TIMEOUT_S), lowered)
        else:
            base, *others = (each.tried for each in lowered)
    base, others = _alike(base, others, lowered)
    return Report(
        base,
        ordered(others),
        found.found,
        found.beyond,
        found.trials,
        found.late,
        found.seconds,
    )


_TIMEOUT_S = 300.0


def _alike(base: Tried, others: list[Tried], lowered: list[Again]) -> tuple[Tried, list[Tried]]:
    """Return figures of one authority: the model's of all, where the compiler lacks one."""
    known = [each.cost for each in (base, *others) if each.cost is not None]
    if len({each.basis for each in known}) < 2:
        return base, others
    why = next(each.why for each in (base, *others) if each.why)
    first, *rest = (replace(each.tried, why=each.tried.why or why) for each in lowered)
    return first, rest


def _diff(report: Report, folder: str) -> str:
    """Return the best lines as a diff; empty where there are none."""
    best = report.best
    if best is None or isinstance(best.patches, Refused):
        return ""
    return diff_of(best.patches, folder)


def _print(report: Report, diff: str, request: Request, *, is_data: bool) -> None:
    text = report_text(report, diff)
    if request.output:
        request.write_to(request.output, text)
    if request.form == "json":
        if request.output != "-":
            echo(text.rstrip("\n"))
    elif request.output != "-":
        show(fitted(report_lines(report), width_of() or WIDTH), err=is_data)
    why = report.best.why if report.best is not None else ""
    if why:
        request.remark(f"not compiled: {why}")


def _write(diff: str, patch: str, request: Request) -> None:
    if not diff:
        request.undone(f"{patch} is not written: there is nothing to add")
        return
    write_file(patch, diff)
    if patch != "-":
        request.remark(f"{patch}: written; `git apply {patch}` changes the code")
