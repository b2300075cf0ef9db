"""What moved between two layouts: as text, as a comment on a pull request, as JSON.

Text groups by what moved it. The comment is a table of targets, then what moved, folded. JSON has
sizes in bytes and arrays in natural order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardspec.analysis import layout_diff
from shardspec.analysis.layout_diff import ArrayMove, DimMove, Mark, TargetDiff, TargetLayout
from shardspec.diagnostics import words
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, counted, grouped, natural, percent
from shardspec.ir.spec import override_text, target_text
from shardspec.language.catalogue import with_count
from shardspec.records import Data, picked
from shardspec.report.table import beside_data, entries_data
from shardspec.versions import DIFF_JSON

#: What a mark means, said once under a diff that uses it.
MEANING = {
    Mark.MORE: "sharded more",
    Mark.LESS: "sharded less",
    Mark.OTHER: "as many shards over other mesh axes",
    Mark.SAME: "same answer by another rule",
    Mark.NEW: "new array",
    Mark.GONE: "array is gone",
    Mark.RESIZED: "array has another shape or dtype",
    Mark.MEMORY: "in another memory",
    Mark.SUMS: "a sum over other mesh axes",
}

_ORDER = tuple(MEANING)

#: Rows of one cause, where several targets are shown.
_MOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Cause:
    """Arrays that one and the same change moved."""

    mark: Mark
    dims: tuple[DimMove, ...]
    moves: tuple[ArrayMove, ...]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """Arrays of one cause that differ in layer numbers only."""

    name: str
    count: int
    before: str
    after: str
    bytes_before: int
    bytes_after: int

    @property
    def title(self) -> str:
        """Return their name, and how many they are where that is more than one."""
        return f"{self.name}{f' x{self.count}' if self.count > 1 else ''}"


def causes(diff: TargetDiff) -> tuple[Cause, ...]:
    """Return the moves of a target, those of one change together.

    Lines that were edited come first, then what they moved beside; of each the loudest mark first.
    In which order the dimensions that moved stand in an array makes no other change.
    """
    groups = grouped(diff.moves, lambda move: (move.mark, frozenset(move.dims)))
    found = [
        Cause(mark, tuple(sorted(moves[0].dims, key=_is_moved_beside)), tuple(moves))
        for (mark, _), moves in groups.items()
    ]
    return tuple(sorted(found, key=_rank))


def _rank(cause: Cause) -> tuple[bool, int]:
    return bool(cause.dims) and all(map(_is_moved_beside, cause.dims)), _ORDER.index(cause.mark)


def _is_moved_beside(dim: DimMove) -> bool:
    """Say whether a dimension goes by the line that it went by: another line moved it."""
    if dim.why_before is None or dim.why_after is None:
        return False
    return bool(dim.why_after.line) and dim.why_before.line == dim.why_after.line


def move_rows(cause: Cause) -> tuple[MoveRow, ...]:
    """Return the arrays of one cause, collapsed, in natural order."""

    def answers(move: ArrayMove) -> tuple[str, str]:
        return array_text(move.before, cause.mark), array_text(move.after, cause.mark)

    rows = []
    groups = grouped(cause.moves, lambda move: (words.template(move.path), *answers(move)))
    for (_, before, after), moves in groups.items():
        paths = sorted((move.path for move in moves), key=natural)
        name = words.collapsed(paths) or f"{paths[0]} .."
        sums = (sum(m.bytes_before for m in moves), sum(m.bytes_after for m in moves))
        rows.append((natural(paths[0]), MoveRow(name, len(paths), before, after, *sums)))
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def diff_lines(diffs: Iterable[TargetDiff], moving: str = "restore") -> Iterator[str]:
    """Yield the lines of a diff; none where nothing changed.

    One target is shown whole; of several, each cause shows its first arrays.

    Args:
      moving: what moves the arrays, in one word.
    """
    marks: set[Mark] = set()
    changed = [diff for diff in diffs if not diff.is_same]
    most_rows = None if len(changed) == 1 else _MOST_ROWS
    for number, diff in enumerate(changed):
        if number:
            yield ""
        yield from _target_lines(diff, most_rows, moving)
        marks.update(move.mark for move in diff.moves)
    shown = [f"{mark} {MEANING[mark]}" for mark in _ORDER if mark in marks and mark.value in "+-~>"]
    if shown:
        yield ""
        yield f"({'; '.join(shown)})"


def _target_lines(diff: TargetDiff, most_rows: int | None, moving: str) -> Iterator[str]:
    if diff.before is None or diff.after is None:
        verb = "new" if diff.before is None else "gone"
        yield f"target {diff.name} is {verb}: {machine(diff.present)}"
        return
    yield f"target {diff.name}   {machine(diff.after)}"
    if diff.machine_changed:
        yield from _after("  machine     ", machine_change(diff.before, diff.after))
    yield f"  per device  {bytes_change(diff.before.per_device_bytes, diff.after.per_device_bytes)}"
    hosts = (diff.before.host_bytes, diff.after.host_bytes)
    if any(hosts):
        yield f"  on host     {bytes_change(*hosts)}"
    if diff.moves or diff.held_by is not None:
        yield f"  {moving:<10}  {restore_text(diff)}"
    for cause in causes(diff):
        head = f"  {cause.mark} {counted(len(cause.moves), 'array')}   "
        yield from _after(head, "\n".join(cause_texts(cause)))
        rows = move_rows(cause)
        yield from _row_lines(rows[:most_rows])
        if rows[most_rows or len(rows) :]:
            left = len(rows) - (most_rows or 0)
            yield f"      ... and {left} more groups; diff --target {diff.name} shows all"
    for before, after in diff.activations:
        yield f"  ~ activation {activation_change(before, after)}"


def _after(head: str, text: str) -> Iterator[str]:
    """Yield `text` behind `head`, its further lines under its first."""
    first, *rest = text.split("\n")
    yield f"{head}{first}"
    yield from (" " * len(head) + line for line in rest)


def _row_lines(rows: Sequence[MoveRow]) -> Iterator[str]:
    cells = []
    for row in rows:
        sides = " -> ".join(dict.fromkeys(filter(None, (row.before, row.after))))
        sizes = dict.fromkeys((row.bytes_before, row.bytes_after))
        cells.append((row.title, sides, " -> ".join(map(binary_bytes, sizes))))
    yield from columns(cells, indent=6, paths=0)


def array_text(array: layout_diff.ArrayLayout | None, mark: Mark) -> str:
    """Return one side of a move: the answer, and type where that is what changed."""
    if array is None:
        return ""
    answer = override_text(array.partition.dims, array.partition.sums)
    if array.memory is not None or mark is Mark.MEMORY:
        answer += f" in {array.memory or 'device'}"
    if mark in {Mark.NEW, Mark.GONE, Mark.RESIZED}:
        return f"{array.dtype}{list(array.shape)} {answer}"
    return answer


def machine(target: TargetLayout) -> str:
    """Return `tpu v4 4x8x8, mesh data=16 model=16`."""
    on = f"{with_count(target.hardware)}, " if target.hardware else ""
    return f"{on}mesh {target.mesh.heading}"


def machine_change(before: TargetLayout, after: TargetLayout) -> str:
    """Return what is another: hardware, mesh, or only the order of devices."""
    if machine(before) != machine(after):
        return f"was {machine(before)}"
    types = [
        f"`{new.axis.name}` is {new.axis.axis_type}, was {old.axis.axis_type}"
        for old, new in zip(before.axes, after.axes, strict=True)
        if new.axis.axis_type != old.axis.axis_type
    ]
    if before.devices == after.devices:
        return ", ".join(types) or "mesh axes cross slices or nodes where they did not, or stopped"
    turned = [
        f"\n`{new.axis.name}` runs over {new.runs} (was {old.runs})"
        for old, new in zip(before.axes, after.axes, strict=True)
        if new.runs != old.runs
    ]
    return "devices are in another order" + "".join(turned)


def bytes_change(before: int, after: int) -> str:
    """Return `2.59 GiB -> 1.31 GiB (-1.28 GiB, -49 %)`."""
    if before == after:
        return f"{binary_bytes(after)}, as before"
    sign = "+" if after > before else "-"
    difference = abs(after - before)
    share = f", {sign}{percent(difference, before)}" if before else ""
    sizes = f"{binary_bytes(before)} -> {binary_bytes(after)}"
    return f"{sizes} ({sign}{binary_bytes(difference)}{share})"


def unchanged(diffs: Sequence[TargetDiff], before: str, after: str) -> str:
    """Return that all is as before, where there is something that could have changed."""
    if any(diff.after is not None and diff.after.arrays for diff in diffs):
        return f"{after} places every array as {before}."
    return f"nothing to compare: neither {before} nor {after} has arrays."


def restore_text(diff: TargetDiff) -> str:
    """Return what restoring a checkpoint of the old layout into the new one moves."""
    assert diff.before is not None
    assert diff.after is not None
    found = layout_diff.restore(diff.before, diff.after, diff.held_by)
    left_out = len(diff.after.arrays) - found.compared
    if not found.compared:
        return "nothing to compare: no array has the same path, shape and dtype on both sides"
    more = f"; {left_out:,} new or of another shape not counted" if left_out else ""
    if not found.arrays:
        kept = "every device keeps a part of what it held, or all"
        return f"nothing moves of {counted(found.compared, 'array')}: {kept}{more}"
    basis = "" if found.is_exact else "at most "
    return (
        f"{counted(len(found.arrays), 'array')} to reshard: {basis}"
        f"{binary_bytes(found.total_bytes)} move, {binary_bytes(found.most_bytes)} to one device"
        f"{more}"
    )


def cause_texts(cause: Cause) -> tuple[str, ...]:
    """Return `mlp: model -> data, by spec.yaml:31 (mlp -> data)` for each dimension that moved."""
    if cause.mark in {Mark.MEMORY, Mark.SUMS}:
        return (MEANING[cause.mark], *map(dim_text, cause.dims))
    return tuple(map(dim_text, cause.dims)) or (MEANING[cause.mark],)


def dim_text(dim: DimMove) -> str:
    """Return how one dimension moved, and which line of either side says so, or that the mesh did.

    A rule that stands as it stood has moved nothing: other sizes of its mesh axes have.
    """
    name = dim.logical_axis or "_"
    before, after = target_text(dim.before), target_text(dim.after)
    if dim.before == dim.after and dim.ways_before != dim.ways_after:
        return f"{name}: {before}={dim.ways_before} -> {dim.ways_after}, by the mesh"
    moved = f"{name}: {before} -> {after}" if before != after else f"{name}: {after}"
    if dim.why_after is None:
        return moved
    if dim.why_before is None or dim.why_before.text == dim.why_after.text:
        return f"{moved}, by {reason_text(dim.why_after)}"
    return f"{moved}, by {reason_text(dim.why_after)}; was {reason_text(dim.why_before)}"


def reason_text(reason: layout_diff.Reason) -> str:
    """Return `spec.yaml:31 (mlp -> data)`."""
    return f"{reason.place} ({reason.text})" if reason.place else reason.text


def activation_change(
    before: layout_diff.ActivationLayout | None, after: layout_diff.ActivationLayout | None
) -> str:
    """Return how a named activation has changed."""
    present = after or before
    assert present is not None
    sides = (_activation_side(side) if side else "none" for side in (before, after))
    was = before.partition.dims if before is not None else ()
    reasons = zip(was, after.partition.dims, after.why, strict=False) if after is not None else ()
    by = dict.fromkeys(reason_text(why) for old, new, why in reasons if old != new)
    return f"{present.name}: {' -> '.join(sides)}{', by ' if by else ''}{' and '.join(by)}"


def _activation_side(side: layout_diff.ActivationLayout) -> str:
    names = " ".join(name or "_" for name in side.logical_axes)
    memory = f" in {side.memory}" if side.memory else ""
    return f"[{names}] {override_text(side.partition.dims, side.partition.sums)}{memory}"


#: Rows shown for one cause; a comment is read by people.
_MOST_MARKDOWN_ROWS = 20


def markdown_lines(diffs: Sequence[TargetDiff], before: str, after: str) -> Iterator[str]:
    """Yield the lines of a comment in GitHub's Markdown."""
    changed = [diff for diff in diffs if not diff.is_same]
    if not changed:
        yield f"**Sharding unchanged**: {unchanged(diffs, _code(before), _code(after))}"
        return
    yield f"### Sharding: {_code(before)} → {_code(after)}"
    yield ""
    yield "| target | per device before | after | change | arrays changed |"
    yield "|---|--:|--:|--:|--:|"
    yield from map(_row, diffs)
    for diff in changed:
        if diff.before is not None and diff.after is not None:
            yield from _details(diff)


def _row(diff: TargetDiff) -> str:
    if diff.before is None or diff.after is None:
        size = binary_bytes(diff.present.per_device_bytes)
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
    if diff.moves or diff.held_by is not None:
        yield f"- restore: {_escaped(restore_text(diff))}"
    for cause in causes(diff):
        first, *rest = map(_escaped, cause_texts(cause))
        yield f"- `{cause.mark}` {counted(len(cause.moves), 'array')}: {first}"
        yield from (f"  and {each}" for each in rest)
        rows = move_rows(cause)
        yield from (f"  - {_row_text(row)}" for row in rows[:_MOST_MARKDOWN_ROWS])
        if len(rows) > _MOST_MARKDOWN_ROWS:
            yield f"  - and {len(rows) - _MOST_MARKDOWN_ROWS} more groups"
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


def diff_text(
    diffs: Sequence[TargetDiff],
    before: str,
    after: str,
    failed: Sequence[str] = (),
    steps: Mapping[str, Any] | None = None,
) -> str:
    """Return the diff as JSON text, with a line break at the end.

    Args:
      before: the name of the old side; `after` is that of the new one.
      failed: the gates that it trips, each with what moved.
      steps: by target, what became of a step; none without one.
    """
    import json

    targets = []
    for diff in diffs:
        step = {"step": steps[diff.name]} if steps and diff.name in steps else {}
        targets.append({**_target(diff), **step})
    head = {"schema": DIFF_JSON, "old": before, "new": after, "failed": list(failed)}
    return json.dumps({**head, "targets": targets}, indent=2) + "\n"


def _target(diff: TargetDiff) -> Data:
    moves = sorted(diff.moves, key=lambda move: natural(move.path))
    return {
        **picked(diff, "target=name same=is_same machine_changed"),
        "before": diff.before and _side(diff.before),
        "after": diff.after and _side(diff.after),
        "restore": _restore(diff),
        "arrays": [_move(move) for move in moves],
        "activations": [(after or before).name for before, after in diff.activations],  # type: ignore[union-attr]
    }


def _side(target: TargetLayout) -> Data:
    return {
        "hardware": target.hardware or None,
        **picked(target, "mesh=mesh.sizes per_device_bytes"),
        **({"host_bytes": target.host_bytes} if target.host_bytes else {}),
    }


def _restore(diff: TargetDiff) -> Data | None:
    if diff.before is None or diff.after is None:
        return None
    found = layout_diff.restore(diff.before, diff.after, diff.held_by)
    sizes = picked(found, "total_bytes most_bytes exact=is_exact compared")
    return {"arrays": len(found.arrays), **sizes}


def _move(move: ArrayMove) -> Data:
    return {
        **picked(move, "path mark"),
        "before": move.before and _array(move.before),
        "after": move.after and _array(move.after),
        "dims": [_dim(dim) for dim in move.dims],
        **picked(move, "bytes_before bytes_after"),
    }


def _array(array: layout_diff.ArrayLayout) -> Data:
    more = beside_data(array.partition.sums, array.memory)
    return {**picked(array, "shape dtype"), "spec": entries_data(array.partition), **more}


def _dim(dim: DimMove) -> Data:
    whys = {"why_before": dim.why_before, "why_after": dim.why_after}
    reasons = {key: why and picked(why, "rule=text place") for key, why in whys.items()}
    return {**picked(dim, "axis=logical_axis before after"), **reasons}
