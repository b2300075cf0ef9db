"""Proofs of a step, one for each target: the code is traced here while compilers are at work."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import click

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.steps import Tell, with_step
from shardspec.cli.streams import fail, progress, show, width_of

if TYPE_CHECKING:
    from shardspec.ir.plan import ShardingPlan
    from shardspec.jax_backend.entry_point import Call
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.programs.proof import Proof

_TOLERANCE = re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,6})?)\s*(?P<percent>%?)")


def _tolerance(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """Return the share that `10%` or `0.1` is."""
    found = _TOLERANCE.fullmatch(text.strip())
    share = -1.0 if found is None else float(found["number"]) / (100 if found["percent"] else 1)
    if not 0 <= share <= 1:
        fail(f"--tolerance {text} is no share", "as in `--tolerance 10%`, `--tolerance 0.1`")
    return share


#: How a step is compiled, and what is proof, for verbs that have it compiled.
PROOF = (
    options.option(
        "--tolerance",
        default="10%",
        show_default=True,
        metavar="SHARE",
        callback=_tolerance,
        help="By what share of all compiled bytes the prediction may differ.",
    ),
    options.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1, max=86400),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="For each compile.",
    ),
    options.flag("--no-cache", "Compile, also what was compiled of the same before; keep nothing."),
)


class Pending:
    """The proof of a step on one target, while its compiler is at work."""

    def __init__(
        self,
        name: str | None,
        plan: ShardingPlan,
        request: Request,
        asked: dict[str, Any],
        *,
        tolerance: float,
        is_here: bool = False,
    ) -> None:
        """Take what is proved.

        Args:
          name: as `--step` gave it; None for the step that the spec states, whose prediction
            needs no trace.
          plan: on the target.
          asked: how it is compiled, as `Compiling` takes it.
          is_here: compile for the devices that are here, at once.
        """
        self._name, self._plan, self._request = name, plan, request
        self._asked, self._tolerance, self._is_here = asked, tolerance, is_here
        self._settle: Callable[[Tell], Proof]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the compiler, then trace the step and hand it over; exit on faults."""
        with self._request.refusing(), contextlib.ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End the compiler, if it is at work."""
        self._stack.close()

    def _begin(self, stack: contextlib.ExitStack) -> None:
        from shardspec.analysis.spec_step import stated_cost
        from shardspec.jax_backend.xla.compiling import Compile, Compiling

        plan, how, tolerance = self._plan, Compiling(**self._asked), self._tolerance
        alone, order = replace(how, flags=""), plan.spec.policy.order
        compile = None if self._is_here else stack.enter_context(Compile(plan.target, alone, order))
        cost = stated_cost(plan) if self._name is None else None

        def traced(resolver: Resolver, call: Call, tell: Tell) -> Callable[[Tell], Proof]:
            from shardspec.jax_backend.stated import unlike
            from shardspec.jax_backend.xla.verifying import given, verify_step

            if compile is None:
                found = verify_step(
                    resolver,
                    *call,
                    cost=cost,
                    tolerance=tolerance,
                    is_here=True,
                    how=how,
                    tell=tell,
                )
                return lambda tell: found
            tell("tracing")
            notes = unlike(plan) if self._name is None else ()
            asked = given(compile, resolver, *call, cost=cost, notes=notes)
            return lambda tell: asked.proof(how, tolerance, tell)

        spec, target = plan.spec, plan.target.name
        self._settle = with_step(
            self._name, spec, target, self._request, traced, is_here=self._is_here
        )

    def proof(self) -> Proof:
        """Return the proof once the program is there; exit where there is none."""
        request, name = self._request, self._plan.target.name
        with self._stack, request.refusing(), progress(is_quiet=request.is_quiet) as tell:
            return self._settle(lambda stage: tell(f"{name}: {stage}"))


def each_proof(pending: Iterable[Callable[[], Pending]]) -> Generator[Proof | SystemExit]:
    """Yield the proof of each, in order, or how it ended without one."""
    from shardspec.jax_backend.xla.compiling import most_at_once

    waiting: deque[Pending | SystemExit] = deque()
    with contextlib.ExitStack() as stack:
        for begin in pending:
            if len(waiting) >= most_at_once():
                yield _ended(waiting.popleft())
            try:
                waiting.append(stack.enter_context(begin()))
            except SystemExit as end:
                waiting.append(end)
        while waiting:
            yield _ended(waiting.popleft())


def _ended(each: Pending | SystemExit) -> Proof | SystemExit:
    if isinstance(each, SystemExit):
        return each
    try:
        return each.proof()
    except SystemExit as end:
        return end


def print_proof(proof: Proof, *, err: bool = False) -> None:
    """Print a prediction beside the program."""
    from shardspec.diagnostics.lines import fitted
    from shardspec.programs.proof import proof_lines

    show(fitted(proof_lines(proof), width_of(2 if err else 1)), err=err)
