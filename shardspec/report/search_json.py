"""What a search found as JSON, `shardspec.search/1`, and its JSON Schema.

All rows are written, the best first, and the findings of those that the table shows. Times are
seconds, sizes bytes of one device.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shardspec.report.search import Search, Shown
from shardspec.search.candidates import size_text
from shardspec.search.ranking import SearchRow, Sent, is_tie
from shardspec.versions import PACKAGE, SEARCH_JSON

Data = dict[str, Any]


def search_text(table: Search) -> str:
    """Return what a search found as JSON text. Equal searches have equal texts."""
    found, best = table.found, table.best
    ranking = found.ranking
    checked = {id(each.row): each for each in table.shown}
    head = {
        "schema": SEARCH_JSON,
        "made_by": f"shardspec {PACKAGE}",
        "spec": found.question.spec.source.name,
        "target": found.question.target.name,
        "seen": ranking.seen,
        "too_large": ranking.too_large,
        "too_few_sequences": ranking.refused,
        "misplaced": ranking.misplaced,
        "unlinked": ranking.unlinked,
        "is_complete": not (found.left or found.is_stopped),
        "with_errors": dict(table.passed),
        "errors_of_today": list(table.faults),
        "scale": found.question.wanted.scale.share,
        "today": None if found.today is None else _row(found.today, best),
    }
    rows = [
        {"rank": rank, **_row(row, best), "findings": _codes(checked.get(id(row)))}
        for rank, row in enumerate(found.rows, 1)
    ]
    sent = [] if best is None else [_sent(each) for each in found.sends(best)]
    text = json.dumps(head, indent=2)
    lists = (f'  "{name}": {_lines(each)}' for name, each in (("sends", sent), ("rows", rows)))
    return ",\n".join((text[:-2], *lists)) + "\n}\n"


def _lines(items: Sequence[Data]) -> str:
    lines = ",\n".join(f"    {json.dumps(each)}" for each in items)
    return f"[\n{lines}\n  ]" if lines else "[]"


def _codes(shown: Shown | None) -> list[str] | None:
    if shown is None:
        return None
    return list(dict.fromkeys(each.code.id for each in shown.findings))


def _row(row: SearchRow, best: SearchRow | None) -> Data:
    candidate, time, made = row.candidate, row.time, row.calibration
    return {
        "hardware": str(candidate.hardware),
        "chips": row.chips,
        "mesh": candidate.mesh.sizes,
        "written": {axis.name: size_text(axis) for axis in candidate.mesh.axes},
        "order": candidate.order,
        "changes": dict(candidate.variant.changes),
        "step_s": row.seconds,
        "spread": time.spread,
        "is_tie": best is not None and is_tie(best, row),
        "tokens_per_s": row.tokens_per_s,
        "mfu": time.mfu,
        "bound": time.bound,
        "parts": row.parts,
        "memory_bytes": row.memory.bytes,
        "memory_basis": row.memory.basis,
        "hbm_bytes": row.hbm_bytes,
        "fits": row.fits,
        "batch_per_device": None if row.share is None else row.share.sequences,
        "batch_copies": None if row.share is None else row.share.copies,
        "dollars_per_step": row.dollars_per_step,
        "placements": row.placements,
        "calibrated": made and {"date": made.date, "how": made.how},
    }


def _sent(each: Sent) -> Data:
    return {
        "kind": each.kind,
        "mesh_axes": list(each.mesh_axes),
        "carries": each.carries,
        "wire_bytes_today": each.before,
        "wire_bytes": each.after,
    }


# the schema

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number", "minimum": 0}
_FLAG = {"type": "boolean"}


def _or_null(schema: Data) -> Data:
    return {**schema, "type": [schema["type"], "null"]}


def _told(schema: Data, description: str) -> Data:
    return {**schema, "description": description}


def _map(values: Data, description: str) -> Data:
    return {"type": "object", "description": description, "additionalProperties": values}


#: What older texts do not hold.
_ADDED = frozenset({"scale", "calibrated", "unlinked"})


def _object(properties: Data, description: str) -> Data:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": [name for name in properties if name not in _ADDED],
    }


def _list(items: Data, description: str) -> Data:
    return {"type": "array", "description": description, "items": items}


def _row_properties() -> Data:
    return {
        "hardware": _told(_TEXT, "as a spec writes it"),
        "chips": _COUNT,
        "mesh": _map(_COUNT, "the sizes of the mesh axes"),
        "written": _map(_TEXT, "the same as a spec writes it: `4`, `2 @ dcn`, `submesh 2x2x1x1`"),
        "order": {"enum": ["t5x", "ring"], "description": "in which chips are counted"},
        "changes": _map(_TEXT, "what else differs from the spec, by the words of --over"),
        "step_s": _told(_NUMBER, "by a model of the machine"),
        "spread": _told(_NUMBER, "how far a measured step may lie to either side, as a share"),
        "is_tie": _told(_FLAG, "whether the model cannot tell it from the best"),
        "tokens_per_s": _told(_or_null(_NUMBER), "of all devices"),
        "mfu": _told(_NUMBER, "the share of the peak"),
        "bound": _told(_TEXT, "what takes most: compute, memory, or a mesh axis"),
        "parts": _map(_NUMBER, "seconds of compute, and those that each mesh axis exposes"),
        "memory_bytes": _told(_COUNT, "of one device"),
        "memory_basis": {"enum": ["exact", "compiled", "modelled", "floor"]},
        "hbm_bytes": _told(_or_null(_COUNT), "what a device has"),
        "fits": {"type": ["boolean", "null"], "description": "only false is certain"},
        "batch_per_device": _told(_or_null(_NUMBER), "sequences of a microbatch"),
        "batch_copies": _told(_or_null(_COUNT), "devices that compute the same sequences"),
        "dollars_per_step": _told(_or_null(_NUMBER), "by --price"),
        "placements": _told(_COUNT, "how many ways to lay these sizes out were looked at"),
        "calibrated": _or_null(
            _object({"date": _TEXT, "how": _TEXT}, "the measurements that the time stands on")
        ),
    }


def schema() -> Data:
    """Return the JSON Schema (draft-07) of a search; a text may hold more than it names."""
    own = _row_properties()
    findings = {"type": ["array", "null"], "items": _TEXT}
    ranked = {
        "rank": {"type": "integer", "minimum": 1},
        **own,
        "findings": _told(findings, "codes that today's mesh does not have; null: not checked"),
    }
    sent = {
        "kind": _told(_TEXT, "as XLA spells it"),
        "mesh_axes": _list(_TEXT, "over which it goes"),
        "carries": _told(_TEXT, "an activation, a weight or its gradient"),
        "wire_bytes_today": _COUNT,
        "wire_bytes": _told(_COUNT, "what one device sends in a step under the best"),
    }
    properties = {
        "schema": {"enum": [SEARCH_JSON]},
        "made_by": _told(_TEXT, "the version of shardspec"),
        "spec": _told(_TEXT, "as it was named"),
        "target": _TEXT,
        "seen": _told(_COUNT, "candidates that were looked at"),
        "too_large": _told(_COUNT, "of them, those that are certain not to fit"),
        "too_few_sequences": _told(_COUNT, "of them, those that --per-device-batch rules out"),
        "misplaced": _told(_COUNT, "of them, those that cannot lie on their machine"),
        "unlinked": _told(_COUNT, "of them, those that send over links of no known speed"),
        "is_complete": _told(_FLAG, "whether all candidates were looked at"),
        "with_errors": _map(_COUNT, "better rows that have errors, by the codes of these"),
        "errors_of_today": _list(_TEXT, "codes of the errors that today's mesh has itself"),
        "scale": _told(_NUMBER, "by what all seconds are multiplied, to fit a measured step"),
        "today": _or_null(_object(own, "the mesh that the spec has")),
        "sends": _list(_object(sent, "one reason"), "what the best sends otherwise than today's"),
        "rows": _list(_object(ranked, "the best placement of some sizes"), "the best first"),
    }
    told = "what a search found, as `shardspec search --format json` says it"
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": SEARCH_JSON}
    return {**head, **_object(properties, told)}


def schema_text() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"
