"""What a change of a spec does to a step, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardspec.analysis.cost_diff import Change, CostDiff
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, flops_text, percent, seconds_text
from shardspec.records import Data, data_of, picked
from shardspec.report.cost import unknown_lines
from shardspec.report.cost_json import uncounted

#: Rows of one kind.
_MOST = 10


def cost_diff_lines(diff: CostDiff) -> Iterator[str]:
    """Yield the lines of one target."""
    if diff.is_same:
        yield f"step on target {diff.target}: costs what it did"
        return
    yield f"step on target {diff.target}, per device"
    yield f"  memory  {diff.mark} {change_text(diff.memory, binary_bytes)}{_fits(diff)}"
    yield from _rows(diff.parts)
    if diff.seconds is not None:
        yield f"  time    ~ {change_text(diff.seconds, seconds_text)}"
    yield f"  FLOPs   {change_text(diff.flops, lambda flops: flops_text(round(flops)))}"
    yield f"  sends   {diff.mark} {change_text(diff.sent, binary_bytes)}"
    yield from _rows(diff.axes)
    if diff.rules:
        yield "  by rule"
        yield from _rows(diff.rules)
    yield from (f"  {line}" for line in unknown_lines(diff.unknown))


def change_text(change: Change, text: Callable[[float], str]) -> str:
    """Return `2.59 GiB -> 1.31 GiB (-49 %)`.

    >>> change_text(Change("", 2048, 1024), binary_bytes), change_text(Change("", 1, 1), str)
    ('2.00 KiB -> 1.00 KiB (-50 %)', '1, as before')
    """
    if change.is_same:
        return f"{text(change.after)}, as before"
    sides = f"{text(change.before)} -> {text(change.after)}"
    if not change.before or not change.after:
        return sides
    sign = "+" if change.after > change.before else "-"
    return f"{sides} ({sign}{percent(abs(change.after - change.before), change.before)})"


def _fits(diff: CostDiff) -> str:
    """Return what has become of fitting, where that changed."""
    old, new = diff.before.memory.fits, diff.after.memory.fits
    if new is None and diff.after.memory.is_partial and new is not old:
        return ", whether it fits is unknown now"
    if old is new or new is None:
        return ""
    return ", may fit now" if new else ", DOES NOT FIT any more"


def _rows(changes: Sequence[Change]) -> Iterator[str]:
    rows = [
        (each.name, change_text(each, binary_bytes), ", ".join(each.places))
        for each in changes[:_MOST]
    ]
    yield from columns(rows, indent=10)
    if changes[_MOST:]:
        yield f"          ... and {len(changes) - _MOST} more"


def cost_diff_data(diff: CostDiff) -> Data:
    """Return one target as JSON data: bytes and FLOPs as whole numbers, times in seconds."""
    return {
        "same": diff.is_same,
        "basis": diff.after.basis,
        "memory": _sides(diff.memory),
        "parts": {each.name: _sides(each) for each in diff.parts},
        "step_s": diff.seconds and picked(diff.seconds, "before after"),
        "flops": _sides(diff.flops),
        "wire_bytes": _sides(diff.sent),
        "axes": {each.name: _sides(each) for each in diff.axes},
        "unknown": [data_of(uncounted(each)) for each in diff.unknown],
        "rules": [{**picked(each, "rule=name places"), **_sides(each)} for each in diff.rules],
    }


def _sides(change: Change) -> dict[str, int]:
    return {"before": round(change.before), "after": round(change.after)}
