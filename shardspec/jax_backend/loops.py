"""What a `lax.scan` carries, read from a traced program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many values of a scan are the same in each turn, and how many it carries.

    What it takes a part of for each turn, or stacks, has one dimension more outside of its body;
    names of the parameters that count them depend on the version of JAX.
    """
    body = equation.params["jaxpr"]
    carried = _of_one_rank(equation.outvars, body.out_avals)
    return _of_one_rank(equation.invars, body.in_avals) - carried, carried


def _of_one_rank(outside: Iterable[Any], inside: Iterable[Any]) -> int:
    return sum(len(v.aval.shape) == len(a.shape) for v, a in zip(outside, inside, strict=True))
