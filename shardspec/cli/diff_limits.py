"""`--fail-on`: how much may move before a diff fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click

from shardspec.analysis.layout_diff import Mark, TargetDiff
from shardspec.ir.grouping import counted
from shardspec.ir.units import binary_bytes, percent

_MEMORY = re.compile(r"memory\+(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[KMGT]iB|B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition that fails a diff.

    Attributes:
      text: as it was asked for.
      share: growth of the bytes per device, 0.05 for 5 %.
      bytes: growth in bytes, where it is stated so.
    """

    kind: Literal["memory", "reshard", "change"]
    text: str
    share: float | None = None
    bytes: float | None = None


def parse_limit(text: str) -> Limit:
    """Return the limit that `text` states.

    Raises:
      click.UsageError: it states none.
    """
    if text == "reshard":
        return Limit("reshard", text)
    if text == "change":
        return Limit("change", text)
    found = _MEMORY.fullmatch(text)
    if found is None:
        forms = "memory+5%, memory+64MiB, reshard, change"
        raise click.UsageError(f"--fail-on {text}: no such limit; as in {forms}")
    number = float(found["number"])
    if found["unit"] == "%":
        return Limit("memory", text, share=number / 100)
    return Limit("memory", text, bytes=number * _UNITS[found["unit"]])


def tripped(limit: Limit, diffs: Sequence[TargetDiff]) -> str | None:
    """Return what moved beyond the limit, and on which targets; None where nothing did."""
    over = [(diff.name, said) for diff in diffs if (said := _over(limit, diff)) is not None]
    if not over:
        return None
    return f"{limit.text}: {'; '.join(f'{name}: {said}' for name, said in over)}"


def _over(limit: Limit, diff: TargetDiff) -> str | None:
    """Return what moved beyond the limit on one target; None where nothing did."""
    if limit.kind == "change":
        return None if diff.is_same else _changed(diff)
    if limit.kind == "reshard":
        still = {Mark.SAME, Mark.NEW, Mark.GONE}
        count = sum(move.mark not in still for move in diff.moves)
        return f"{counted(count, 'array')} to reshard" if count else None
    return _grown(limit, diff)


def _changed(diff: TargetDiff) -> str:
    if diff.before is None or diff.after is None:
        return "new" if diff.before is None else "gone"
    moved = sum(move.mark is not Mark.SAME for move in diff.moves)
    counts = ((moved, "array"), (len(diff.activations), "activation"))
    said = " and ".join(counted(count, what) for count, what in counts if count)
    return f"{said} moved" if said else "another machine or order of devices"


def _grown(limit: Limit, diff: TargetDiff) -> str | None:
    if diff.before is None or diff.after is None:
        return None
    before, after = diff.before.per_device_bytes, diff.after.per_device_bytes
    allowed = before * (1 + limit.share) if limit.share is not None else before + (limit.bytes or 0)
    if after <= allowed:
        return None
    more = f", +{percent(after - before, before)}" if before else ""
    return f"{binary_bytes(before)} -> {binary_bytes(after)} per device{more}"
