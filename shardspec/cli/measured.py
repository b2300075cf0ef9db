"""`--measured`: one step that somebody timed, to hold predictions to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import fail

if TYPE_CHECKING:
    from shardspec.analysis.cost import Cost
    from shardspec.analysis.step_time import Scale

_TIME = re.compile(
    r"(?:(?P<target>[^=]+)=)?\s*(?P<number>\d{1,9}(?:\.\d{1,12})?)\s*(?P<unit>us|ms|s|min|)"
)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}
#: A step that takes so many times as long as predicted, or so much less, is likely another one.
_FAR = 3.0
_WAY_OUT = "leave --measured out, or name a target whose speeds are known"


class Measured(NamedTuple):
    """A step of the spec as it is, without `--set`, and how long it took.

    Attributes:
      target: where; None for the target that the prediction is for.
    """

    target: str | None
    seconds: float


def _measured(ctx: click.Context, param: click.Parameter, text: str | None) -> Measured | None:
    """Return what `2.1s`, `350ms` or `pod=2.1s` says."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip())
    seconds = 0.0 if found is None else float(found["number"]) * _UNITS[found["unit"]]
    if found is None or not seconds:
        help = "as in `--measured 2.1s`, `--measured 350ms`, `--measured pod=2.1s`"
        fail(f"--measured {text} is no time of a step", help)
    return Measured(found["target"], seconds)


MEASURED = options.option(
    "--measured",
    metavar="[TARGET=]TIME",
    callback=_measured,
    help="What a step of the spec as it is, without --set, took: `2.1s`, `pod=350ms`. Predictions"
    " are scaled by it.",
)


def scale_of(measured: Measured, base: Cost, request: Request) -> Scale:
    """Return what a measured step took over its prediction; exit where none is predicted.

    Args:
      base: the cost of the step that was measured.
    """
    from shardspec.diagnostics.words import seconds_text, three_figures

    try:
        scale = base.scale(measured.seconds)
    except ValueError as error:
        fail(str(error), _WAY_OUT)
    if not 1 / _FAR < scale.share < _FAR:
        times = f"{three_figures(scale.share)} times what is predicted"
        request.remark(f"--measured: {seconds_text(measured.seconds)} is {times}; is it this step?")
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
