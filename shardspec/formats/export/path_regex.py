r"""Paths that differ in their numbers, as one regex that matches exactly these.

`layers_0/wi_0` to `layers_23/wi_1` are `layers_(?:[0-9]|1[0-9]|2[0-3])/wi_[0-1]`. Numbers that do
not combine freely are cut into alternatives: no path is matched that is not in the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shardspec.frontend.patterns.glob import range_regex
from shardspec.ir.grouping import natural, template

_DIGITS = re.compile(r"([0-9]{1,18})")
_SPECIAL = re.compile(r"[^A-Za-z0-9_/ :;,'<>=@!%&~`\-]")

Row = tuple[str, ...]


def path_regexes(paths: Iterable[str]) -> tuple[str, ...]:
    """Return regexes, one for each template of the paths, that together match exactly these.

    Invariants:
      exact: under `fullmatch`, they match the paths and nothing else.
    """
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(template(path), []).append(path)
    return tuple(path_regex(group) for group in groups.values())


def path_regex(paths: Sequence[str]) -> str:
    r"""Return the regex of paths that share a template.

    >>> path_regex([f"layers_{n}/k" for n in range(24)])
    'layers_(?:[0-9]|1[0-9]|2[0-3])/k'
    >>> path_regex(["a_0/w_0", "a_1/w_1"])
    '(?:a_0/w_0|a_1/w_1)'
    """
    texts = [escaped(text) for text in _DIGITS.split(paths[0])[::2]]
    rows = [tuple(_DIGITS.findall(path)) for path in sorted(set(paths), key=natural)]
    found = _alternatives(rows, texts)
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def escaped(text: str) -> str:
    r"""Return text as a regex that matches it, with no more backslashes than it takes.

    >>> escaped("wi-0.weight")
    'wi-0\\.weight'
    """
    return _SPECIAL.sub(lambda found: re.escape(found[0]), text)


def _alternatives(rows: Sequence[Row], texts: Sequence[str]) -> list[str]:
    """Return regexes that match the rows put between the texts."""
    if not rows[0]:
        return [texts[0]]
    by_rest: dict[tuple[Row, ...], list[str]] = {}
    rests: dict[str, list[Row]] = {}
    for row in rows:
        rests.setdefault(row[0], []).append(row[1:])
    for number, found in rests.items():
        by_rest.setdefault(tuple(found), []).append(number)
    return [
        f"{texts[0]}{_numbers(numbers)}{rest}"
        for found, numbers in by_rest.items()
        for rest in _alternatives(found, texts[1:])
    ]


def _numbers(numbers: Sequence[str]) -> str:
    """Return a regex of numbers: one, a range, or a list."""
    if len(numbers) == 1:
        return numbers[0]
    low, high = numbers[0], numbers[-1]
    width = len(low) if low.startswith("0") and len(low) == len(high) else 0
    run = [f"{n:0{width}d}" for n in range(int(low), int(low) + len(numbers))]
    if run == list(numbers):
        return range_regex(int(low), int(high), width)
    return f"(?:{'|'.join(numbers)})"
