"""A range of numbers as a regex, by digits: `{0..199}` is `(?:[0-9]|[1-9][0-9]|1[0-9]{2})`.

The numbers are cut into runs of equal length, and each run into blocks that share a prefix and
let every digit after it run free. So the regex grows with the number of digits, never with the
number of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator


def range_regex(low: int, high: int, width: int = 0) -> str:
    """Return a regex of the numbers from `low` to `high`, both included.

    Numbers shorter than `width` digits are filled up with zeros.

    >>> range_regex(0, 23)
    '(?:[0-9]|1[0-9]|2[0-3])'
    >>> range_regex(8, 11, width=3)
    '(?:00[8-9]|01[0-1])'
    """
    blocks = (
        block for start, end in _equal_lengths(low, high, width) for block in _blocks(start, end)
    )
    return f"(?:{'|'.join(blocks)})"


def _equal_lengths(low: int, high: int, width: int) -> Iterator[tuple[str, str]]:
    """Yield first and last number of each run of numbers with the same count of digits."""
    while low <= high:
        digits = max(len(str(low)), width)
        end = min(high, 10**digits - 1)
        yield str(low).zfill(digits), str(end).zfill(digits)
        low = end + 1


def _blocks(low: str, high: str) -> Iterator[str]:
    """Yield regexes that together match the numbers from `low` to `high`, of one length."""
    if low == high:
        yield low
        return
    shared = [a == b for a, b in zip(low, high, strict=True)].index(False)
    prefix, free = low[:shared], len(low) - shared - 1
    first, last = int(low[shared]), int(high[shared])
    if low[shared + 1 :].strip("0"):
        yield from (f"{prefix}{block}" for block in _blocks(low[shared:], low[shared] + "9" * free))
        first += 1
    above = high[shared + 1 :].strip("9")
    if above:
        last -= 1
    if first <= last:
        yield f"{prefix}{_digits(first, last)}{_free(free)}"
    if above:
        yield from (
            f"{prefix}{block}" for block in _blocks(high[shared] + "0" * free, high[shared:])
        )


def _digits(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _free(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"
