"""`--fail-on`: how much may move before a diff fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click

from shardspec.analysis.layout_diff import Mark, TargetDiff

_MEMORY = re.compile(r"memory\+(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[KMGT]iB|B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition that fails a diff.

    Attributes:
      share: growth of the bytes per device, 0.05 for 5 %.
      bytes: growth in bytes, where it is stated so.
    """

    kind: Literal["memory", "reshard", "change"]
    share: float | None = None
    bytes: float | None = None


def parse_limit(text: str) -> Limit:
    """Return the limit that `text` states.

    Raises:
      click.UsageError: it states none.
    """
    if text == "reshard":
        return Limit("reshard")
    if text == "change":
        return Limit("change")
    found = _MEMORY.fullmatch(text)
    if found is None:
        forms = "memory+5%, memory+64MiB, reshard, change"
        raise click.UsageError(f"--fail-on {text}: no such limit; as in {forms}")
    number = float(found["number"])
    if found["unit"] == "%":
        return Limit("memory", share=number / 100)
    return Limit("memory", bytes=number * _UNITS[found["unit"]])


def is_over(limit: Limit, diffs: Sequence[TargetDiff]) -> bool:
    """Say whether some target moved beyond the limit."""
    if limit.kind == "change":
        return not all(diff.is_same for diff in diffs)
    if limit.kind == "reshard":
        still = {Mark.SAME, Mark.NEW, Mark.GONE}
        return any(move.mark not in still for diff in diffs for move in diff.moves)
    return any(_grows(limit, diff) for diff in diffs)


def _grows(limit: Limit, diff: TargetDiff) -> bool:
    if diff.before is None or diff.after is None:
        return False
    before, after = diff.before.per_device_bytes, diff.after.per_device_bytes
    allowed = before * (1 + limit.share) if limit.share is not None else before + (limit.bytes or 0)
    return after > allowed
