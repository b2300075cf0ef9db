"""`shardspec verify`: a step predicted, and compiled by the real compiler, side by side.

`shardspec verify --numbers`: a step on a small mesh of CPU devices, and on one device.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardspec.cli import options, steps, streams
from shardspec.cli.request import Request
from shardspec.cli.streams import FAILED, FINDINGS, FINE, echo, fail, progress, show, width_of
from shardspec.diagnostics import ShardspecError
from shardspec.diagnostics.lines import fitted
from shardspec.versions import NUMBERS_JSON, PACKAGE

if TYPE_CHECKING:
    from shardspec.jax_backend.numbers.comparing import Asked
    from shardspec.programs.numbers import Numbers
    from shardspec.programs.proof import Proof

#: What goes before jax is loaded: CPUs alone, and as many as a small mesh needs.
_FLAG = "--xla_force_host_platform_device_count=8"

NUMBERS = (
    options.flag(
        "--numbers",
        "Run the step instead, with small sizes on a few CPU devices and on one, and compare what"
        " it returns.",
    ),
    options.repeated(
        "--keep-size",
        "kept",
        metavar="AXIS",
        help="With --numbers: leave the size of a logical axis as it is.",
    ),
    options.option(
        "--inputs",
        "inputs_name",
        metavar="MODULE:FUNCTION",
        help="With --numbers: values for the arguments of the step. It is called with their"
        " shapes, and returns a tree of the same form, with None where random values will do.",
    ),
    options.flag("--f64", "With --numbers: compute in float64."),
)


def compare_numbers(
    request: Request, *, kept: tuple[str, ...], inputs_name: str | None, is_wide: bool
) -> int:
    """Print whether a sharded step computes what one device computes; return the exit code."""
    if request.step_name is None:
        fail("--numbers runs a step", "name one: `--step train:step`")
    if _is_a_command() and (code := _of_child()) is not None:
        return code
    name, folder = steps.step_and_folder(request)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's warnings are of a small mesh
    from shardspec.jax_backend.numbers.comparing import Asked

    asked = Asked(kept, "float64" if is_wide else "float32", inputs=inputs_name)
    found: list[Numbers | None] = []
    for target in dict.fromkeys(request.target_names) or (None,):
        on_target = replace(request, target=target)
        found.append(_numbers(on_target, name, folder, asked))
    _print(request, [each for each in found if each is not None])
    return max(map(_code, found))


def _is_a_command() -> bool:
    """Say whether this process is the command alone, and may be split in two."""
    if "jax" in sys.modules or not hasattr(os, "fork"):
        return False
    try:
        return sys.stdout.fileno() == 1
    except (OSError, ValueError, AttributeError):
        return False


def _of_child() -> int | None:
    """Return the exit code of a process like this one, which is the one to go on; None in it.

    XLA ends the process where a check of its own fails, and whoever asked wants to hear so.
    """
    child = streams.split()
    if not child:
        return None
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        fail(f"XLA ended the process, by {signal.Signals(-code).name}", "its last words are above")
    return code


def _numbers(request: Request, name: str, folder: str, asked: Asked) -> Numbers | None:
    with streams.unbroken():
        from shardspec.jax_backend.numbers.same import StepCode, same_numbers

    plan = steps.plan_on_target(request, "nothing is run", has_code=True)
    request.remark(f"{name}: importing it, which runs its code")
    code = StepCode(name, folder, plan.spec, plan.target)
    try:
        with progress(is_quiet=request.is_quiet) as tell:
            return same_numbers(code, asked, tell)
    except ShardspecError as error:
        request.report(error.diagnostics)
        return None


def _code(numbers: Numbers | None) -> int:
    codes = {"same": FINE, "different": FINDINGS, "untried": FAILED}
    return FAILED if numbers is None else codes[numbers.verdict]


def _print(request: Request, found: Sequence[Numbers]) -> None:
    from shardspec.programs.numbers import numbers_data, numbers_lines

    if request.form == "json":
        data = {
            "schema": NUMBERS_JSON,
            "made_by": f"shardspec {PACKAGE}",
            "targets": [numbers_data(each) for each in found],
        }
        request.write(f"{json.dumps(data, indent=2)}\n")
        return
    lines = [line for each in found for line in (*numbers_lines(each), "")][:-1]
    request.show(lines if request.output else fitted(lines, width_of()))


_NAME_ONE = "name one: `--step train:step`"


@options.verb(
    "verify",
    *options.ONE_SPEC,
    options.TARGETS,
    options.PHASE,
    steps.STEP,
    *options.GIVEN,
    *options.FINDINGS,
    options.format_option("text", "json", "md"),
    *steps.PROOF,
    options.choice_option(
        "--backend",
        of=("target", "here"),
        help="Compile for the target's machine, which need not be here, or for the devices here.",
    ),
    options.flag(
        "--whole",
        "Also generate code, and show the compiler's own time estimates; takes ten times as long.",
    ),
    options.option(
        "--flags",
        metavar="FLAGS",
        default="",
        help="Compile again with these compiler flags, and show the difference:"
        " `--flags=--xla_tpu_scoped_vmem_limit_kib=9216`.",
    ),
    *NUMBERS,
    *options.OUTPUT,
    example="shardspec verify spec.yaml --step train:step",
    page="verify.md",
)
def command(
    request: Request,
    *,
    backend: str,
    whole: bool,
    flags: str,
    numbers: bool,
    kept: tuple[str, ...],
    inputs_name: str | None,
    f64: bool,
) -> None:
    """Compile a step with the real compiler, for machines that are not here.

    The compiler is libtpu for TPU slices and XLA's CUDA plugin for GPUs; neither needs the chips.
    Without --step it compiles the step that `step:` of the spec states, and needs no code. Exit 0
    if the program fits in memory and sends what was predicted over the predicted mesh axes; else 1.
    Several targets are compiled in parallel, as far as processors and memory allow. A target that
    fails to compile does not stop the others.

    With --numbers nothing is compiled for the target. The step runs with small sizes on a small
    mesh of CPU devices and on one device: exit 0 if both return the same, 1 if not, and 2 if it
    could not run.
    """
    request.require_place()
    if numbers:
        raise SystemExit(compare_numbers(request, kept=kept, inputs_name=inputs_name, is_wide=f64))
    if flags and backend == "here":
        fail("--flags are for the compiler of the target", "leave out `--backend here`")
    is_shown = request.form == "text" and not request.output
    has_code = request.step_name is not None

    def pending(name: str | None) -> steps.Pending:
        on_target = replace(request, target=name)
        plan = steps.plan_on_target(on_target, "nothing is compiled", has_code=has_code)
        if not has_code and plan.spec.step is None:
            fail("there is no step to compile", f"{_NAME_ONE}, or state one: `step:` in the spec")
        how = {"is_whole": whole, "flags": flags}
        return steps.Pending(plan, request, how, is_here=backend == "here")

    proofs, code = _each(tuple(dict.fromkeys(request.target_names)), pending, is_shown=is_shown)
    _close(proofs, request, is_shown=is_shown)
    raise SystemExit(max(code, _worst(proofs)))


def _worst(proofs: Iterable[Proof | str]) -> int:
    """Return the exit code of what was proved."""
    found = any(not isinstance(each, str) and each.faults for each in proofs)
    return FINDINGS if found else FINE


def _each(
    names: Sequence[str], pending: Callable[[str | None], steps.Pending], *, is_shown: bool
) -> tuple[list[Proof | str], int]:
    """Return each target's proof, or its name where it has no program; and the worst exit code.

    A single target without a program ends the verb.
    """
    proofs: list[Proof | str] = []
    code = FINE
    begun = (partial(pending, name) for name in names or (None,))
    with contextlib.closing(steps.each_proof(begun)) as made:
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
                steps.print_proof(each)
            proofs.append(each)
    return proofs, code


def _close(proofs: Sequence[Proof | str], request: Request, *, is_shown: bool) -> None:
    """Write what was not shown while it was made: a table of several targets, or all of it."""
    from shardspec.programs.proof import closing_lines, proof_json, proof_lines, proof_markdown

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
