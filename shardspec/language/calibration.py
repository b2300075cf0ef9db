"""A calibration on disk: what `shardspec calibrate` writes, and the catalogue has of each chip.

It is data, and small: tables of numbers by size, with their date and how they were found. Whatever
such a file holds, reading it takes a time and a memory that are bounded, and runs nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from shardspec.diagnostics.words import listed
from shardspec.ir.calibration import Calibration, MatmulTable, Sizes
from shardspec.ir.spec import DTYPE_BITS
from shardspec.language.yaml_text.printer import print_scalar
from shardspec.versions import CALIBRATION

#: The key that says what a file is, with its version.
HEAD = "shardspec-calibration"
#: Points of a table along one size, and tables: more are refused.
_MOST_POINTS = 64
_MOST_TABLES = 16
_LARGEST = 2**40
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_WORDS = ("chip", "device_kind", "date", "how")


class CalibrationError(ValueError):
    """What is wrong with a calibration.

    Attributes:
      route: the keys that lead to it.
    """

    def __init__(self, message: str, *route: str) -> None:
        """Keep the keys."""
        super().__init__(message)
        self.route = route


def calibration_of(data: object) -> Calibration:
    """Return the calibration that a file holds.

    Raises:
      CalibrationError: it holds none.
    """
    if not isinstance(data, dict) or HEAD not in data:
        raise CalibrationError(f"it does not say `{HEAD}: {CALIBRATION}`")
    if data[HEAD] != CALIBRATION:
        raise CalibrationError(
            f"it is of another version: this shardspec reads {CALIBRATION}", HEAD
        )
    known = (HEAD, *_WORDS, "versions", "matmul")
    _refuse_others(data, known)
    words = {key: _text(data, key) for key in _WORDS}
    if not _DATE.fullmatch(words["date"]):
        raise CalibrationError(f"`{words['date'][:20]}` is no date, as 2026-11-22 is", "date")
    versions = _table(data, "versions")
    named = tuple((str(key), _text(versions, key, "versions")) for key in versions)
    tables = _table(data, "matmul")
    if len(tables) > _MOST_TABLES:
        raise CalibrationError(f"it has {len(tables)} tables; {_MOST_TABLES} may be", "matmul")
    return Calibration(
        **words,
        versions=named,
        matmuls=tuple(_matmuls(str(dtype), _table(tables, dtype, "matmul")) for dtype in tables),
    )


def _matmuls(dtype: str, data: Mapping[str, Any]) -> MatmulTable:
    route = ("matmul", dtype)
    if dtype not in DTYPE_BITS:
        raise CalibrationError(f"`{dtype[:20]}` is no dtype, as bf16 is", *route)
    _refuse_others(data, ("m", "k", "n", "share"), *route)
    m, k, n = (_sizes(data, name, *route) for name in ("m", "k", "n"))
    shares = tuple(_number(word, *route, "share") for word in _text(data, "share", *route).split())
    wanted = len(m) * len(k) * len(n)
    if len(shares) != wanted:
        told = f"{len(shares)} numbers for {len(m)} x {len(k)} x {len(n)} sizes, {wanted}"
        raise CalibrationError(told, *route, "share")
    if not all(0 < share <= 1 for share in shares):
        raise CalibrationError("a share is more than 0 and at most 1", *route, "share")
    return MatmulTable(dtype, m, k, n, shares)


def _sizes(data: Mapping[str, Any], key: str, *route: str) -> Sizes:
    """Return sizes in ascending order."""
    words = _text(data, key, *route).split()
    if not words or len(words) > _MOST_POINTS:
        raise CalibrationError(
            f"it has {len(words)} sizes; 1 to {_MOST_POINTS} may be", *route, key
        )
    sizes = tuple(_number(word, *route, key) for word in words)
    is_ascending = all(low < high for low, high in pairwise(sizes))
    if not is_ascending or not all(1 <= each <= _LARGEST and each % 1 == 0 for each in sizes):
        raise CalibrationError("sizes are whole numbers from 1, in ascending order", *route, key)
    return tuple(map(int, sizes))


def _number(word: str, *route: str) -> float:
    try:
        found = float(word[:40])
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise CalibrationError(f"`{word[:20]}` is no number", *route)
    return found


def _text(data: Mapping[str, Any], key: str, *route: str) -> str:
    """Return a text; a number or a date that YAML has read is one, too."""
    if key not in data:
        raise CalibrationError(f"`{key}` is missing", *route)
    found = data[key]
    if isinstance(found, dict | list | bool) or found is None:
        raise CalibrationError(f"`{key}` should be text", *route, key)
    return str(found)


def _table(data: Mapping[str, Any], key: str, *route: str) -> dict[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        raise CalibrationError(f"`{key}` should have keys", *route, key)
    return found


def _refuse_others(data: Mapping[str, Any], known: Iterable[str], *route: str) -> None:
    for key in data:
        if key not in known:
            known = listed(f"`{each}`" for each in known)
            raise CalibrationError(
                f"`{str(key)[:40]}` means nothing here; keys are {known}", *route, str(key)
            )


# writing


def calibration_text(made: Calibration) -> str:
    """Return a calibration as its file holds it.

    Invariants:
      round trip: read again it is the same, shares to three digits.
    """
    return "\n".join(_lines(made)) + "\n"


def _lines(made: Calibration) -> Iterator[str]:
    yield f"{HEAD}: {CALIBRATION}"
    for key in _WORDS:
        yield f"{key}: {print_scalar(getattr(made, key))}"
    if made.versions:
        told = ", ".join(
            f"{name}: {print_scalar(each, in_flow=True)}" for name, each in made.versions
        )
        yield f"versions: {{{told}}}"
    if made.matmuls:
        yield "# Matmuls [m, k] x [k, n]: the share that they reach of what is the longer of their"
        yield "# FLOPs at the peak and their bytes to and from memory. Blocks of m, lines of k."
        yield "matmul:"
    for table in made.matmuls:
        yield f"  {table.dtype}:"
        for name in ("m", "k", "n"):
            yield f"    {name}: {' '.join(map(str, getattr(table, name)))}"
        yield "    share: |-"
        yield from _share_lines(table)


def _share_lines(table: MatmulTable) -> Iterator[str]:
    """Yield the shares, a line for each k, an empty line before each m but the first."""
    row = len(table.n)
    for number in range(len(table.m) * len(table.k)):
        if number and number % len(table.k) == 0:
            yield ""
        shares = table.shares[number * row : (number + 1) * row]
        yield "      " + " ".join(f"{share:.3g}".removeprefix("0") for share in shares)
