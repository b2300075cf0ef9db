"""Compare what two runs return: beyond rounding, or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardspec.programs.numbers import OutputDifference

#: How many times the rounding that was seen is still rounding.
_NOISE = 64.0
#: What is rounding whatever was seen, in units of the least of the type.
_LEAST = 128.0
#: Integers that may differ where rounding decides between two choices, in times of what was seen.
_FLIPS = 8.0


class Result(NamedTuple):
    """An array that a run returned.

    Attributes:
      value: of the first device that has each part.
      devices_differ: whether devices that should hold the same values hold others.
    """

    value: Any
    devices_differ: bool = False


def differences(
    paths: Sequence[str],
    one: Sequence[Sequence[Result]],
    many: Sequence[Sequence[Result]],
    noisy: Sequence[Sequence[Sequence[Result]]],
) -> Iterator[OutputDifference]:
    """Yield the outputs that differ beyond rounding, call by call.

    Args:
      one: of each call on one device, and `many` sharded.
      noisy: of runs on one device whose inputs are off by rounding.
    """
    for call, (expected, found) in enumerate(zip(one, many, strict=True)):
        for at, path in enumerate(paths):
            others = [each[call][at].value for each in noisy]
            error = difference(expected[at].value, found[at].value, others)
            apart = found[at].devices_differ
            if error is not None or apart:
                off, noise = error or (0.0, 0.0)
                ratio = ratio_of(expected[at].value, found[at].value) if error else None
                yield OutputDifference(path, call + 1, off, noise, ratio, apart)


def difference(expected: Any, found: Any, others: Sequence[Any]) -> tuple[float, float] | None:
    """Return by how much two arrays differ, and the rounding; None where it is no more than that.

    Both are shares of the largest value; of integers, of the elements.
    """
    if expected.size != found.size:
        return 1.0, 0.0
    found = found.reshape(expected.shape)
    if not expected.size:
        return None
    if not np.issubdtype(expected.dtype, np.inexact):
        off = float(np.mean(expected != found))
        noise = max((float(np.mean(expected != each)) for each in others), default=0.0)
        return (off, noise) if off > _FLIPS * noise else None
    finite = np.isfinite(expected)
    if not finite.any():
        return None
    if (np.isfinite(found) != finite).any():
        return 1.0, 0.0
    scale = float(np.abs(expected[finite]).max())
    noise = max((_far(expected, each, finite) for each in others), default=0.0)
    off = _far(expected, found, finite)
    least = _LEAST * float(np.finfo(expected.dtype).eps) * scale
    if off <= max(least, _NOISE * noise, float(np.finfo(expected.dtype).tiny)):
        return None
    return (off / scale if scale else 1.0), (noise / scale if scale else 0.0)


def is_comparable(value: Any) -> bool:
    """Say whether some number of an array is one: where all are NaN, nothing can differ."""
    is_exact = not np.issubdtype(value.dtype, np.inexact)
    return is_exact or not value.size or bool(np.isfinite(value).any())


def _far(one: Any, other: Any, finite: Any) -> float:
    both = finite & np.isfinite(other)
    return float(np.abs(one[both] - other[both]).max()) if both.any() else 0.0


def ratio_of(expected: Any, found: Any) -> float | None:
    """Return what all elements of one array are multiplied by to give the other's, if one is."""
    if not np.issubdtype(expected.dtype, np.floating) or expected.size != found.size:
        return None
    expected, found = expected.ravel(), found.ravel()
    large = np.abs(expected) > 1e-2 * np.abs(expected).max(initial=0.0)
    large &= np.isfinite(expected) & np.isfinite(found)
    if not large.any():
        return None
    ratios = found[large] / expected[large]
    middle = float(np.median(ratios))
    is_one = abs(middle - 1) < 1e-3 or np.abs(ratios - middle).max() > 1e-2 * abs(middle)
    return None if is_one else middle
