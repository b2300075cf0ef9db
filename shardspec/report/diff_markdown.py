"""A diff as a comment on a pull request: a table of targets, then what moved, folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.layout_diff import TargetDiff
from shardspec.ir.grouping import counted
from shardspec.ir.units import binary_bytes, percent
from shardspec.report.layout_diff import (
    MoveRow,
    activation_change,
    cause_texts,
    causes,
    machine,
    machine_change,
    move_rows,
    restore_text,
)

#: Rows shown for one cause; a comment is read by people.
_MOST_ROWS = 20


def markdown_lines(diffs: Sequence[TargetDiff], before: str, after: str) -> Iterator[str]:
    """Yield the lines of a comment in GitHub's Markdown."""
    changed = [diff for diff in diffs if not diff.is_same]
    if not changed:
        yield f"**Sharding unchanged**: {_code(after)} places every array as {_code(before)}."
        return
    yield f"### Sharding: {_code(before)} → {_code(after)}"
    yield ""
    yield "| target | per device before | after | change | arrays moved |"
    yield "|---|--:|--:|--:|--:|"
    yield from map(_row, diffs)
    for diff in changed:
        if diff.before is not None and diff.after is not None:
            yield from _details(diff)


def _row(diff: TargetDiff) -> str:
    if diff.before is None or diff.after is None:
        side = diff.before or diff.after
        assert side is not None
        size = binary_bytes(side.per_device_bytes)
        sizes = f"| {size} | gone" if diff.after is None else f"| new | {size}"
        return f"| {_code(diff.name)} {sizes} |  |  |"
    before, after = diff.before.per_device_bytes, diff.after.per_device_bytes
    sign = "+" if after > before else "−"
    change = f"{sign}{percent(abs(after - before), before)}" if after != before and before else "–"
    cells = (_code(diff.name), binary_bytes(before), binary_bytes(after), change)
    return f"| {' | '.join(cells)} | {len(diff.moves)} |"


def _details(diff: TargetDiff) -> Iterator[str]:
    assert diff.before is not None
    assert diff.after is not None
    yield ""
    summary = f"{diff.name}: {machine(diff.after)}"
    yield f"<details><summary>{_escaped(summary)}</summary>"
    yield ""
    if diff.machine_changed:
        change = machine_change(diff.before, diff.after).replace("\n", "; ")
        yield f"- machine: {_escaped(change)}"
    if diff.moves:
        yield f"- restore: {_escaped(restore_text(diff.before, diff.after))}"
    for cause in causes(diff):
        first, *rest = map(_escaped, cause_texts(cause))
        yield f"- `{cause.mark}` {counted(len(cause.moves), 'array')}: {first}"
        yield from (f"  and {each}" for each in rest)
        rows = move_rows(cause)
        yield from (f"  - {_row_text(row)}" for row in rows[:_MOST_ROWS])
        if len(rows) > _MOST_ROWS:
            yield f"  - and {len(rows) - _MOST_ROWS} more groups"
    for before, after in diff.activations:
        yield f"- activation {_escaped(activation_change(before, after))}"
    yield ""
    yield "</details>"


def _row_text(row: MoveRow) -> str:
    sides = " → ".join(_code(side) for side in dict.fromkeys((row.before, row.after)) if side)
    sizes = " → ".join(dict.fromkeys(map(binary_bytes, (row.bytes_before, row.bytes_after))))
    count = f" ×{row.count}" if row.count > 1 else ""
    return f"{_code(row.name)}{count}: {sides}, {sizes}"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _escaped(text: str) -> str:
    """Return text with what Markdown and HTML would read as their own made harmless."""
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), ("*", "\\*"), ("_", "\\_"), ("|", "\\|")):
        text = text.replace(char, entity)
    return text
