"""A cost as JSON, `shardspec.cost/1`: what is written, and a reader held to its JSON Schema.

Bytes and FLOPs are whole numbers, times are seconds. Collectives are those of the table of
operations, one a line, the heaviest first; layers are not collapsed, and a cause stands for each
mesh axis. A saved file holds its date, and digests of what it was made of, so that it can say when
it is stale; what is printed holds no date. Paths are as the user would write them.
The schema is `specs/schemas/cost.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, cast

from shardspec import assets
from shardspec.analysis.cost import Cost
from shardspec.analysis.layouts import inputs
from shardspec.analysis.step_memory import Amount, StepMemory
from shardspec.analysis.step_time import StepTime
from shardspec.analysis.traffic import By, TrafficRow, group, of_arrays
from shardspec.diagnostics import Diagnostic, SourceFile, Span, point
from shardspec.diagnostics.codes import BAD_COST
from shardspec.diagnostics.words import grouped, natural
from shardspec.ir.step import Cause, Collective, Figure, Place, StepTensor, Unknown
from shardspec.report.findings_forms import relative
from shardspec.versions import COST_JSON, PACKAGE

Data = dict[str, Any]


def cost_text(
    cost: Cost, arrays: Collection[str] | None = None, date: str | None = None, by: By = "op"
) -> str:
    """Return a cost as JSON text, with a line break at the end. Equal costs have equal texts.

    Args:
      by: beside the collectives, what each mesh axis, line, rule or array sends.
      arrays: those whose traffic is written; None for all there is.
      date: of the day it is saved on, `2026-11-22`; None for what is printed.
    """
    head = json.dumps(_head(cost, date), indent=2)
    sent = () if cost.step is None else of_arrays(cost.step.collectives, arrays)
    lists = {"collectives": _collectives(sent)}
    if by != "op":
        lists = {"groups": [_group(row, by) for row in group(sent, by)], **lists}
    written = (f'  "{name}": {lines_of(items)}' for name, items in lists.items())
    return ",\n".join((head[:-2], *written)) + "\n}\n"


def cost_data(cost: Cost) -> Data:
    """Return a cost as JSON data: what `cost_text` writes."""
    sent = () if cost.step is None else cost.step.collectives
    return {**_head(cost, None), "collectives": _collectives(sent)}


def lines_of(items: Sequence[Data]) -> str:
    """Return a list as JSON text, an item a line."""
    lines = ",\n".join(f"    {json.dumps(each)}" for each in items)
    return f"[\n{lines}\n  ]" if lines else "[]"


def _group(row: TrafficRow, by: By) -> Data:
    return {"by": by, "name": row.name, "wire_bytes": row.wire_bytes, "count": _number(row.count)}


def _number(count: float) -> float:
    return int(count) if count == int(count) else count


def _head(cost: Cost, date: str | None) -> Data:
    step, target = cost.step, cost.target
    dated = {} if date is None else {"date": date}
    return {
        "schema": COST_JSON,
        "made_by": f"shardspec {PACKAGE}",
        **dated,
        "spec": cost.plan.spec.source.name,
        "inputs": {each.name: each.digest for each in inputs(cost.plan.spec)},
        "target": target.name,
        "hardware": None if target.hardware is None else str(target.hardware),
        "mesh": {axis.name: axis.size for axis in target.mesh.axes},
        "source": None if step is None else step.source,
        "step": None if step is None else {"place": _place(step.place), "notes": list(step.notes)},
        "memory": _memory(cost.memory),
        "time": None if cost.time is None else _time(cost.time, cost),
        "flops": cost.flops,
        "mfu": cost.mfu,
        "tokens": cost.tokens,
        "tokens_per_s": cost.tokens_per_s,
        "unknown": [] if step is None else [unknown_data(each) for each in step.unknown],
    }


def _memory(memory: StepMemory) -> Data:
    known = memory.parts
    parts = {name: _amount(known[name]) if name in known else None for name in _PARTS}
    largest = [_tensor(tensor) for tensor in memory.peak[:_MOST_LARGEST]]
    whole = {"total": _amount(memory.total), "hbm_bytes": memory.hbm_bytes, "fits": memory.fits}
    share = {} if memory.hbm_share is None else {"hbm_share": memory.hbm_share}
    host = {} if memory.host is None else {"host": _amount(memory.host)}
    return {**parts, **whole, **share, **host, "largest": largest}


#: Tensors alive at the peak that are written.
_MOST_LARGEST = 20
_PARTS = (
    *("parameters", "gradients", "optimizer", "batch", "caches", "other"),
    *("activations", "temporaries"),
)


def _amount(amount: Amount) -> Data:
    return {"bytes": amount.bytes, "basis": amount.basis}


def _tensor(tensor: StepTensor) -> Data:
    return {
        "array": str(tensor.array),
        "name": tensor.array.name or None,
        "bytes": tensor.bytes,
        "phase": tensor.phase,
        "place": _place(tensor.place),
    }


def _time(time: StepTime, cost: Cost) -> Data:
    made = cost.calibration
    axes = {
        each.mesh_axis: {"s": each.seconds, "exposed_s": each.exposed_seconds} for each in time.axes
    }
    return {
        "basis": "modelled",
        "step_s": time.step_seconds,
        "compute_s": time.compute_seconds,
        "hbm_s": time.hbm_seconds,
        "axes": axes,
        "bound": "unknown" if cost.uncounted("time") else time.bound,
        "spread": time.spread,
        "scale": time.scale,
        "calibrated": made and {"date": made.date, "how": made.how},
    }


def _collectives(sent: Sequence[Collective]) -> list[Data]:
    """Return what is sent, alike ones as one: forward and backward, and a loop's rounds."""
    groups = grouped(sent, lambda each: json.dumps(_identity(each)))
    written = [_collective(found) for found in groups.values()]
    return sorted(written, key=lambda each: (-each["wire_bytes"], natural(json.dumps(each))))


def _collective(found: list[Collective]) -> Data:
    sums = {
        "wire_bytes": sum(each.wire_bytes for each in found),
        "count": _number(sum(each.count for each in found)),
    }
    phases = list(dict.fromkeys(each.phase for each in found))
    named = _identity(found[0])
    first = {name: named.pop(name) for name in ("kind", "mesh_axes")}
    return {**first, **sums, "phases": phases, **named}


def _identity(each: Collective) -> Data:
    forced = each.forced_by
    return {
        "kind": each.kind,
        "mesh_axes": list(each.mesh_axes),
        "place": _place(each.place),
        "carries": str(each.carries),
        "carried": {"kind": each.carries.kind, "name": each.carries.name or None},
        "because": [_cause(cause) for cause in each.because],
        "forced_by": forced and {"kind": forced.kind, "place": _place(forced.place)},
        "is_invariant": each.is_invariant,
        "is_written": each.is_written,
    }


def _cause(cause: Cause) -> Data:
    span = cause.span
    asked = None if cause.attempt is None else str(cause.attempt)
    return {
        "mesh_axis": cause.mesh_axis,
        "kind": cause.kind,
        "array": cause.array or None,
        "dim": cause.dim,
        "constraint": _place(cause.place),
        "rule": span and {"file": span.source.name, "line": span.line, "text": asked},
        "through": list(cause.through),
    }


def unknown_data(each: Unknown) -> Data:
    """Return something that could not be counted as JSON data."""
    return {
        "what": each.what,
        "reason": each.reason,
        "figures": list(each.figures),
        "place": _place(each.place),
        "phase": each.phase,
        "count": _number(each.count),
    }


def at_least(cost: Data, *figures: Figure) -> str:
    """Return `at least `, to stand before a figure of a cost that is a lower bound."""
    touched = (name for each in cost.get("unknown", ()) for name in each["figures"])
    return "" if set(figures).isdisjoint(touched) else "at least "


def _place(place: Place) -> Data | None:
    return {"file": relative(place.file), "line": place.line} if place.is_known else None


# the schema


@cache
def schema() -> Data:
    """Return the JSON Schema (draft-07) of a cost; a file may hold more than it names."""
    return cast(Data, json.loads(assets.schema_path("cost").read_text("utf-8")))


# reading

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_AGAIN = "save it anew: `shardspec cost SPEC --step MODULE:FUNCTION -o FILE`"


def read_data(source: SourceFile) -> Data | Diagnostic:
    """Return what a saved cost holds, or what is wrong with the file, in its first fault.

    Invariants:
      total: any text is either what the schema describes, or refused.
    """
    try:
        data = json.loads(source.text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        at = min(error.pos, max(len(source.text) - 1, 0))
        message = f"`{source.name}` is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        return point(BAD_COST, message, Span(source, at, at), help=_AGAIN)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else "a number is none"
        return _bad(source, f"is not JSON: {why}")
    stated = data.get("schema") if isinstance(data, dict) else None
    if stated != COST_JSON:
        return _bad(source, _other(stated))
    fault = next(faults(data, schema(), ""), None)
    return cast(Data, data) if fault is None else _bad(source, f"is no saved cost: {fault}")


def _other(stated: object) -> str:
    """Return what a file is that says another schema, or none."""
    if isinstance(stated, str) and stated.startswith("shardspec.cost/"):
        return f"is of another version: this shardspec reads {COST_JSON}"
    if isinstance(stated, str) and stated.startswith("shardspec."):
        return f"is what `shardspec {stated[10:].partition('/')[0][:20]}` makes, and no saved cost"
    return f"is no saved cost: it does not say `{COST_JSON}`"


def _bad(source: SourceFile, what: str) -> Diagnostic:
    return point(BAD_COST, f"`{source.name}` {what}", None, help=_AGAIN)


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def faults(data: Any, wanted: Data, route: str) -> Iterator[str]:
    """Yield where data is not what a schema wants, of the words that `schema` uses."""
    kinds = [wanted["type"]] if isinstance(wanted["type"], str) else wanted["type"]
    is_bool = isinstance(data, bool) and "boolean" not in kinds
    if is_bool or not any(isinstance(data, _KINDS[kind]) for kind in kinds):
        yield f"`{route or 'it'}` should be {' or '.join(kinds)}"
    elif "enum" in wanted and data not in wanted["enum"]:
        yield f"`{route}` should be {' or '.join(wanted['enum'])}"
    elif isinstance(data, int | float) and not wanted.get("minimum", -math.inf) <= data < math.inf:
        yield f"`{route}` is out of range"
    elif isinstance(data, dict):
        named = wanted.get("properties", {})
        for name in wanted.get("required", ()):
            if name not in data:
                yield f"`{_below(route, name)}` is missing"
        for name, value in data.items():
            inner = named.get(name, wanted.get("additionalProperties"))
            if inner is not None:
                yield from faults(value, inner, _below(route, name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from faults(value, wanted["items"], f"{route}[{number}]")


def _below(route: str, name: str) -> str:
    shown = name if len(name) <= 40 else f"{name[:38]}.."
    return f"{route}.{shown}" if route else shown
