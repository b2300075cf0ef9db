"""A cost as a record, `shardspec.cost/1`: what JSON, pages and saved files hold, one type for all.

Bytes and FLOPs are whole numbers, times are seconds. Collectives are those of the table of
operations, one a line, the heaviest first; layers are not collapsed, and a cause stands for each
mesh axis. A saved file holds its date, and digests of what it was made of, so that it can say when
it is stale; what is printed holds no date. Paths are as the user would write them.
The schema is `specs/schemas/cost.json`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from shardspec.analysis import comparison
from shardspec.analysis.accuracy import SURE, Interval
from shardspec.analysis.comparison import NAMED, OTHERS, By, Comparison, RunRow, SpentBy, group
from shardspec.analysis.cost import Cost
from shardspec.analysis.layout_diff import inputs
from shardspec.analysis.memory import room_text
from shardspec.analysis.step_memory import MARKS, Amount, StepMemory
from shardspec.analysis.step_time import StepTime
from shardspec.diagnostics import Diagnostic, SourceFile, Span, point
from shardspec.diagnostics.codes import BAD_COST
from shardspec.diagnostics.words import (
    element_count,
    flops_text,
    grouped,
    natural,
    percent,
    template,
)
from shardspec.ir.step import Cause, CauseKind, Collective, Figure, Place, Unknown
from shardspec.records import OMITTED, Of, RecordError, data_of, made_of, record_of
from shardspec.report.findings_forms import relative
from shardspec.versions import COST_JSON, PACKAGE

Whole = Annotated[int, 1]


class Line(NamedTuple):
    """A line of the user's code, counted from 1.

    Attributes:
      via: the line of a helper that this line calls, which does the work: `linears.py:9`.
    """

    file: str
    line: Whole
    via: Annotated[str, OMITTED] = ""

    def __str__(self) -> str:
        """Return `model.py:71`, or `model.py:71 (in linears.py:9)`."""
        return f"{self.file}:{self.line}{f' (in {self.via})' if self.via else ''}"

    @classmethod
    def of(cls, place: Place) -> Line | None:
        """Return a line of the code; None where none is known."""
        via = "" if place.via is None else f"{relative(place.via[0])}:{place.via[1]}"
        return cls(relative(place.file), place.line, via) if place.is_known else None


line_of = Line.of


def whole(count: float) -> float:
    """Return a count as a whole number, where it is one."""
    return int(count) if count == int(count) else count


class SpentRow(NamedTuple):
    """What one operation takes, as `Spent` has it."""

    kind: str
    what: str
    place: Line | None
    phase: str
    mesh_axes: tuple[str, ...]
    array: str | None
    rules: Annotated[tuple[str, ...], Of("askers")]
    s: Annotated[float, Of("seconds")]
    shown_s: Annotated[float, Of("shown")]
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
    step_s: Annotated[float, Of("seconds")]
    low_s: Annotated[float, Of("low")]
    high_s: Annotated[float, Of("high")]
    period_s: Annotated[float | None, Of("period")]
    predicted_s: Annotated[float | None, Of("predicted_seconds")]
    named: dict[str, float]
    operations: Annotated[tuple[SpentRow, ...], Of("measured")]
    predicted: tuple[SpentRow, ...] = ()
    unpredicted: tuple[SpentRow, ...] = ()
    notes: Annotated[tuple[str, ...], OMITTED] = ()


def measured_run(found: Comparison) -> MeasuredRun:
    """Return a comparison as the record that JSON holds."""
    named = {kind: found.explained(kind) for kind, _ in NAMED}
    known = {kind: share for kind, share in named.items() if share is not None}
    return made_of(MeasuredRun, found, named=known)


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


T = TypeVar("T")


class RuleLine(NamedTuple):
    """The line of a spec or a preset that asked, and what it says."""

    file: str
    line: Whole
    text: str | None

    @classmethod
    def of(cls, cause: Cause) -> RuleLine | None:
        """Return the line that asked for a mesh axis; None where nobody did."""
        span, asked = cause.span, cause.attempt
        text = None if asked is None else str(asked)
        return None if span is None else cls(span.source.name, span.line, text)


class Because(NamedTuple):
    """Why one mesh axis is in a collective, as `Cause` has it."""

    mesh_axis: str
    kind: str
    array: str | None
    dim: int | None
    constraint: Annotated[Line | None, Of("place")]
    rule: Annotated[RuleLine | None, Of("")]
    through: tuple[str, ...]

    def __str__(self) -> str:
        """Return who asked: `heads -> model preset:t5x/1d:11`."""
        if self.rule is not None:
            return f"{self.rule.text or self.mesh_axis} {self.rule.file}:{self.rule.line}"
        text = OTHERS[CauseKind(self.kind)] if self.kind in set(CauseKind) else self.kind
        of = f": {template(self.array)}" if self.array and self.kind != "unknown" else ""
        return f"{text}{of}{f' {self.constraint}' if self.constraint else ''}"


class Load(NamedTuple):
    """What a collective carries, in parts."""

    kind: str
    name: str | None


class Forced(NamedTuple):
    """What asks for a collective that no operation needs."""

    kind: str
    place: Line | None


@dataclass(frozen=True, slots=True)
class Sent:
    """Collectives that agree but for their phase and their round of a loop."""

    kind: str
    mesh_axes: tuple[str, ...]
    wire_bytes: int
    count: float
    phases: tuple[str, ...]
    place: Line | None
    carries: str
    carried: Annotated[Load, Of("carries")]
    because: tuple[Because, ...]
    forced_by: Forced | None
    is_invariant: bool
    is_written: bool

    @property
    def askers(self) -> tuple[str, ...]:
        """Return who asked for its mesh axes, each once."""
        return tuple(dict.fromkeys(map(str, self.because))) or (OTHERS[CauseKind.UNKNOWN],)


class Alive(NamedTuple):
    """A tensor that is alive at the peak."""

    array: str
    name: Annotated[str | None, Of("array.name")]
    bytes: int
    phase: str
    place: Line | None
    why: Annotated[str, Of("reason"), OMITTED] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a device holds, as `StepMemory` has it."""

    parameters: Amount | None
    gradients: Amount | None
    optimizer: Amount | None
    batch: Amount | None
    caches: Amount | None
    other: Amount | None
    activations: Amount | None
    temporaries: Amount | None
    total: Amount
    hbm_bytes: int | None
    fits: bool | None
    fits_probability: Annotated[float | None, OMITTED] = None
    fits_at: Annotated[float | None, OMITTED] = None
    interval: Annotated[Interval | None, OMITTED] = None
    hbm_share: Annotated[float | None, OMITTED] = None
    pipeline: Annotated[str, OMITTED] = ""
    host: Annotated[Amount | None, OMITTED] = None
    unstated: Annotated[Amount | None, OMITTED] = None
    largest: tuple[Alive, ...]

    @property
    def parts(self) -> dict[str, Amount]:
        """Return the parts of the memory of a device that are not empty, by name."""
        found = ((name, getattr(self, name)) for name in _PARTS)
        return {name: part for name, part in found if part is not None and part.bytes}


class AxisSeconds(NamedTuple):
    """What the collectives over one mesh axis take."""

    s: float
    exposed_s: float


class Calibrated(NamedTuple):
    """What a time stands on, where that was measured."""

    date: str
    how: str


class Time(NamedTuple):
    """What a step takes, as `StepTime` has it."""

    basis: Literal["modelled", "compiled"]
    step_s: Annotated[float, Of("step_seconds")]
    compute_s: Annotated[float, Of("compute_seconds")]
    hbm_s: Annotated[float, Of("hbm_seconds")]
    axes: dict[str, AxisSeconds]
    bound: str
    spread: float
    scale: float = 1.0
    calibrated: Calibrated | None = None
    waits_s: Annotated[float, Of("waits_seconds"), OMITTED] = 0.0


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Something that could not be counted, as `Unknown` has it."""

    what: str
    reason: str
    figures: tuple[str, ...]
    place: Line | None
    phase: str
    count: Annotated[float, Of("count", whole)]


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the table that was asked for beside the collectives."""

    by: str
    name: str
    wire_bytes: int
    count: float


class CompiledBy(NamedTuple):
    """The compiler whose program the figures are of, as `Compiler` has it."""

    name: str
    kept_from: str | None
    flags: dict[str, str]


class OtherCompiler(NamedTuple):
    """What another version of the compiler makes of the same step."""

    name: Annotated[str, Of("compiler.name")]
    memory: Annotated[int, Of("memory.total.bytes")]
    sends: Annotated[int, Of("sent_bytes")]


class AddedRow(NamedTuple):
    """Something that the compiler added, as `Added` has it."""

    what: str
    array: str
    bytes: int
    runs: Annotated[float, Of("runs", whole)]
    phase: str
    place: Line | None


class LoadedRow(NamedTuple):
    """A step under one load of the busiest device, as `Loaded` has it."""

    load: float
    step_s: Annotated[float | None, Of("seconds")]
    memory_bytes: int


class UnevenRow(NamedTuple):
    """A step whose experts are uneven, as `Uneven` has it."""

    held: Whole
    experts: Whole
    expected: LoadedRow
    p99: LoadedRow


class About(NamedTuple):
    """Where a step is defined, and what was assumed of it."""

    place: Line | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRecord:
    """What a step costs on one target, worked out now or saved on another day."""

    schema: str
    made_by: str = ""
    date: Annotated[str | None, OMITTED] = None
    spec: Annotated[str, Of("plan.spec.source.name")]
    inputs: dict[str, str]
    target: Annotated[str, Of("target.name")]
    hardware: Annotated[str | None, Of("target.hardware")]
    mesh: Annotated[dict[str, Whole], Of("target.mesh.sizes")]
    source: Annotated[str | None, Of("step.source")]
    basis: Literal["modelled", "compiled"] = "modelled"
    compiled_by: Annotated[CompiledBy | None, Of("compiler"), OMITTED] = None
    other_version: Annotated[OtherCompiler | None, Of("other"), OMITTED] = None
    why_modelled: Annotated[str, OMITTED] = ""
    step: About | None
    memory: Memory
    time: Time | None
    schedule: Annotated[Time | None, OMITTED] = None
    flops: int | None
    mfu: float | None
    tokens: int | None
    tokens_per_s: float | None
    unknown: Annotated[tuple[Uncounted, ...], Of("step.unknown")] = ()
    added: Annotated[tuple[AddedRow, ...], OMITTED] = ()
    sends_interval: Annotated[Interval | None, OMITTED] = None
    uneven: Annotated[UnevenRow | None, OMITTED] = None
    measured: Annotated[MeasuredRun | None, OMITTED] = None
    groups: Annotated[tuple[Group, ...] | None, OMITTED] = None
    collectives: tuple[Sent, ...]

    @property
    def mark(self) -> str:
        """Return how well it is known what is sent: `x` by a compiler, else `~`."""
        return MARKS[self.basis]

    def at_least(self, *figures: Figure) -> str:
        """Return `at least `, to stand before a figure that is a lower bound."""
        touched = {name for each in self.unknown for name in each.figures}
        return "" if touched.isdisjoint(figures) else "at least "


#: Tensors alive at the peak that are written.
_MOST_LARGEST = 20
_PARTS = (
    *("parameters", "gradients", "optimizer", "batch", "caches", "other"),
    *("activations", "temporaries", "unstated"),
)
_AGAIN = "save it anew: `shardspec cost SPEC --step MODULE:FUNCTION -o FILE`"


def cost_text(
    cost: Cost,
    arrays: Collection[str] | None = None,
    date: str | None = None,
    by: By = "op",
    compared: Comparison | None = None,
) -> str:
    """Return a cost as JSON text, with a line break at the end. Equal costs have equal texts.

    Args:
      by: beside the collectives, what each mesh axis, line, rule or array sends.
      arrays: those whose traffic is written; None for all there is.
      date: of the day it is saved on, `2026-11-22`; None for what is printed.
      compared: a run that was measured.
    """
    record = cost_record(cost, arrays, date, by)
    if compared is not None:
        record = replace(record, measured=measured_run(compared))
    data = data_of(record)
    lists = {name: data.pop(name) for name in ("groups", "collectives") if name in data}
    written = (f'  "{name}": {lines_of(items)}' for name, items in lists.items())
    return ",\n".join((json.dumps(data, indent=2)[:-2], *written)) + "\n}\n"


def lines_of(items: Sequence[Any]) -> str:
    """Return a list as JSON text, an item a line."""
    lines = ",\n".join(f"    {json.dumps(each)}" for each in items)
    return f"[\n{lines}\n  ]" if lines else "[]"


def cost_record(
    cost: Cost, arrays: Collection[str] | None = None, date: str | None = None, by: By = "op"
) -> CostRecord:
    """Return a cost as the record that `cost_text` writes."""
    sent = () if cost.step is None else comparison.of_arrays(cost.step.collectives, arrays)
    rows = (Group(by, row.name, row.wire_bytes, whole(row.count)) for row in group(sent, by))
    return made_of(
        CostRecord,
        cost,
        schema=COST_JSON,
        made_by=f"shardspec {PACKAGE}",
        date=date,
        inputs={each.name: each.digest for each in inputs(cost.plan.spec, has_lines=True)},
        memory=_memory(cost.memory),
        time=None if cost.time is None else _time(cost.time, cost),
        schedule=None if cost.schedule is None else _time(cost.schedule, cost),
        measured=None,
        groups=None if by == "op" else tuple(rows),
        collectives=_collectives(sent),
    )


def _memory(memory: StepMemory) -> Memory:
    largest = tuple(made_of(Alive, each) for each in memory.peak[:_MOST_LARGEST])
    parts = {name: memory.parts.get(name) for name in _PARTS}
    fits_at = None if memory.fits_probability is None else memory.decided_at
    return made_of(Memory, memory, **parts, fits_at=fits_at, largest=largest)


def room_said(memory: StepMemory | Memory) -> str:
    """Return ` of 95.7 GiB per device, fits`; a floor promises nothing, and may."""
    if memory.hbm_bytes is None:
        return f" per device ({memory.pipeline})" if memory.pipeline else " per device"
    room = f" of {room_text(memory.hbm_bytes, memory.hbm_share)} per device"
    room += f" ({memory.pipeline})" if memory.pipeline else ""
    likely = memory.fits_probability
    if memory.fits is False:
        floor = memory.total.bytes - (memory.unstated.bytes if memory.unstated else 0)
        is_sure = memory.total.basis != "modelled" and floor > memory.hbm_bytes
        how = "" if likely is None or is_sure else f", {percent(1 - likely, 1)} likely"
        return f"{room}, DOES NOT FIT{how}"
    if likely is not None and (memory.fits or 1 - SURE < likely < SURE):
        return f"{room}, {'fits' if memory.fits else 'may fit'}, {percent(likely, 1)} likely"
    if memory.fits is None:
        return f"{room}, whether it fits is unknown"
    return f"{room}, {'may fit' if memory.total.basis == 'floor' else 'fits'}"


def rates_said(cost: Cost | CostRecord, mark: str) -> list[str]:
    """Return the FLOPs of a step behind a mark, and MFU and tokens, each where it is known."""
    found = [] if cost.flops is None else [f"{mark} {flops_text(cost.flops)}"]
    if cost.mfu is not None:
        found.append(f"MFU ~ {percent(cost.mfu, 1)}")
    if cost.tokens_per_s is not None:
        found.append(f"~ {element_count(round(cost.tokens_per_s))} tokens/s")
    return found


def _time(time: StepTime, cost: Cost) -> Time:
    made = cost.calibration
    axes = {each.mesh_axis: AxisSeconds(each.seconds, each.exposed_seconds) for each in time.axes}
    bound = "unknown" if cost.uncounted("time") else time.bound
    calibrated = None if made is None else Calibrated(made.date, made.how)
    return made_of(Time, time, axes=axes, bound=bound, calibrated=calibrated)


def _collectives(sent: Iterable[Collective]) -> tuple[Sent, ...]:
    """Return what is sent, alike ones as one: forward and backward, and a loop's rounds."""
    found = []
    nothing: dict[str, Any] = {"wire_bytes": 0, "count": 0, "phases": ()}
    for alike, same in grouped(sent, lambda each: made_of(Sent, each, **nothing)).items():
        size, count = sum(each.wire_bytes for each in same), sum(each.count for each in same)
        phases = tuple(dict.fromkeys(each.phase for each in same))
        found.append(replace(alike, wire_bytes=size, count=whole(count), phases=phases))
    return tuple(
        sorted(found, key=lambda each: (-each.wire_bytes, natural(json.dumps(data_of(each)))))
    )


def uncounted(each: Unknown) -> Uncounted:
    """Return something that could not be counted as a record."""
    return made_of(Uncounted, each)


def read_cost(source: SourceFile) -> CostRecord | Diagnostic:
    """Return what a saved cost holds, or what is wrong with the file, in its first fault.

    Invariants:
      total: any text is either a cost, or refused.
    """
    return read_saved(source, CostRecord, COST_JSON, _AGAIN)


def read_saved(source: SourceFile, kind: type[T], schema: str, again: str) -> T | Diagnostic:
    """Return the record that a saved file holds, or what is wrong with it, in its first fault.

    Args:
      schema: that it has to say, `shardspec.cost/1`.
      again: the way out: how such a file is made.
    """
    what = schema[10:].partition("/")[0]

    def bad(why: str) -> Diagnostic:
        return point(BAD_COST, f"`{source.name}` {why}", None, help=again)

    try:
        data = json.loads(source.text, parse_constant=_refuse_constant)
        stated = data.get("schema") if isinstance(data, dict) else None
        return record_of(kind, data) if stated == schema else bad(_other(stated, schema, what))
    except json.JSONDecodeError as error:
        at = min(error.pos, max(len(source.text) - 1, 0))
        message = f"`{source.name}` is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        return point(BAD_COST, message, Span(source, at, at), help=again)
    except RecordError as error:
        return bad(f"is no saved {what}: {error}")
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else "a number is none"
        return bad(f"is not JSON: {why}")


def _other(stated: object, schema: str, what: str) -> str:
    """Return what a file is that says another schema, or none."""
    if isinstance(stated, str) and stated.startswith(f"shardspec.{what}/"):
        return f"is of another version: this shardspec reads {schema}"
    if isinstance(stated, str) and stated.startswith("shardspec."):
        verb = stated[10:].partition("/")[0][:20]
        return f"is what `shardspec {verb}` makes, and no saved {what}"
    return f"is no saved {what}: it does not say `{schema}`"


def _refuse_constant(name: str) -> float:
    raise ValueError(name)
