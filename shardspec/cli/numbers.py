"""`shardspec verify --numbers`: a step on a small mesh of CPU devices, and on one device."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.steps import plan_on_target, step_and_folder
from shardspec.cli.streams import FAILED, FINDINGS, FINE, fail, progress, width_of
from shardspec.diagnostics import ShardspecError
from shardspec.versions import NUMBERS_JSON, PACKAGE

if TYPE_CHECKING:
    from shardspec.jax_backend.numbers.comparing import Asked
    from shardspec.programs.numbers import Numbers

#: What goes before jax is loaded: CPUs alone, and as many as a small mesh needs.
_FLAG = "--xla_force_host_platform_device_count=8"

NUMBERS = (
    options.flag(
        "--numbers",
        "Run the step instead, with small sizes on a few CPU devices and on one, and compare what"
        " it returns.",
    ),
    options.option(
        "--keep-size",
        "kept",
        metavar="AXIS",
        multiple=True,
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
    request: Request,
    target_names: Sequence[str],
    step_name: str | None,
    *,
    kept: tuple[str, ...],
    inputs_name: str | None,
    is_wide: bool,
) -> int:
    """Print whether a sharded step computes what one device computes; return the exit code."""
    if step_name is None:
        fail("--numbers runs a step", "name one: `--step train:step`")
    if _is_a_command() and (code := _of_child()) is not None:
        return code
    name, folder = step_and_folder(step_name)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from shardspec.jax_backend.numbers.comparing import Asked

    asked = Asked(kept, "float64" if is_wide else "float32", inputs=inputs_name)
    found: list[Numbers | None] = []
    for target in dict.fromkeys(target_names) or (None,):
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
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        return None
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        fail(f"XLA ended the process, by {signal.Signals(-code).name}", "its last words are above")
    return code


def _numbers(request: Request, name: str, folder: str, asked: Asked) -> Numbers | None:
    from shardspec.jax_backend.numbers.code import StepCode
    from shardspec.jax_backend.numbers.same import same_numbers

    plan = plan_on_target(request, "nothing is run", has_code=True)
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
    from shardspec.diagnostics.lines import fitted
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
