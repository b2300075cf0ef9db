"""A measured step compared with its prediction, as lines.

The tables are by mesh axis, line and rule; every second of the step is in one row of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardspec.analysis.comparison import (
    NAMED,
    ComparedRow,
    Comparison,
    RunRow,
    Spent,
    SpentBy,
)
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import counted, percent, seconds_text
from shardspec.ir.step import Carried

#: Tables, by what their rows are.
_TABLES: tuple[tuple[SpentBy, str], ...] = (
    ("axis", "by mesh axis"),
    ("line", "by line"),
    ("rule", "by rule"),
)
#: What is named of what the model gets wrong, and of what it does not predict.
_MOST = 5
#: What a model need not be told that it gets wrong: a share of the step.
_LITTLE = 0.01


def comparison_lines(found: Comparison, *, top: int) -> Iterator[str]:
    """Yield a comparison: the step, its tables, and what the model gets wrong.

    Args:
      top: rows of a table at most.
    """
    steps = f"{counted(found.steps, 'step')} on {counted(found.devices, 'device')}"
    yield f"measured  {found.run}: {found.module}, {steps}"
    yield f"step      {_step(found)}"
    yield from _exposed(found)
    told = ((found.explained(kind), words) for kind, words in NAMED)
    shares = (f"{percent(x, 1)} of {words}" for x, words in told if x is not None)
    if named := " and ".join(shares):
        yield f"named     line and rule are known of {named}, by time"
    for by, words in _TABLES:
        yield from _table(found.rows(by), words, found.seconds, top)
    yield from _wrong(found)
    yield from _unpredicted(found.unpredicted, found.seconds)
    yield from (f"note      {note}" for note in found.notes)


def _step(found: Comparison) -> str:
    ends = f"{seconds_text(found.low)} to {seconds_text(found.high)}"
    predicted = (
        "not predicted: no speeds are known of this target; `calibrate --from` measures them"
    )
    if found.predicted_seconds:
        off = _off(found.predicted_seconds, found.seconds)
        predicted = f"~ {seconds_text(found.predicted_seconds)} predicted, {off}"
    period = f", one starts every {seconds_text(found.period)}" if found.period else ""
    return f"{seconds_text(found.seconds)} ({ends}){period}; {predicted}"


def _exposed(found: Comparison) -> Iterator[str]:
    sent = [each for each in found.measured if each.kind == "collective"]
    whole = sum(each.seconds for each in sent)
    if not whole:
        return
    shown = sum(each.shown for each in sent)
    line = f"exposed   {seconds_text(shown)} of {seconds_text(whole)} of collectives"
    if found.predicted_seconds is not None:
        ours = [each for each in found.predicted if each.kind == "collective"]
        predicted = seconds_text(sum(each.shown for each in ours))
        line += f", ~ {predicted} of {seconds_text(sum(each.seconds for each in ours))} predicted"
    yield line


def _table(rows: tuple[ComparedRow, ...], words: str, seconds: float, top: int) -> Iterator[str]:
    cells: list[tuple[str, ...]] = [(words, "predicted", "measured", "of the step", "off", "")]
    cells += (_cells(row, seconds) for row in (*rows[:top], *_rest(rows[top:])))
    if all(row.predicted is None for row in rows):
        cells = [(row[0], *row[2:4], row[5]) for row in cells]
    yield ""
    yield from columns(cells, right=range(1, len(cells[0]) - 1), paths=0, indent=0, is_prose=True)


def _rest(rows: Sequence[ComparedRow]) -> Iterator[ComparedRow]:
    """Yield the sum of the rows that are not shown, if there are any."""
    if rows:
        yield ComparedRow(
            f"{counted(len(rows), 'row')} more",
            None if rows[0].predicted is None else sum(row.predicted or 0.0 for row in rows),
            sum(row.measured for row in rows),
            sum(row.collectives for row in rows),
        )


def _cells(row: ComparedRow, seconds: float) -> tuple[str, ...]:
    predicted = "unknown" if row.predicted is None else f"~ {seconds_text(row.predicted)}"
    off = "" if row.predicted is None else signed_text(row.off)
    hidden = row.collectives - row.measured
    told = ""
    if row.collectives and hidden > _LITTLE * row.collectives:
        told = f"collectives run for {seconds_text(row.collectives)}"
    share = percent(row.measured, seconds)
    return row.name, predicted, seconds_text(row.measured), share, off, told


def signed_text(seconds: float) -> str:
    """Return `+1.20 s`: how much longer something takes."""
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _off(predicted: float, measured: float) -> str:
    return f"{(measured - predicted) / predicted * 100:+.0f} %"


def _wrong(found: Comparison) -> Iterator[str]:
    rows = [row for row in found.wrong[:_MOST] if abs(row.off) > _LITTLE * found.seconds]
    if not rows:
        return
    yield ""
    yield "what the model gets most wrong:"
    cells = (_cells(row, found.seconds) for row in rows)
    yield from columns(cells, right=(1, 2, 3, 4), paths=0)


def _unpredicted(rows: tuple[Spent, ...], seconds: float) -> Iterator[str]:
    for number, each in enumerate(rows[:_MOST]):
        if not number:
            yield ""
        what = [f"{each.what} over {'+'.join(each.mesh_axes)}", str(each.place)]
        what += [each.array] if each.array != str(Carried()) else []
        took = f"{seconds_text(each.seconds)} ({percent(each.shown, seconds)} of the step)"
        rules = " + ".join(map(str, each.askers)) or "rule unknown"
        yield f"not predicted: {', '.join((*what, took, rules))}"


def run_diff_lines(
    before: Comparison, after: Comparison, rows: Mapping[SpentBy, Sequence[RunRow]]
) -> Iterator[str]:
    """Yield what became slower, and faster, from one run to another."""
    yield f"{before.run} -> {after.run}"
    change = _off(before.seconds, after.seconds)
    yield f"step  {seconds_text(before.seconds)} -> {seconds_text(after.seconds)}, {change}"
    for by, words in _TABLES:
        found = [row for row in rows[by] if abs(row.after - row.before) > _LITTLE * after.seconds]
        cells = [(words, "before", "after", "")]
        for row in found:
            times = seconds_text(row.before), seconds_text(row.after)
            cells.append((row.name, *times, signed_text(row.after - row.before)))
        if found:
            yield ""
            yield from columns(cells, right=(1, 2, 3), paths=0, indent=0, is_prose=True)
    for run in (before, after):
        yield from (f"note  {run.run}: {note}" for note in run.notes)
