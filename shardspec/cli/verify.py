"""`shardspec verify`: a step predicted, and compiled by the real compiler, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from shardspec.cli import options
from shardspec.cli.numbers import NUMBERS, compare_numbers
from shardspec.cli.proving import PROOF, Pending, each_proof, print_proof
from shardspec.cli.request import Request
from shardspec.cli.steps import STEP, plan_on_target
from shardspec.cli.streams import FAILED, FINDINGS, FINE, echo, fail, show, width_of

if TYPE_CHECKING:
    from shardspec.programs.proof import Proof

_NAME_ONE = "name one: `--step train:step`"


@options.verb(
    "verify",
    *options.ONE_SPEC,
    options.TARGETS,
    options.PHASE,
    STEP,
    options.ARRAYS,
    options.SET,
    *options.FINDINGS,
    options.format_option("text", "json", "md"),
    *PROOF,
    options.option(
        "--backend",
        type=click.Choice(["target", "here"]),
        default="target",
        show_default=True,
        help="Whose program: that of the target's machine, which need not be here, or of the"
        " devices that are.",
    ),
    options.flag(
        "--whole",
        "Let the compiler generate code, too, and show how long it thinks that operations take; ten"
        " times as long.",
    ),
    options.option(
        "--flags",
        metavar="FLAGS",
        default="",
        help="Compile once more with these flags of the compiler, and show what they change:"
        " `--flags '--xla_tpu_enable_latency_hiding_scheduler=true'`.",
    ),
    *NUMBERS,
    *options.OUTPUT,
)
def command(
    request: Request,
    *,
    target_names: tuple[str, ...],
    step_name: str | None,
    tolerance: float,
    timeout_s: float,
    backend: str,
    whole: bool,
    no_cache: bool,
    flags: str,
    numbers: bool,
    kept: tuple[str, ...],
    inputs_name: str | None,
    f64: bool,
) -> None:
    """Have the real compiler compile a step for machines that are not here.

    Without --step it is the one that `step:` of the spec states, written in JAX from its lines: no
    code is needed. It is libtpu for TPU slices, stopped once the final program is there, and XLA's
    CUDA plugin for GPUs; neither needs the chips. Exit 0 if the program fits, if it sends what was
    predicted, and if nothing goes over mesh axes that were not; 1 if one of these is not so.
    Several targets are compiled side by side, as many as there are processors and memory for; one
    without a program keeps no other from its own.

    With --numbers nothing is compiled for the target. The step runs on CPU devices, with small
    sizes on a small mesh and on one device: exit 0 if both return the same, 1 if not, 2 if that
    could not be tried.
    """
    request.require_place()
    if numbers:
        code = compare_numbers(
            request, target_names, step_name, kept=kept, inputs_name=inputs_name, is_wide=f64
        )
        raise SystemExit(code)
    asked = {"timeout_s": timeout_s, "is_whole": whole, "is_cached": not no_cache, "flags": flags}
    if flags and backend == "here":
        fail("--flags are for the compiler of the target", "leave out `--backend here`")
    is_shown = request.form == "text" and not request.output

    def pending(name: str | None) -> Pending:
        on_target = replace(request, target=name)
        has_code = step_name is not None
        plan = plan_on_target(on_target, "nothing is compiled", has_code=has_code)
        if not has_code and plan.spec.step is None:
            fail("there is no step to compile", f"{_NAME_ONE}, or state one: `step:` in the spec")
        is_here = backend == "here"
        return Pending(step_name, plan, request, asked, tolerance=tolerance, is_here=is_here)

    names = tuple(dict.fromkeys(target_names))
    proofs, code = _each(names, pending, is_shown=is_shown)
    _close(proofs, request, is_shown=is_shown)
    found = any(not isinstance(each, str) and each.faults for each in proofs)
    raise SystemExit(max(code, FINDINGS if found else FINE))


def _each(
    names: Sequence[str], pending: Callable[[str | None], Pending], *, is_shown: bool
) -> tuple[list[Proof | str], int]:
    """Return each target's proof, or its name where it has no program; and the worst exit code.

    A single target without a program ends the verb.
    """
    proofs: list[Proof | str] = []
    code = FINE
    begun = (partial(pending, name) for name in names or (None,))
    with contextlib.closing(each_proof(begun)) as made:
        for at, each in enumerate(made):
            if isinstance(each, SystemExit):
                if len(names) < 2:
                    raise each
                proofs.append(names[at])
                code = max(code, FAILED if each.code is None else int(each.code))
                continue
            if is_shown:
                if any(not isinstance(proof, str) for proof in proofs):
                    echo("")
                print_proof(each)
            proofs.append(each)
    return proofs, code


def _close(proofs: Sequence[Proof | str], request: Request, *, is_shown: bool) -> None:
    """Write what was not shown while it was made: a table of several targets, or all of it."""
    from shardspec.diagnostics.lines import fitted
    from shardspec.programs.proof import closing_lines, proof_lines
    from shardspec.programs.proof_forms import proof_json, proof_markdown

    closing = ["", *closing_lines(proofs)] if len(proofs) > 1 else []
    if is_shown:
        show(fitted(closing, width_of()))
        return
    whole = [line for each in proofs if not isinstance(each, str) for line in proof_lines(each)]
    forms = {
        "text": lambda: "\n".join([*whole, *closing]),
        "json": lambda: proof_json(proofs),
        "md": lambda: proof_markdown(proofs),
    }
    text = forms[request.form]()
    if request.output not in (None, "-") and any(isinstance(each, str) for each in proofs):
        request.undone(f"{request.output} is not written: there is a target without a program")
    elif request.output:
        request.write_to(request.output, f"{text}\n")
    else:
        echo(text)
