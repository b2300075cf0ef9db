"""A cost as JSON, `shardspec.cost/1`: what is written, its JSON Schema, and a reader held to that.

Bytes and FLOPs are whole numbers, times are seconds. Collectives are those of the table of
operations, one a line, the heaviest first; layers are not collapsed, and a cause stands for each
mesh axis. A saved file holds its date, and digests of what it was made of, so that it can say when
it is stale; what is printed holds no date. Paths are as the user would write them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from shardspec.analysis.cost import Amount, Cost, StepMemory, StepTime
from shardspec.analysis.layouts import inputs
from shardspec.analysis.traffic import By, TrafficRow, group, of_arrays
from shardspec.diagnostics import Diagnostic, SourceFile, Span, point
from shardspec.diagnostics.codes import BAD_COST
from shardspec.diagnostics.words import grouped, natural
from shardspec.ir.calibration import Calibration
from shardspec.ir.step import Cause, Collective, Place, StepTensor
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
    written = (f'  "{name}": {_lines(items)}' for name, items in lists.items())
    return ",\n".join((head[:-2], *written)) + "\n}\n"


def cost_data(cost: Cost) -> Data:
    """Return a cost as JSON data: what `cost_text` writes."""
    sent = () if cost.step is None else cost.step.collectives
    return {**_head(cost, None), "collectives": _collectives(sent)}


def _lines(items: Sequence[Data]) -> str:
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
        "time": None if cost.time is None else _time(cost.time, cost.calibration),
        "flops": cost.flops,
        "mfu": cost.mfu,
        "tokens": cost.tokens,
        "tokens_per_s": cost.tokens_per_s,
    }


def _memory(memory: StepMemory) -> Data:
    known = memory.parts
    parts = {name: _amount(known[name]) if name in known else None for name in _PARTS}
    largest = [_tensor(tensor) for tensor in memory.peak[:_MOST_LARGEST]]
    whole = {"total": _amount(memory.total), "hbm_bytes": memory.hbm_bytes, "fits": memory.fits}
    host = {} if memory.host is None else {"host": _amount(memory.host)}
    return {**parts, **whole, **host, "largest": largest}


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


def _time(time: StepTime, made: Calibration | None) -> Data:
    axes = {
        each.mesh_axis: {"s": each.seconds, "exposed_s": each.exposed_seconds} for each in time.axes
    }
    return {
        "basis": "modelled",
        "step_s": time.step_seconds,
        "compute_s": time.compute_seconds,
        "hbm_s": time.hbm_seconds,
        "axes": axes,
        "bound": time.bound,
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


def _place(place: Place) -> Data | None:
    return {"file": relative(place.file), "line": place.line} if place.is_known else None


# the schema


def _of(kind: str | list[str], description: str = "", **more: Any) -> Data:
    told = {"description": description} if description else {}
    return {"type": kind, **told, **more}


def _object(description: str, optional: Collection[str] = (), **properties: Data) -> Data:
    required = [name for name in properties if name not in optional]
    return _of("object", description, properties=properties, required=required)


def _or_null(schema: Data) -> Data:
    return {**schema, "type": [schema["type"], "null"]}


def _bytes(description: str) -> Data:
    return _of("integer", description, minimum=0)


def _seconds(description: str) -> Data:
    return _of("number", description, minimum=0)


def _list(items: Data, description: str) -> Data:
    return _of("array", description, items=items)


def _map(values: Data, description: str) -> Data:
    return _of("object", description, additionalProperties=values)


def _placed(description: str) -> Data:
    line = _of("integer", "counted from 1", minimum=1)
    return _or_null(_object(description, file=_of("string"), line=line))


def _figure(description: str) -> Data:
    bases = ["exact", "compiled", "modelled", "floor"]
    return _or_null(
        _object(description, bytes=_bytes("on one device"), basis=_of("string", enum=bases))
    )


def _memory_schema() -> Data:
    tensor = _object(
        "a value alive at the peak",
        array=_of("string", "dtype and shape of the whole"),
        name=_of(["string", "null"]),
        bytes=_bytes("on one device"),
        phase=_of("string"),
        place=_placed("the line that makes it"),
    )
    return _object(
        "what one device holds",
        ("host",),
        **{name: _figure("null where only a step could tell") for name in _PARTS},
        total=_figure("the sum of the parts"),
        hbm_bytes=_of(["integer", "null"], "what a device has", minimum=0),
        fits=_of(["boolean", "null"], "of a floor, only `false` is certain"),
        largest=_list(tensor, "of what is alive at the peak"),
        host=_figure("in the memory of its host, no part of the total; left out without any"),
    )


def _time_schema() -> Data:
    axis = _object("", s=_seconds("of all its collectives"), exposed_s=_seconds("not hidden"))
    return _or_null(
        _object(
            "of one step, by a model of the machine; null where it is not known",
            ("scale", "calibrated"),
            basis=_of("string", enum=["modelled", "compiled"]),
            step_s=_seconds("seconds"),
            compute_s=_seconds("of operations"),
            hbm_s=_seconds("of it, what waits for memory"),
            axes=_map(axis, "by mesh axis; `+` joins those that go together"),
            bound=_of("string", "compute, memory or a mesh axis"),
            scale=_of("number", "by what all seconds were multiplied, to fit a measured step"),
            calibrated=_or_null(
                _object(
                    "the measurements it stands on; null where these are the catalogue's",
                    date=_of("string"),
                    how=_of("string"),
                )
            ),
            spread=_seconds("how far a measured step may lie to either side, as a share"),
        )
    )


def _collective_schema() -> Data:
    rule = _object(
        "the line of the spec or of a preset that asked",
        file=_of("string"),
        line=_of("integer", minimum=1),
        text=_of(["string", "null"], "as it is written"),
    )
    cause = _object(
        "why one mesh axis is in it",
        mesh_axis=_of("string"),
        kind=_of("string", "argument, constraint, result, written, propagated, unknown"),
        array=_of(["string", "null"], "the path of the argument that has the axis"),
        dim=_of(["integer", "null"], "which dimension", minimum=0),
        constraint=_placed("the constraint, or the collective that was written"),
        rule=_or_null(rule),
        through=_list(_of("string"), "what it flowed through, where nobody stated it"),
    )
    carried = _object(
        "the same in parts", kind=_of("string"), name=_of(["string", "null"], "a path or a name")
    )
    forced = _object("what asks for it", kind=_of("string"), place=_placed("where"))
    return _object(
        "something that devices send each other",
        kind=_of("string", "as XLA spells it: all-gather"),
        mesh_axes=_list(_of("string"), "major to minor"),
        wire_bytes=_bytes("what one device sends in a step, counts multiplied in"),
        count=_of("number", "how often in a step", minimum=0),
        phases=_list(_of("string"), "forward, backward, remat, update"),
        place=_placed("the line of the user's code"),
        carries=_of("string", "for people: `weight layers/wi`"),
        carried=carried,
        because=_list(cause, "a cause for each mesh axis"),
        forced_by=_or_null(forced),
        is_invariant=_of("boolean", "the same in every round of its loop"),
        is_written=_of("boolean", "written by the user, under shard_map"),
    )


def schema() -> Data:
    """Return the JSON Schema (draft-07) of a cost; a file may hold more than it names."""
    step = _object(
        "what was traced", place=_placed("its line"), notes=_list(_of("string"), "assumed")
    )
    row = _object(
        "what is sent for one reason",
        by=_of("string", "axis, line, rule or array"),
        name=_of("string", "a mesh axis, a line, a rule with its line, an array"),
        wire_bytes=_bytes("what one device sends in a step"),
        count=_of("number", "how often in a step", minimum=0),
    )
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": COST_JSON,
        **_object(
            "what a step costs, as `shardspec cost --format json` says it",
            ("date", "made_by", "groups"),
            schema=_of("string", enum=[COST_JSON]),
            made_by=_of("string", "the version of shardspec"),
            date=_of("string", "the day it was saved, `2026-11-22`"),
            spec=_of("string", "as it was named"),
            inputs=_map(_of("string"), "digests of the files that it was made of"),
            target=_of("string"),
            hardware=_of(["string", "null"]),
            mesh=_map(_of("integer", minimum=1), "sizes of mesh axes, major to minor"),
            source=_of(["string", "null"], "spec, code or compiler; null without a step"),
            step=_or_null(step),
            memory=_memory_schema(),
            time=_time_schema(),
            flops=_of(["integer", "null"], "of all devices in a step", minimum=0),
            mfu=_of(["number", "null"], "the share of the peak", minimum=0),
            tokens=_of(["integer", "null"], "of a step, on all devices", minimum=0),
            tokens_per_s=_of(["number", "null"], "of all devices", minimum=0),
            groups=_list(row, "under `--by`: each byte in one of them, the heaviest first"),
            collectives=_list(_collective_schema(), "the heaviest first"),
        ),
    }


def schema_text() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"


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
    fault = next(_faults(data, schema(), ""), None)
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


def _faults(data: Any, wanted: Data, route: str) -> Iterator[str]:
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
                yield from _faults(value, inner, _below(route, name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _faults(value, wanted["items"], f"{route}[{number}]")


def _below(route: str, name: str) -> str:
    shown = name if len(name) <= 40 else f"{name[:38]}.."
    return f"{route}.{shown}" if route else shown
