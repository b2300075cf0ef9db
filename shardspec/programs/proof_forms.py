"""A prediction beside its proof: as lines for people, as JSON, as a table for a pull request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from shardspec.diagnostics.words import binary_bytes, percent
from shardspec.ir.step import Cause, Collective
from shardspec.programs.proof import AxisProof, Proof
from shardspec.versions import PACKAGE, VERIFY_JSON

#: Collectives that are named although nobody predicted them, and arrays that are named of what
#: does not fit.
_MOST = 3
#: Below this share of all compiled bytes, mesh axes have no row of their own.
_LEAST_SHARE = 0.0005

Row = tuple[str, str, str, str]


def proof_lines(proof: Proof) -> Iterator[str]:
    """Yield a prediction and the program side by side, and what comes of it."""
    rows = [(proof.cost.target.name, "predicted", "compiled", ""), *_rows(proof)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for name, predicted, compiled, about in rows:
        line = f"{name:<{widths[0]}}   {predicted:>{widths[1]}}   {compiled:>{widths[2]}}   {about}"
        yield line.rstrip()
    yield from _more(proof)
    yield verdict(proof)


def verdict(proof: Proof) -> str:
    """Return the last line: whether the promise of the plan is kept, and by how much."""
    if proof.faults:
        return f"not proved: {'; '.join(proof.faults)}"
    room = "it fits" if proof.fits else "whether it fits is not known"
    return f"proved: {room}, and {percent(proof.difference, 1)} of the bytes differ"


def proof_markdown(proofs: Sequence[Proof]) -> str:
    """Return a table for a pull request, of one target or of several."""
    lines = ["| target | | predicted | compiled | |", "|---|---|---:|---:|---|"]
    for proof in proofs:
        name = proof.cost.target.name
        lines += (f"| {name} | {' | '.join(row)} |" for row in _rows(proof))
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


# lines


def _rows(proof: Proof) -> Iterator[Row]:
    least = _LEAST_SHARE * max(proof.compiled_bytes, 1)
    shown = [row for row in proof.rows if max(row.compiled, row.predicted) >= least]
    for row in shown or proof.rows:
        name = " + ".join(row.mesh_axes)
        predicted, compiled = binary_bytes(row.predicted), binary_bytes(row.compiled)
        yield name, f"~ {predicted}", f"x {compiled}", _change(row.predicted, row.compiled)
    held = proof.cost.memory.total
    predicted = f"{held.mark} {binary_bytes(held.bytes)}"
    if proof.memory is None:
        yield "memory", predicted, "not known", ""
    else:
        yield "memory", predicted, f"x {binary_bytes(proof.memory.bytes)}", _room(proof)


def _change(predicted: int, compiled: int) -> str:
    if not predicted:
        return "not predicted"
    return f"{(compiled - predicted) / predicted * 100:+.1f} %"


def _room(proof: Proof) -> str:
    room = proof.cost.memory.hbm_bytes
    if room is None:
        return ""
    return f"{'does not fit' if proof.fits is False else 'fits'} {binary_bytes(room)}"


def _more(proof: Proof) -> Iterator[str]:
    for each in proof.unpredicted[:_MOST]:
        share = percent(each.wire_bytes, proof.compiled_bytes or 1)
        yield f"not predicted: {_told(each)}, {binary_bytes(each.wire_bytes)} ({share})"
    if proof.fits is False and proof.memory is not None:
        for value in proof.memory.largest[:_MOST]:
            where = f", {proof.places[value.name]}" if value.name in proof.places else ""
            yield f"held at the peak: {value.shape} {binary_bytes(value.bytes)}{where}"
    if proof.refusal:
        first = proof.refusal.strip().partition("\n")[0]
        yield f"{proof.compiler}: {first}"
    for note in proof.step.notes:
        yield f"note: {note}"


def _told(sent: Collective) -> str:
    axes = " and ".join(sent.mesh_axes)
    causes = ", ".join(dict.fromkeys(filter(None, map(_cause, sent.because))))
    carries = f", {sent.carries}" if sent.carries.name else ""
    return f"{sent.kind} over {axes}, {sent.place}{carries}{f', {causes}' if causes else ''}"


def _cause(cause: Cause) -> str:
    """Return the rule that it comes from, and where the spec says it."""
    if cause.span is None:
        return ""
    rule = "" if cause.rule is None else f"{cause.rule} "
    return f"{rule}({cause.span.place})"


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
        "because": [_cause(cause) for cause in each.because if _cause(cause)],
    }
