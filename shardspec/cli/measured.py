"""`--measured`: one step that somebody timed, or a run that was captured, to compare with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import fail, progress

if TYPE_CHECKING:
    from shardspec.analysis.comparison import Comparison
    from shardspec.analysis.cost import Cost
    from shardspec.analysis.step_time import Scale
    from shardspec.ir.spec import Mesh
    from shardspec.ir.step import Step
    from shardspec.programs.captures import Capture
    from shardspec.programs.reading import ReadProgram

_TIME = re.compile(
    r"(?:(?P<target>[^=]+)=)?\s*(?P<number>\d{1,9}(?:\.\d{1,12})?)\s*(?P<unit>us|ms|s|min|)"
)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}
#: A step that takes so many times as long as predicted, or so much less, is likely another one.
_FAR = 3.0
#: What a run is, where one cannot be read.
RUNS = "name an `.xplane.pb`, a folder of `jax.profiler.trace`, or a `trace.json.gz`"
_WAY_OUT = "leave --measured out, or name a target whose speeds are known"


class Measured(NamedTuple):
    """A step of the spec as it is, without `--set`, and how long it took.

    Attributes:
      target: where; None for the target that the prediction is for.
      run: a file or a folder of a captured run; empty where only a time is known.
    """

    target: str | None
    seconds: float
    run: str = ""


def _measured(ctx: click.Context, param: click.Parameter, text: str | None) -> Measured | None:
    """Return what `2.1s`, `350ms`, `pod=2.1s`, `RUN` or `pod=RUN` says."""
    if text is None:
        return None
    target, is_named, path = text.partition("=")
    if os.path.exists(text):
        return Measured(None, 0.0, text)
    if is_named and os.path.exists(path):
        return Measured(target, 0.0, path)
    found = _TIME.fullmatch(text.strip())
    seconds = 0.0 if found is None else float(found["number"]) * _UNITS[found["unit"]]
    if found is None or not seconds:
        help = "as in `--measured 2.1s`, `--measured 350ms`, `--measured pod=2.1s`"
        fail(f"--measured {text} is no time of a step, and no file or folder", help)
    return Measured(found["target"], seconds)


MEASURED = options.option(
    "--measured",
    metavar="[TARGET=]TIME|RUN",
    callback=_measured,
    help="What a step of the spec as it is, without --set, took: `2.1s`, `pod=350ms`. Predictions"
    " are scaled by it. Or a run that `jax.profiler.trace` captured, a folder or a file: `cost`"
    " compares it with the prediction.",
)


def scale_of(measured: Measured, base: Cost, request: Request) -> Scale:
    """Return what a measured step took over its prediction; exit where none is predicted.

    Args:
      base: the cost of the step that was measured.
    """
    from shardspec.diagnostics.words import seconds_text, three_figures

    seconds = seconds_of(measured)
    try:
        scale = base.scale(seconds)
    except ValueError as error:
        fail(str(error), _WAY_OUT)
    if not 1 / _FAR < scale.share < _FAR:
        times = f"{three_figures(scale.share)} times what is predicted"
        request.remark(f"--measured: {seconds_text(seconds)} is {times}; is it this step?")
    return scale


def as_it_is(measured: Measured, request: Request, target: str) -> Request:
    """Return the request for the step that was measured: without --set, on its target."""
    return replace(request, target=measured.target or target, settings={})


def held_to(
    measured: Measured, found: Cost, request: Request, cost_at: Callable[[Request], Cost]
) -> Cost:
    """Return a cost whose times are scaled by what a measured step took over its prediction.

    Args:
      found: the cost that is asked for.
      cost_at: works out the cost of the step that was measured.
    """
    if found.step is None:
        fail("--measured times a step, and there is none", "name one: `--step MODULE:FUNCTION`")
    at = as_it_is(measured, request, found.target.name)
    is_same = at.target == found.target.name and not request.settings
    base = found if is_same else cost_at(at)
    scale_of(measured, base, request)
    try:
        return found.measured(measured.seconds, base)
    except ValueError as error:
        fail(str(error), _WAY_OUT)


# a captured run


def comparison(run: str, found: Cost, request: Request, step_name: str | None) -> Comparison:
    """Return a captured run beside the prediction of its step; exit where it cannot be read.

    The program is that which the capture carries, else the one that `verify` would prove.
    """
    from shardspec.programs.captures import capture_of
    from shardspec.programs.measured import compared

    cost = found.predicted or found
    try:
        with request.refusing():
            capture = capture_of(run)
            with progress(is_quiet=request.is_quiet) as tell:
                tell("reading the programs of the run")
                module, program = program_of_run(capture, cost.target.mesh, cost.step)
            if program is not None:
                return compared(capture, module, program, cost)
            has_compiler = request.basis != "model" and step_name is not None
            made = _program(found, request, step_name) if has_compiler else None
            return compared(capture, module, made, cost, is_own=False)
    except ValueError as error:
        fail(f"--measured {run}: {error}", RUNS)


def program_of_run(
    capture: Capture, mesh: Mesh, step: Step | None = None
) -> tuple[str, ReadProgram | None]:
    """Return the module that the step of a run is, and the program of it that the run carries.

    Raises:
      ShardspecError: XLA cannot read it.
      ValueError: it is for another mesh.
    """
    from shardspec.jax_backend.xla.compiling import texts_of
    from shardspec.programs.measured import module_of, program_in, programs_of

    module = module_of(capture)
    texts = texts_of(programs_of(capture, module))
    return module, program_in(capture, module, texts.values(), mesh, step)


def _program(found: Cost, request: Request, step_name: str | None) -> ReadProgram | None:
    """Return the program that the compiler of the target makes; None where it makes none."""
    from shardspec.cli.steps import Pending

    hardware = found.target.hardware
    is_here = hardware is not None and hardware.chip.platform == "cpu"
    asked = {"timeout_s": request.wait_s, "is_cached": True, "is_whole": False}
    try:
        with Pending(step_name, found.plan, request, asked, tolerance=1.0, is_here=is_here) as each:
            return each.proof().program
    except SystemExit:
        return None


def is_run(name: str) -> bool:
    """Say whether a name is that of a captured run: a file of its forms, or a folder with some."""
    from shardspec.programs.captures import has_capture

    return has_capture(name)


def seconds_of(measured: Measured) -> float:
    """Return how long a step took: as stated, or in a captured run."""
    from shardspec.programs.captures import capture_of
    from shardspec.programs.measured import module_of
    from shardspec.programs.runs import COMPUTES, steps_of

    if not measured.run:
        return measured.seconds
    try:
        capture = capture_of(measured.run)
        return steps_of(capture, module_of(capture), lambda op: COMPUTES).seconds
    except ValueError as error:
        fail(f"--measured {measured.run}: {error}", RUNS)
