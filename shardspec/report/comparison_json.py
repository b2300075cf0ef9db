"""A measured step compared with its prediction, as a record of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from shardspec.analysis.comparison import NAMED, Comparison, RunRow, Spent, SpentBy
from shardspec.ir.step import Place
from shardspec.records import OMITTED, data_of
from shardspec.report.findings_forms import relative
from shardspec.versions import PACKAGE

Whole = Annotated[int, 1]


class Line(NamedTuple):
    """A line of the user's code, counted from 1."""

    file: str
    line: Whole

    def __str__(self) -> str:
        """Return `model.py:71`."""
        return f"{self.file}:{self.line}"


def line_of(place: Place) -> Line | None:
    """Return a line of the code; None where none is known."""
    return Line(relative(place.file), place.line) if place.is_known else None


class SpentRow(NamedTuple):
    """What one operation takes, as `Spent` has it."""

    kind: str
    what: str
    place: Line | None
    phase: str
    mesh_axes: tuple[str, ...]
    array: str | None
    rules: tuple[str, ...]
    s: float
    shown_s: float
    runs: float


class MeasuredRun(NamedTuple):
    """A measured step beside its prediction, as `Comparison` has it.

    Attributes:
      named: the share of the time of collectives and of products whose line and rule are known.
    """

    run: str
    module: str
    devices: int
    steps: int
    step_s: float
    low_s: float
    high_s: float
    period_s: float | None
    predicted_s: float | None
    named: dict[str, float]
    operations: tuple[SpentRow, ...]
    predicted: tuple[SpentRow, ...] = ()
    unpredicted: tuple[SpentRow, ...] = ()
    notes: Annotated[tuple[str, ...], OMITTED] = ()


def measured_run(found: Comparison) -> MeasuredRun:
    """Return a comparison as the record that JSON holds."""
    named = {kind: found.explained(kind) for kind, _ in NAMED}
    return MeasuredRun(
        found.run,
        found.module,
        found.devices,
        found.steps,
        found.seconds,
        found.low,
        found.high,
        found.period,
        found.predicted_seconds,
        {kind: share for kind, share in named.items() if share is not None},
        tuple(map(_row, found.measured)),
        tuple(map(_row, found.predicted)),
        tuple(map(_row, found.unpredicted)),
        found.notes,
    )


def _row(each: Spent) -> SpentRow:
    return SpentRow(
        each.kind,
        each.what,
        line_of(each.place),
        each.phase,
        each.mesh_axes,
        each.array or None,
        tuple(map(str, each.askers)),
        each.seconds,
        each.shown,
        each.runs,
    )


def run_diff_text(
    before: Comparison, after: Comparison, rows: Mapping[SpentBy, Sequence[RunRow]]
) -> str:
    """Return what changed from one run to another as JSON text."""
    tables = {
        by: [{"name": row.name, "before_s": row.before, "after_s": row.after} for row in found]
        for by, found in rows.items()
    }
    runs = {"before": data_of(measured_run(before)), "after": data_of(measured_run(after))}
    return json.dumps({"made_by": f"shardspec {PACKAGE}", **runs, "by": tables}, indent=2) + "\n"
