"""A prediction beside its proof as JSON, and as a table for a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shardspec.ir.step import Collective, Place
from shardspec.programs.estimates import by_line, step_cycles
from shardspec.programs.proof import (
    Proof,
    WhatIf,
    made_text,
    rows_of,
    rule_of,
    unknown_lines,
    verdict,
)
from shardspec.records import Data, data_of, picked
from shardspec.report.cost_json import uncounted
from shardspec.versions import PACKAGE, VERIFY_JSON


def proof_markdown(proofs: Sequence[Proof | str]) -> str:
    """Return a table for a pull request, of one target or of several.

    Args:
      proofs: in place of a proof, the name of a target that there is no program for.
    """
    lines = ["| target | | predicted | compiled | |", "|---|---|---:|---:|---|"]
    for proof in proofs:
        if isinstance(proof, str):
            lines.append(f"| {proof} | no program | | | |")
            continue
        name = proof.cost.target.name
        lines += (f"| {name} | {' | '.join(row)} |" for row in rows_of(proof))
        lines += (f"| {name} | {line} | | | |" for line in unknown_lines(proof))
        if proof.kept_from or proof.flags:
            lines.append(f"| {name} | {made_text(proof)} | | | |")
        lines.append(f"| {name} | {verdict(proof)} | | {proof.compiler} | |")
    return "\n".join(lines)


def proof_json(proofs: Sequence[Proof | str]) -> str:
    """Return all of it as JSON, `shardspec.verify/1`; see `proof_markdown`."""
    data = {
        "schema": VERIFY_JSON,
        "made_by": f"shardspec {PACKAGE}",
        "targets": [_data(proof) for proof in proofs if not isinstance(proof, str)],
        "without_program": [proof for proof in proofs if isinstance(proof, str)],
    }
    return json.dumps(data, indent=2)


# data


def _data(proof: Proof) -> Data:
    memory, held = proof.memory, proof.cost.memory
    return {
        "target": proof.cost.target.name,
        "compiler": proof.compiler,
        "kept_from": proof.kept_from or None,
        "flags": dict(proof.flags),
        "proved": not proof.faults,
        **picked(proof, "faults tolerance difference"),
        "axes": [
            picked(row, "mesh_axes predicted_bytes=predicted compiled_bytes=compiled")
            for row in proof.rows
        ],
        "memory": {
            **picked(held, "predicted_bytes=total.bytes predicted_basis=total.basis"),
            "compiled_bytes": memory and memory.bytes,
            "arguments_bytes": memory and memory.argument_bytes,
            "temporaries_bytes": memory and memory.temporary_bytes,
            "hbm_bytes": held.hbm_bytes,
            "fits": proof.fits,
        },
        "time": _time(proof),
        "not_predicted": [_sent(each) for each in proof.unpredicted],
        "unknown": [data_of(uncounted(each)) for each in proof.unknown],
        "refusal": proof.refusal or None,
        "notes": list(proof.step.notes),
        "miscompiled": [data_of(each) for each in proof.miscompiled],
        "what_if": None if proof.what_if is None else _what_if(proof.what_if),
    }


def _what_if(other: WhatIf) -> Data:
    return {
        "flags": other.flags,
        "axes": [
            {"mesh_axes": list(axes), "compiled_bytes": sent} for axes, sent in other.sent.items()
        ],
        "memory_bytes": other.held,
        "refusal": other.refusal or None,
    }


def _time(proof: Proof) -> Data | None:
    """Return what operations take by the compiler's own estimate; None where it states none."""
    cycle = proof.seconds_per_cycle
    if proof.estimated_seconds is None or cycle is None:
        return None
    time = proof.cost.time
    return {
        "predicted_compute_seconds": None if time is None else time.compute_seconds,
        "estimated_compute_seconds": proof.estimated_seconds,
        "operations": [
            {
                "operation": group[0].what,
                "place": _line(group[0].place),
                "phase": group[0].phase,
                "runs": sum(each.count for each in group),
                "estimated_seconds": step_cycles(group) * cycle,
            }
            for group in by_line(proof.estimates)
        ],
    }


def _line(place: Place) -> Data:
    via = {} if place.via is None else {"via": f"{place.via[0]}:{place.via[1]}"}
    return {**picked(place, "file line"), **via}


def _sent(each: Collective) -> Data:
    return {
        **picked(each, "kind mesh_axes wire_bytes"),
        "place": _line(each.place),
        "carries": str(each.carries),
        "because": [rule_of(cause) for cause in each.because if rule_of(cause)],
    }
