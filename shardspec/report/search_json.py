"""What a search found as JSON, `shardspec.search/1`; its schema is `specs/schemas/search.json`.

All rows are written, the best first, and the findings of those that the table shows. Times are
seconds, sizes bytes of one device.
"""

from __future__ import annotations

import json

from shardspec.records import Data, data_of, picked
from shardspec.report.cost_json import lines_of, uncounted
from shardspec.report.search import Search
from shardspec.search.candidates import size_text
from shardspec.search.ranking import SearchRow, Sent, is_tie
from shardspec.versions import PACKAGE, SEARCH_JSON


def search_text(table: Search) -> str:
    """Return what a search found as JSON text. Equal searches have equal texts."""
    found, best = table.found, table.best
    ranking = found.ranking
    head = {
        "schema": SEARCH_JSON,
        "made_by": f"shardspec {PACKAGE}",
        **picked(found.question, "spec=spec.source.name target=target.name"),
        **picked(ranking, "seen too_large too_few_sequences=refused misplaced unlinked"),
        "is_complete": not (found.left or found.is_stopped),
        "with_errors": dict(table.passed),
        "errors_of_today": list(table.faults),
        "scale": found.question.wanted.scale.share,
        "today": None if found.today is None else _row(found.today, best),
    }
    rows = [
        {"rank": rank, **_row(row, best), "findings": _codes(row, table)}
        for rank, row in enumerate(found.rows, 1)
    ]
    sent = [] if best is None else [_sent(each) for each in found.sends(best)]
    text = json.dumps(head, indent=2)
    lists = (f'  "{name}": {lines_of(each)}' for name, each in (("sends", sent), ("rows", rows)))
    return ",\n".join((text[:-2], *lists)) + "\n}\n"


def _codes(row: SearchRow, table: Search) -> list[str] | None:
    """Return the findings of a row; None where the checks were not asked about it."""
    shown = next((each for each in table.shown if each.row == row), None)
    return None if shown is None else list(dict.fromkeys(each.code.id for each in shown.findings))


def _row(row: SearchRow, best: SearchRow | None) -> Data:
    candidate, time, made = row.candidate, row.time, row.calibration
    return {
        "hardware": str(candidate.hardware),
        **picked(row, "chips mesh=candidate.mesh.sizes"),
        "written": {axis.name: size_text(axis) for axis in candidate.mesh.axes},
        "order": candidate.order,
        "changes": dict(candidate.variant.changes),
        **picked(row, "step_s=seconds spread=time.spread"),
        "is_tie": best is not None and is_tie(best, row),
        "tokens_per_s": row.tokens_per_s,
        "mfu": None if row.unknown else time.mfu,
        "bound": "unknown" if row.unknown else time.bound,
        **picked(row, "parts memory_bytes=memory.bytes memory_basis=memory.basis hbm_bytes fits"),
        **({} if row.fits_probability is None else picked(row, "fits_probability")),
        "batch_per_device": None if row.share is None else row.share.sequences,
        "batch_copies": None if row.share is None else row.share.copies,
        **picked(row, "dollars_per_step placements"),
        "unknown": [data_of(uncounted(each)) for each in row.unknown],
        "calibrated": made and picked(made, "date how"),
    }


def _sent(each: Sent) -> Data:
    return picked(each, "kind mesh_axes carries wire_bytes_today=before wire_bytes=after")
