"""`shardspec cost`: what a device holds, and what a step of the user's own code sends and takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import click

from shardspec import pipeline
from shardspec.analysis.comparison import BY, By, Comparison, names_in
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_cost
from shardspec.cli import options, steps
from shardspec.cli.request import Request, has_errors, matching, select, unknown_path
from shardspec.cli.streams import FINDINGS, FINE, echo, fail, rows_of_terminal, show, width_of
from shardspec.ir.step import Step
from shardspec.language.grammar.step_lines import parse_count


def _tokens(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Return the number that `4M` is."""
    if text is None:
        return None
    found = parse_count(text)
    if not isinstance(found, int):
        fail(f"--tokens {text} is no number of tokens", "as in `--tokens 4194304`, `--tokens 4M`")
    return found


@options.verb(
    "cost",
    *options.ONE_PLAN,
    steps.STEP,
    *options.GIVEN,
    options.ONLY,
    *options.FINDINGS,
    options.format_option("text", "json", "perfetto"),
    options.choice_option(
        "--by",
        of=BY,
        help="Group what is sent by operation, mesh axis, line of the code, rule of the spec, or"
        " array.",
    ),
    options.top("Rows of what is sent."),
    options.option(
        "--tokens",
        metavar="N",
        callback=_tokens,
        help="Tokens of a step, on all devices: `4M`; else read off the batch.",
    ),
    *steps.BASIS,
    steps.MEASURED,
    *options.OUTPUT,
    example="shardspec cost spec.yaml --by axis",
    page="cost.md",
)
def command(
    request: Request,
    *,
    by: By,
    top: int,
    measured: steps.Measured | None,
) -> None:
    """Show what a device holds, and what a step sends and takes.

    A step is what one call of a function does: `--step train:step` imports `train` and calls
    `step(resolver)`, which returns the function and its arguments, arrays or `ShapeDtypeStruct`s:
    `function, args` or `function, args, kwargs`. It is traced for the target, which need not be
    here, and compiled by the target's compiler where that is installed (`--basis`). Without
    `--step` it is the step that the spec's own `step:` states; without either, the
    memory of parameters and of `state:`. -o saves it as JSON, for `explain --cost`.
    """
    request.require_place()
    draft = _Draft(request, by, top, is_shown=measured is None)
    if measured is not None and measured.run and measured.target is not None:
        request = replace(request, target=measured.target)
    found = _found(request, draft.show)
    compared = None
    if measured is not None and measured.run:
        compared = steps.comparison(measured.run, found, request)
    elif measured is not None:
        found = steps.held_to(measured, found, request, lambda at: _found(at, None))
    draft.take_away()
    _print(found, request, by, top, compared)
    if found.step is None:
        told = "what a step adds: activations, temporaries, time, and what is sent and why"
        request.remark(f"\n{told}: --step MODULE:FUNCTION, or `step:` in the spec")
        return
    faults = pipeline.step_findings([found])
    request.report(faults)
    raise SystemExit(FINDINGS if has_errors(faults) else FINE)


def _found(request: Request, shown: Callable[[Cost], None] | None) -> Cost:
    """Return the cost on the target that is meant, with the step where there is one.

    Args:
      shown: gets the model's cost while a compiler works; None prints neither that nor findings.
    """
    has_code = request.step_name is not None
    plan = steps.plan_on_target(
        request,
        "no cost is worked out",
        is_told=shown is not None,
        has_code=has_code,
        is_priced=not has_code,
    )
    if has_code:
        show = shown or (lambda cost: None)
        (found,) = steps.step_costs((plan,), request, shown=show)
        return found
    found = stated_cost(plan, tokens=request.tokens)
    if found.step is not None and request.basis == "compiler":
        (compiled,) = steps.step_costs((plan,), request)
        found = replace(compiled, uneven=found.uneven)
    elif found.step is None and request.only is not None:
        found = cost_of(replace(plan, arrays=tuple(select(request.only, plan))))
    return found


# what is printed


class _Draft:
    """The model's table on a terminal, until the compiler's takes its place."""

    def __init__(self, request: Request, by: By, top: int, *, is_shown: bool) -> None:
        self.request, self.by, self.top = request, by, top
        is_text = request.form == "text" and not request.output
        self.rows_most = rows_of_terminal() if is_shown and is_text else 0
        self.rows = 0

    def show(self, cost: Cost) -> None:
        """Print what the model says, where all of it can be taken away again."""
        from shardspec.diagnostics.lines import fitted
        from shardspec.report.cost import cost_lines

        lines = list(fitted(cost_lines(cost, self.by, top=self.top), width_of()))
        if self.request.only is None and len(lines) < self.rows_most:
            show(lines)
            self.rows = len(lines)

    def take_away(self) -> None:
        """Remove what was printed."""
        if self.rows:
            echo(f"\x1b[{self.rows}F\x1b[J", is_painted=True, end="")


def _print(
    cost: Cost, request: Request, by: By, top: int, compared: Comparison | None = None
) -> None:
    from shardspec.report.cost import WIDTH, cost_lines
    from shardspec.report.cost_json import cost_text

    arrays = None
    if request.only is not None and cost.step is not None:
        arrays = _chosen(request.only, cost.step)
    if request.form == "perfetto":
        _print_trace(cost, request)
        return

    def text(is_kept: bool) -> str:
        date = time.strftime("%Y-%m-%d") if is_kept else None
        return cost_text(cost, arrays, date, by, compared)

    lines = cost_lines(cost, by, top=top, arrays=arrays)
    if compared is not None:
        from shardspec.report.comparison import comparison_lines

        lines = chain(lines, ("",), comparison_lines(compared, top=top))
    request.give(text, lines, WIDTH)


def _print_trace(cost: Cost, request: Request) -> None:
    """Write the predicted step as a trace for ui.perfetto.dev."""
    from shardspec.report.trace import trace_text

    text = trace_text(cost.predicted or cost)
    if not text:
        fail(
            f"no time of a step is predicted for target `{cost.target.name}`, so none is drawn",
            "name a step, `--step MODULE:FUNCTION`, and a target whose speeds are known",
        )
    if request.output in (None, "-"):
        echo(text.rstrip("\n"))
    else:
        request.write_to(request.output, text)


def _chosen(only: str, step: Step) -> frozenset[str]:
    """Return the arrays that are asked for, of those that the step is given or sends."""
    names = {name for each in step.collectives for name in names_in(each)}
    names |= {each.path for each in step.arguments if each.path}
    return matching(only, names) or unknown_path(only, sorted(names))
