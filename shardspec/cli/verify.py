"""`shardspec verify`: a step predicted, and compiled by the real compiler, side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.steps import STEP, Tell, plan_on_target, with_step
from shardspec.cli.streams import (
    FINDINGS,
    FINE,
    echo,
    fail,
    require_folder,
    show,
    width_of,
    write_file,
)

if TYPE_CHECKING:
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
    options.option(
        "--backend",
        type=click.Choice(["target", "here"]),
        default="target",
        show_default=True,
        help="Whose program: that of the target's machine, which need not be here, or of the"
        " devices that are.",
    ),
    options.flag("--no-cache", "Compile, also what was compiled of the same before; keep nothing."),
    options.flag("--whole", "Let the compiler generate code, too; takes ten times as long."),
    options.OUTPUT,
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
) -> None:
    """Have the real compiler compile a step for machines that are not here.

    It is libtpu for TPU slices, stopped once the final program is there, and XLA's CUDA plugin for
    GPUs; neither needs the chips. Exit 0 if the program fits, if it sends what was predicted, and
    if nothing goes over mesh axes that were not; 1 if one of these is not so.
    """
    if step_name is None:
        fail("there is no step to compile", "name one: `--step train:step`")
    require_folder(request.output)
    asked = {"timeout_s": timeout_s, "is_whole": whole, "is_cached": not no_cache}
    proofs = []
    for name in target_names or (None,):
        proof = _proof(
            replace(request, target=name), step_name, asked, tolerance, is_here=backend == "here"
        )
        if request.form == "text" and not request.output:
            _print(proof)
        proofs.append(proof)
    if request.form != "text" or request.output:
        _write(proofs, request)
    raise SystemExit(FINDINGS if any(proof.faults for proof in proofs) else FINE)


def _proof(
    request: Request, step_name: str, asked: dict[str, Any], tolerance: float, *, is_here: bool
) -> Proof:
    """Return the proof on one target."""
    plan = plan_on_target(request, "nothing is compiled")

    def proved(resolver: Resolver, call: Call, tell: Tell) -> Proof:
        from shardspec.jax_backend.compiling import Compiling
        from shardspec.jax_backend.verifying import verify_step

        how = Compiling(**asked)
        return verify_step(
            resolver, *call, tolerance=tolerance, is_here=is_here, how=how, tell=tell
        )

    target = plan.target.name
    return with_step(
        step_name, plan.spec, target, request, proved, done="compiled", is_here=is_here
    )


def _print(proof: Proof) -> None:
    from shardspec.diagnostics.lines import fitted
    from shardspec.programs.proof import proof_lines

    show(fitted(proof_lines(proof), width_of()))


def _write(proofs: Sequence[Proof], request: Request) -> None:
    from shardspec.programs.proof import proof_lines
    from shardspec.programs.proof_forms import proof_json, proof_markdown

    forms = {
        "text": lambda: "\n".join(line for proof in proofs for line in proof_lines(proof)),
        "json": lambda: proof_json(proofs),
        "md": lambda: proof_markdown(proofs),
    }
    text = forms[request.form]()
    if request.output:
        write_file(request.output, f"{text}\n")
    else:
        echo(text)
