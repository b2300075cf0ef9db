"""Sizes that would have fitted: the way out that a finding offers."""

from __future__ import annotations

from collections.abc import Iterable

from shardspec.ir.mesh import divisors


def near_multiples(size: int, step: int) -> tuple[int, ...]:
    """Return the multiples of `step` next to `size`, below and above, without 0.

    >>> near_multiples(14340, 8)
    (14336, 14344)
    """
    below = size - size % step
    return tuple(multiple for multiple in (below, below + step) if multiple)


def padded(size: int, step: int) -> int:
    """Return the multiple of `step` next above `size`, or `size` where it is one.

    >>> padded(14340, 8), padded(16, 8)
    (14344, 16)
    """
    return -(-size // step) * step


def copies(size: int, unit: int, ways: int) -> int | None:
    """Return how often each unit must stand so that `ways` devices hold one unit each.

    None where the units are not fewer, or do not go into `ways`; one unit is no split at all.

    >>> copies(8, 1, 16), copies(512, 64, 16), copies(8, 1, 12), copies(1, 1, 4)
    (2, 2, None, None)
    """
    units = size // unit if size % unit == 0 else 0
    return ways // units if 1 < units < ways and ways % units == 0 else None


def axis_sizes(size: int, unit: int, others: int) -> tuple[int, ...]:
    """Return the sizes of a mesh axis that divide a dimension, which others split `others` ways.

    >>> axis_sizes(8, 1, 1)
    (1, 2, 4, 8)
    """
    units = size // unit if size % unit == 0 else 0
    if not units or units % others:
        return ()
    return divisors(units // others)


def set_text(numbers: Iterable[int], limit: int = 8) -> str:
    """Return `{1, 2, 4, 8}`, cut after `limit`."""
    numbers = list(numbers)
    more = ", ..." if len(numbers) > limit else ""
    return f"{{{', '.join(map(str, numbers[:limit]))}{more}}}"
