"""How far the model of a traced step is off, learned from steps that it was not fitted to.

Random steps were predicted, and compiled by the compilers of their targets. What a compiler held
and sent, over what was predicted, is a distribution for each kind of device, of training and of
serving. An interval holds nine in ten of it, and the share of it that a device has room for is how
likely the step fits. The steps have layers scanned and unrolled, several kinds of attention and of
experts, optimizers, caches, with and without constraints.

Source: benchmarks/data/generated_steps.json, by `python -m tests.generated --accuracy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

#: What is off: the bytes that a device holds, or sends; or, of a step that a spec states, those of
#: them that the step makes beside what is known.
Off = Literal["memory", "sends", "made"]
Mode = Literal["train", "serve"]
#: How likely a step has to fit, or not to, for that to be said without a compiler.
SURE = 0.9
#: The shares of all steps that are at or below each ratio of `Rows`.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Rows(NamedTuple):
    """What rows say: compiled over predicted, at `LEVELS`.

    Attributes:
      size: how many rows; more of them say more about what is rare.
    """

    size: int
    ratios: tuple[float, ...]


LEARNED: dict[tuple[str, Mode, Off], Rows] = {
    ("gpu", "serve", "memory"): Rows(73, (0.885, 0.906, 0.978, 1.0, 1.02, 1.09, 1.18)),
    ("gpu", "serve", "sends"): Rows(72, (0.999, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    ("gpu", "train", "memory"): Rows(140, (0.835, 0.918, 0.974, 1.01, 1.06, 1.16, 1.3)),
    ("gpu", "train", "sends"): Rows(139, (0.976, 0.994, 1.0, 1.0, 1.0, 1.0, 1.01)),
    ("tpu", "serve", "memory"): Rows(73, (0.696, 0.849, 1.0, 1.02, 1.08, 1.18, 1.34)),
    ("tpu", "serve", "sends"): Rows(69, (0.992, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    ("tpu", "train", "memory"): Rows(164, (0.856, 0.93, 0.992, 1.02, 1.07, 1.22, 1.39)),
    ("tpu", "train", "sends"): Rows(162, (0.98, 0.992, 1.0, 1.0, 1.01, 1.06, 1.13)),
}


#: What devices held beside parameters, gradients and state over the floor of a stated step: norms,
#: activation functions and copies that no line states, and what an allocator loses.
#: Source: `benchmarks/layouts.py`: 26 steps of nanotron on H100 and of Megatron-LM on A100,
#: measured by others.
STATED: dict[tuple[str, Mode, Off], Rows] = {
    ("gpu", "train", "made"): Rows(26, (1.87, 1.92, 2.06, 2.12, 2.28, 2.93, 3.39)),
}
#: How likely a stated step has to fit for that to be said: it is what a search ranks by.
EVEN = 0.5


class Interval(NamedTuple):
    """Bytes between which a figure is in nine of ten steps."""

    low: int
    high: int


def interval(predicted: int, platform: str, mode: Mode, off: Off) -> Interval | None:
    """Return where a compiler's figure is in nine of ten steps; None where nothing was learned.

    Invariants:
      order: low <= high.
    """
    rows = _rows(platform, mode, off)
    if rows is None:
        return None
    return Interval(round(predicted * rows.ratios[0]), round(predicted * rows.ratios[-1]))


def middle(platform: str, mode: Mode, off: Off) -> float | None:
    """Return what half of all figures are over what was predicted; None where nothing is known."""
    rows = _rows(platform, mode, off)
    return None if rows is None else rows.ratios[LEVELS.index(0.5)]


def fits_probability(
    predicted: int, limit: int | None, platform: str, mode: Mode, off: Off = "memory"
) -> float | None:
    """Return how likely a step fits a device; None where nothing was learned, or no limit is known.

    It is never 0 or 1: a step may be unlike all rows.

    Invariants:
      order: more room is never less likely to be enough.
    """
    rows = _rows(platform, mode, off)
    if rows is None or limit is None or not predicted:
        return None
    least = 1 / (rows.size + 1)
    found = interpolated(list(zip(rows.ratios, LEVELS, strict=True)), limit / predicted)
    if limit / predicted < rows.ratios[0]:
        found = least
    elif limit / predicted > 2 * rows.ratios[-1]:
        found = 1 - least
    return min(max(found, least), 1 - least)


def _rows(platform: str, mode: Mode, off: Off) -> Rows | None:
    known = STATED if off == "made" else LEARNED
    return known.get((platform, mode, off))


def interpolated(points: Sequence[tuple[float, float]], where: float) -> float:
    """Return the height of a line through points; beyond them, of the nearest.

    >>> interpolated([(1.0, 10.0), (2.0, 20.0)], 1.5), interpolated([(1.0, 10.0), (2.0, 20.0)], 0.0)
    (15.0, 10.0)
    """
    return next(_between(points, where), points[-1][1] if where > points[0][0] else points[0][1])


def _between(points: Sequence[tuple[float, float]], where: float) -> Iterator[float]:
    for (left, low), (right, high) in pairwise(points):
        if left < where <= right:
            yield low + (high - low) * (where - left) / (right - left)
