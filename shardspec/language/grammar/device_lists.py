"""A list of devices, `0..3 7..4` or `0 1 3 2`: which of them stands where in a mesh."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardspec.language.grammar.refusals import too_long
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import DIGITS

_RUN = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?(?=[\s,]|$)")
_GAP = re.compile(r"\s*,?\s*")
_WORD = re.compile(r"[^\s,]+|,")
_FORM = "numbers of devices stand one after another: `0 1 3 2`, `0..3 7..4`"


class RunExpr(NamedTuple):
    """`5`, or `0..3`; `7..4` counts down."""

    first: int
    last: int
    start: int
    end: int


def parse_devices(text: str) -> tuple[RunExpr, ...] | SyntaxFault:
    """Return the devices in `text`, each row of them as one.

    >>> parse_devices("0..3, 5")
    (RunExpr(first=0, last=3, start=0, end=4), RunExpr(first=5, last=5, start=6, end=7))
    """
    long = too_long(text)
    if long is not None:
        return long
    runs: list[RunExpr] = []
    at = len(text) - len(text.lstrip())
    while at < len(text.rstrip()):
        found = _RUN.match(text, at)
        if found is None:
            word = _WORD.match(text, at)
            end = word.end() if word else at + 1
            return SyntaxFault(f"`{text[at:end]}` is no number of a device", at, end, _FORM)
        if max(len(digits or "") for digits in found.groups()) > DIGITS:
            message = f"a number of more than {DIGITS} digits is no device"
            return SyntaxFault(message, *found.span(), _FORM)
        runs.append(RunExpr(int(found[1]), int(found[2] or found[1]), *found.span()))
        gap = _GAP.match(text, found.end())
        at = gap.end() if gap else found.end()
    return tuple(runs) or SyntaxFault("no device is listed", 0, len(text), _FORM)


def print_devices(runs: tuple[RunExpr, ...]) -> str:
    """Return `0..3 7..4`."""
    return " ".join(str(r.first) if r.first == r.last else f"{r.first}..{r.last}" for r in runs)
