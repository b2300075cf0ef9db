"""A prediction beside its proof as JSON, and as a table for a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shardspec.ir.step import Collective
from shardspec.programs.proof import AxisProof, Proof, rows_of, rule_of, verdict
from shardspec.versions import PACKAGE, VERIFY_JSON


def proof_markdown(proofs: Sequence[Proof]) -> str:
    """Return a table for a pull request, of one target or of several."""
    lines = ["| target | | predicted | compiled | |", "|---|---|---:|---:|---|"]
    for proof in proofs:
        name = proof.cost.target.name
        lines += (f"| {name} | {' | '.join(row)} |" for row in rows_of(proof))
        lines.append(f"| {name} | {verdict(proof)} | | {proof.compiler} | |")
    return "\n".join(lines)


def proof_json(proofs: Sequence[Proof]) -> str:
    """Return all of it as JSON, `shardspec.verify/1`."""
    data = {
        "schema": VERIFY_JSON,
        "made_by": f"shardspec {PACKAGE}",
        "targets": [_data(proof) for proof in proofs],
    }
    return json.dumps(data, indent=2)


# data


def _data(proof: Proof) -> dict[str, Any]:
    memory, held = proof.memory, proof.cost.memory
    return {
        "target": proof.cost.target.name,
        "compiler": proof.compiler,
        "proved": not proof.faults,
        "faults": list(proof.faults),
        "tolerance": proof.tolerance,
        "difference": proof.difference,
        "axes": [_axes(row) for row in proof.rows],
        "memory": {
            "predicted_bytes": held.total.bytes,
            "predicted_basis": held.total.basis,
            "compiled_bytes": None if memory is None else memory.bytes,
            "arguments_bytes": None if memory is None else memory.argument_bytes,
            "temporaries_bytes": None if memory is None else memory.temporary_bytes,
            "hbm_bytes": held.hbm_bytes,
            "fits": proof.fits,
        },
        "not_predicted": [_sent(each) for each in proof.unpredicted],
        "refusal": proof.refusal or None,
        "notes": list(proof.step.notes),
    }


def _axes(row: AxisProof) -> dict[str, Any]:
    return {
        "mesh_axes": list(row.mesh_axes),
        "predicted_bytes": row.predicted,
        "compiled_bytes": row.compiled,
    }


def _sent(each: Collective) -> dict[str, Any]:
    return {
        "kind": each.kind.value,
        "mesh_axes": list(each.mesh_axes),
        "wire_bytes": each.wire_bytes,
        "place": {"file": each.place.file, "line": each.place.line},
        "carries": str(each.carries),
        "because": [rule_of(cause) for cause in each.because if rule_of(cause)],
    }
