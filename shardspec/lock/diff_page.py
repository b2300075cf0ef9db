"""What moved between two layouts, as a piece of a page: before and after, and what moved it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost_diff import CostDiff
from shardspec.analysis.layout_diff import TargetDiff
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.lock import diff_forms as forms
from shardspec.report.cost import cost_diff_lines
from shardspec.report.html import Html, joined, table, tag
from shardspec.report.page_pieces import bar

#: Rows of one cause.
_MOST_ROWS = 60


def diff_piece(
    diffs: Sequence[TargetDiff], costs: Sequence[CostDiff], before: str, after: str
) -> Html:
    """Return what changed from `before` to `after`: each target, then what moved and why.

    Args:
      costs: of a step, on the targets where both sides have one.
    """
    changed = [diff for diff in diffs if not diff.is_same]
    if not changed and all(cost.is_same for cost in costs):
        return tag("p", forms.unchanged(diffs, before, after))
    first = ("target", "arrays per device, before", "after")
    headings = (*first, "change", "arrays changed", "restore")
    rows = map(_row, diffs)
    steps = {cost.target: cost for cost in costs}
    details = (_details(diff, steps.get(diff.name)) for diff in diffs if diff in changed)
    lone = (_step(cost) for cost in costs if cost.target not in {diff.name for diff in changed})
    return joined((table(headings, rows, (1, 2, 4), class_="stack"), *details, *lone))


def _row(diff: TargetDiff) -> tuple[str, ...]:
    if diff.before is None or diff.after is None:
        size = binary_bytes(diff.present.per_device_bytes)
        sizes = (size, "") if diff.after is None else ("", size)
        return (diff.name, *sizes, "gone" if diff.after is None else "new", "", "")
    old, new = diff.before.per_device_bytes, diff.after.per_device_bytes
    kind = "up" if new > old else "down" if new < old else None
    change = tag("span", forms.bytes_change(old, new), class_=kind)
    moved = forms.restore_text(diff) if diff.moves else ""
    return diff.name, binary_bytes(old), binary_bytes(new), change, str(len(diff.moves)), moved


def _details(diff: TargetDiff, cost: CostDiff | None) -> Html:
    machine = tag("span", forms.machine(diff.present), class_="quiet")
    inner = [tag("summary", tag("b", diff.name), " ", machine)]
    if diff.before is not None and diff.after is not None:
        inner.append(_bars(diff.before.per_device_bytes, diff.after.per_device_bytes))
        if diff.machine_changed:
            inner.append(tag("pre", forms.machine_change(diff.before, diff.after)))
    inner += [piece for cause in forms.causes(diff) for piece in _cause(cause)]
    for before, after in diff.activations:
        inner.append(tag("p", f"activation {forms.activation_change(before, after)}"))
    if cost is not None:
        inner.append(_step(cost))
    return tag("details", *inner, class_="change", open=True)


def _bars(before: int, after: int) -> Html:
    """Return two bars to one scale."""
    whole = max(before, after)
    rows = (
        tag("div", tag("span", name, class_="quiet"), bar((("part-parameters", "", size),), whole))
        for name, size in (("before", before), ("after", after))
    )
    return tag("div", *rows, class_="sides")


def _cause(cause: forms.Cause) -> Iterator[Html]:
    texts = "; ".join(forms.cause_texts(cause))
    mark = tag("span", str(cause.mark), class_="mark", title=forms.MEANING[cause.mark])
    count = counted(len(cause.moves), "array")
    yield tag("h4", mark, f" {count}, {forms.MEANING[cause.mark]}")
    if texts != forms.MEANING[cause.mark]:
        yield tag("p", tag("code", texts))
    rows = forms.move_rows(cause)
    cells = (
        (row.title, row.before, row.after, *map(binary_bytes, (row.bytes_before, row.bytes_after)))
        for row in rows[:_MOST_ROWS]
    )
    headings = ("array", "before", "after", "bytes before", "after")
    yield table(headings, cells, (3, 4), class_="moves")
    if len(rows) > _MOST_ROWS:
        yield tag("p", f"and {len(rows) - _MOST_ROWS} more groups", class_="quiet")


def _step(cost: CostDiff) -> Html:
    return tag("pre", "\n".join(cost_diff_lines(cost)), tabindex="0")
