"""What a search found as JSON data, `shardspec.search/1`; see `specs/schemas/search.json`.

Times are seconds, sizes bytes of one device.
"""

from __future__ import annotations

from shardspec.records import Data, data_of, picked
from shardspec.report.cost_json import uncounted
from shardspec.search.ranking import Found, SearchRow, Sent, is_tie
from shardspec.search.variants import size_text
from shardspec.versions import PACKAGE, SEARCH_JSON


def search_data(found: Found, best: SearchRow | None) -> Data:
    """Return what a search found as JSON data, without what the checks say of it."""
    return {
        "schema": SEARCH_JSON,
        "made_by": f"shardspec {PACKAGE}",
        **picked(found.question, "spec=spec.source.name target=target.name"),
        **picked(
            found.ranking, "seen too_large too_few_sequences=refused too_slow misplaced unlinked"
        ),
        "is_complete": not (found.left or found.is_stopped),
        "searched": [
            {"roles": str(kind or "own"), "candidates": each.candidates, "sizes": len(each.sizes)}
            for kind, each in found.ranking.kinds.items()
        ],
        "today": None if found.today is None else _row_data(found.today, best),
        "rows": [_row_data(row, best) for row in found.rows],
    }


def _row_data(row: SearchRow, best: SearchRow | None) -> Data:
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


def sent_data(each: Sent) -> Data:
    """Return what collectives send today, and on another mesh, as JSON data."""
    return picked(each, "kind mesh_axes carries wire_bytes_today=before wire_bytes=after")
