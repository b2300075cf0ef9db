"""A run that the profiler of JAX captured: which operation ran on which device, and when.

Three forms are read: an `.xplane.pb`, a folder that `jax.profiler.trace` wrote, with a file for
each host, and a trace of the Trace Event format, `perfetto_trace.json.gz` or `.trace.json.gz`. All
of them become rows of one form: a plane (a device or a host), a line of it, a name, a time, and
what is stated beside it. An `.xplane.pb` also carries the compiled programs.

A run is a stranger's file: bytes, events and hosts are bounded, nothing of it is run, and what is
over a bound is left out and said.

A protobuf message is read a level at a time, and only where somebody asks: nesting costs nothing,
and what is not asked for is skipped by its length. Nothing is copied but what is asked for.

What the operations of a captured step take: each instant of it counts once.

On a device several things go on at once: streams, threads, loops around what they run. An instant
counts for the operations that compute; where none does, for what moves data, which computation does
not hide then; where that is none, for the loop or call around; and else for nothing. So what all
operations show sums to the step, and what a collective shows is what of it is exposed.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import struct
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shardspec.diagnostics.words import by_key, counted, grouped, listed, percent
from shardspec.kept import kept

#: A number has so many bytes at most.
_MOST_BYTES = 10
#: Bytes of what has a fixed width, by wire type.
_FIXED = {1: 8, 5: 4}
_NUMBER, _BYTES = 0, 2


class WireError(ValueError):
    """The bytes are no protobuf message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number of each field and its value: a number, or bytes.

    Raises:
      WireError: the bytes are no message.

    Invariants:
      total: any bytes end, in fields or in a WireError, in time linear in their length.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _number(data, at, end)
        kind = key & 7
        if not key >> 3:
            raise WireError("a field has the number 0")
        if kind == _NUMBER:
            value, at = _number(data, at, end)
            yield key >> 3, value
            continue
        size = _FIXED.get(kind, 0)
        if kind == _BYTES:
            size, at = _number(data, at, end)
        elif not size:
            raise WireError(f"a field has the wire type {kind}")
        if at + size > end:
            raise WireError("a field goes beyond the end of its message")
        yield key >> 3, data[at : at + size]
        at += size


def _number(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next byte is."""
    value = shift = 0
    for here in range(at, min(end, at + _MOST_BYTES)):
        byte = data[here]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, here + 1
        shift += 7
    raise WireError("a number does not end")


_NOTHING = memoryview(b"")


class _Parts:
    """The fields of a message, by number; where there are several of a number, the last counts."""

    __slots__ = ("held",)

    def __init__(self, data: memoryview) -> None:
        self.held = by_key(fields(data))

    def messages(self, which: int) -> list[memoryview]:
        return [message(each) for each in self.held.get(which, ())]

    def number(self, which: int) -> int:
        return number(self.held[which][-1]) if which in self.held else 0

    def text(self, which: int) -> str:
        return text(self.held[which][-1]) if which in self.held else ""


def message(value: int | memoryview) -> memoryview:
    """Return the message that a field holds.

    Raises:
      WireError: it holds a number.
    """
    if isinstance(value, int):
        raise WireError("a field holds a number where a message is due")
    return value


def number(value: int | memoryview) -> int:
    """Return the number that a field holds, 0 where it holds none."""
    return value if isinstance(value, int) else 0


def text(value: int | memoryview) -> str:
    """Return the text that a field holds; what is no UTF-8 is replaced."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


#: Bounds of what is read: bytes of a file, unpacked, and operations and hosts of a run.
MOST_BYTES = 1 << 30
MOST_EVENTS = 1_000_000
_MOST_HOSTS = 4096
_MOST_NAME = 400
_PLANE = ".xplane.pb"
#: Forms of a trace, the one that is taken first first.
_TRACES = (".trace.json.gz", "perfetto_trace.json.gz", ".trace.json")
_DEVICE = re.compile(r"/device:(TPU|GPU):(\d{1,9})(?: |$)")
_MODULES, _OPS, _ASYNC = "XLA Modules", "XLA Ops", "Async XLA Ops"
_PROGRAM = "Hlo Proto"
#: Picoseconds of a microsecond.
_US = 1e6


class CaptureError(ValueError):
    """A run cannot be read; the message begins with its name."""


class Event(NamedTuple):
    """One operation of a compiled program, once on one device.

    Attributes:
      device: with its host where there are several: `host0/TPU:3`.
      lane: what on the device ran it: a stream, a thread, a line.
      op: the instruction, by its name in the program; empty where the run does not say it.
      module: with the number of the program, where that is stated: `jit_step(14)`.
      run: which run of the module it belongs to; empty where the capture does not say it.
      start: in picoseconds.
    """

    device: str
    lane: str
    op: str
    module: str
    run: str
    start: int
    end: int


class Told(NamedTuple):
    """What a capture itself says of an operation: its line, and JAX's name for it."""

    source: str = ""
    op_name: str = ""


@dataclass(frozen=True, slots=True)
class Capture:
    """One run, of all hosts whose files are there.

    Attributes:
      name: as the user gave it.
      events: of devices, by their start.
      programs: serialized `HloModuleProto`s, by module.
      told: by module and operation.
      notes: what was left out, for people.
      kinds: what the devices are, as far as their planes say it: `TPU v6 Lite`, or a vendor.
    """

    name: str
    hosts: tuple[str, ...]
    events: tuple[Event, ...] = field(repr=False)
    programs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    told: Mapping[tuple[str, str], Told] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class _Row(NamedTuple):
    """A slice of a trace, whatever form it was read from."""

    plane: str
    line: str
    name: str
    start: int
    end: int
    stats: Mapping[str, Any]


def capture_of(name: str) -> Capture:
    """Return the run that a file or a folder holds.

    Raises:
      CaptureError: it holds none, or is damaged.
    """
    path = file = Path(name)
    notes: list[str] = []

    def fault(what: str) -> CaptureError:
        return CaptureError(f"{name if file == path else f'{file.name} of {name}'} {what}")

    try:
        files = _files_of(path, notes) if path.is_dir() else [path]
        made = _Made(len(files) > 1, notes)
        for at, file in enumerate(files):
            made.take(file, at)
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror or error}") from None
    except (WireError, struct.error, UnicodeDecodeError, zlib.error, EOFError) as error:
        raise fault(f"is damaged, or is no trace: {error}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise fault(f"is no trace: {error}") from None
    return made.capture(name)


def has_capture(name: str) -> bool:
    """Say whether a file has the name of a capture, or a folder holds one."""
    if not os.path.isdir(name):
        return name.endswith((_PLANE, *_TRACES)) and os.path.exists(name)
    try:
        return bool(_files_of(Path(name), []))
    except CaptureError:
        return False


def planes_beside(name: str) -> list[str]:
    """Return the `.xplane.pb` files in the folder of a trace in JSON, which has no programs."""
    path = Path(name)
    is_json = path.is_file() and not name.endswith(_PLANE)
    return sorted(each.name for each in path.parent.glob(f"*{_PLANE}")) if is_json else []


def _files_of(folder: Path, notes: list[str]) -> list[Path]:
    """Return a file for each host, of the newest run in a folder."""
    found: dict[str, dict[Path, list[Path]]] = {}
    seen = 0
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            seen += 1
            form = next((each for each in (_PLANE, *_TRACES) if name.endswith(each)), "")
            if form and seen < 100_000:
                found.setdefault(form, {}).setdefault(Path(root), []).append(Path(root, name))
    form = next((each for each in (_PLANE, *_TRACES) if each in found), "")
    if not form:
        nsight = "; files of Nsight are not read"
        raise CaptureError(f"it has no `*{_PLANE}` and no `*.trace.json.gz`{nsight}")
    runs = sorted(found[form].items())
    newest, files = runs[-1]
    if len(runs) > 1:
        notes.append(f"{newest.name} is read, the newest of {counted(len(runs), 'run')}")
    if len(files) > _MOST_HOSTS:
        notes.append(f"{_MOST_HOSTS:,} of {len(files):,} hosts are read")
    return files[:_MOST_HOSTS]


@dataclass(slots=True)
class _Made:
    """Collects the events of several files."""

    has_hosts: bool
    notes: list[str]
    hosts: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    programs: dict[str, bytes] = field(default_factory=dict)
    told: dict[tuple[str, str], Told] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, None] = field(default_factory=dict)
    left: int = 0

    def take(self, file: Path, at: int) -> None:
        """Add what one file holds."""
        data = _bytes_of(file)
        host = file.name.partition(".")[0] or str(at)
        rows: Iterator[_Row]
        if file.name.endswith(".pb"):
            rows = self._rows_of_planes(memoryview(data))
        elif file.name.endswith((".nsys-rep", ".sqlite", ".qdrep")):
            raise CaptureError("it is a file of Nsight, which is not read")
        else:
            rows = _rows_of_trace(data.decode("utf-8"))
        self.hosts.append(host)
        self._add(rows, f"{host}/" if self.has_hosts else "")

    def _rows_of_planes(self, data: memoryview) -> Iterator[_Row]:
        for which, value in fields(data):
            if which == 1:
                plane = _Plane.of(message(value))
                self.programs |= plane.programs()
                self.kinds |= dict.fromkeys(filter(None, [plane.kind]))
                yield from plane.rows()

    def _add(self, rows: Iterator[_Row], host: str) -> None:
        """Add operations, each with the run of the module that it is in."""
        waiting: dict[str, list[tuple[Event, Told]]] = {}
        spans: dict[str, list[tuple[int, int, str, str]]] = {}
        for row in rows:
            device = _DEVICE.match(row.plane)
            if device is None:
                self._take(_on_host(row, host), _told(row))
                continue
            name = f"{host}{device[1]}:{device[2]}"
            if row.plane[device.end() :].strip():
                self.unread[row.plane[device.end() :].strip()] += 1
            elif row.line == _MODULES:
                run = str(row.stats.get("run_id", len(spans.get(name, ()))))
                spans.setdefault(name, []).append((row.start, row.end, row.name, run))
            elif device[1] == "GPU" and row.line.startswith("Stream"):
                self._take(_stated(row, name), _told(row))
            elif row.line in (_OPS, _ASYNC) and device[1] == "TPU":
                op = row.name.partition(" = ")[0].lstrip("%").strip()
                found = Event(name, row.line, op, "", "", row.start, row.end)
                waiting.setdefault(name, []).append((found, _told(row)))
        for name, events in waiting.items():
            self._place(events, sorted(spans.get(name, ())))

    def _place(
        self, events: list[tuple[Event, Told]], spans: list[tuple[int, int, str, str]]
    ) -> None:
        """Give operations the module that runs while they begin."""
        starts = [span[0] for span in spans]
        for event, told in events:
            at = bisect_right(starts, event.start) - 1
            module, run = spans[at][2:] if at >= 0 and event.start < spans[at][1] else ("", "")
            self._take(event._replace(module=module, run=run), told)

    def _take(self, event: Event | None, told: Told) -> None:
        if event is None or event.end < event.start:
            return
        if len(self.events) >= MOST_EVENTS:
            self.left += 1
            return
        self.events.append(event)
        if told != Told() and event.op:
            self.told.setdefault((event.module, event.op), told)

    def capture(self, name: str) -> Capture:
        """Return what was collected."""
        if not self.events:
            raise CaptureError(f"{name} has no operation of a device, or of a CPU that runs XLA")
        if not any(each.module for each in self.events):
            raise CaptureError(f"{name} has no operation of an XLA program: it is no run of JAX")
        if self.left:
            self.notes.append(f"{self.left:,} operations beyond {MOST_EVENTS:,} are left out")
        if self.unread:
            self.notes.append(f"not read: {listed(sorted(self.unread))}")
        self.events.sort(key=lambda each: (each.start, -each.end))
        return Capture(
            name,
            tuple(self.hosts),
            tuple(self.events),
            self.programs,
            self.told,
            tuple(self.notes),
            tuple(self.kinds),
        )


def _on_host(row: _Row, host: str) -> Event | None:
    """Return an operation that a CPU ran as one of several devices; None of anything else."""
    if "hlo_op" not in row.stats or "device_ordinal" not in row.stats:
        return None
    return _stated(row, f"{host}CPU:{row.stats['device_ordinal']}")


def _stated(row: _Row, device: str) -> Event:
    """Return an operation that states its module, with the number that tells two of a name."""
    op, module, program, run = (
        str(row.stats.get(key, "")) for key in ("hlo_op", "hlo_module", "program_id", "run_id")
    )
    module = f"{module}({program})" if program and module else module
    return Event(device, row.line, op, module, run, row.start, row.end)


def _told(row: _Row) -> Told:
    stats = row.stats
    source = str(stats.get("source", ""))[:_MOST_NAME]
    op_name = stats.get("name") or stats.get("tf_op", "")
    is_name = "/" in str(op_name)
    return Told(source, str(op_name)[:_MOST_NAME].removesuffix(":") if is_name else "")


def _bytes_of(file: Path) -> bytes:
    """Return what a file holds, unpacked."""
    with file.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = gzip.GzipFile(fileobj=raw) if is_packed else raw
        data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise CaptureError(f"it has more than {MOST_BYTES >> 20} MiB, unpacked")
    return data


# xplane


@dataclass(slots=True)
class _Plane:
    """One plane of an XSpace: a device, a host, or the compiled programs."""

    name: str = ""
    lines: list[memoryview] = field(default_factory=list)
    events: dict[int, memoryview] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)
    own: list[memoryview] = field(default_factory=list)
    _kept: dict[object, object] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return what the device is, or who made it; empty where the plane does not say it."""
        stats = dict(map(self._stat, self.own))
        return str(stats.get("device_type_string") or stats.get("device_vendor") or "")

    @classmethod
    def of(cls, data: memoryview) -> _Plane:
        """Return a plane, its lines as they are."""
        own = _Parts(data)
        tables: tuple[dict[int, memoryview], ...] = ({}, {})
        for table, which in zip(tables, (4, 5), strict=True):
            for entry in map(_Parts, own.messages(which)):
                table[entry.number(1)] = next(iter(entry.messages(2)), _NOTHING)
        stats = {key: _Parts(held).text(2) for key, held in tables[1].items()}
        return cls(own.text(2), own.messages(3), tables[0], stats, own.messages(6))

    def programs(self) -> dict[str, bytes]:
        """Return the programs that the plane carries, by module with its number."""
        key = next((each for each, name in self.stats.items() if name == _PROGRAM), None)
        found: dict[str, bytes] = {}
        for own in map(_Parts, self.events.values() if key is not None else ()):
            stats = (each for each in map(_Parts, own.messages(5)) if each.number(1) == key)
            protos = (_Parts(held).messages(1) for each in stats for held in each.messages(6))
            found |= {own.text(2): bytes(each) for held in protos for each in held[-1:] if each}
        return found

    def rows(self) -> Iterator[_Row]:
        """Yield the slices of all lines; of a host only those that state something."""
        is_device = _DEVICE.match(self.name) is not None
        if is_device or self.name.startswith("/host:CPU"):
            for line in map(_Parts, self.lines):
                name, begin = line.text(2), line.number(3) * 1000
                slices = (self._row(name, begin, each, is_device) for each in line.messages(4))
                yield from filter(None, slices)

    def _row(self, line: str, begin: int, event: memoryview, is_device: bool) -> _Row | None:
        held = _Parts(event)
        own = held.messages(4)
        if not is_device and not own:
            return None
        name, stats = self._named(held.number(1))
        stats = {**stats, **dict(map(self._stat, own))} if own else stats
        begin += held.number(2)
        return _Row(self.name, line, name, begin, begin + held.number(3), stats)

    @kept
    def _named(self, key: int) -> tuple[str, Mapping[str, Any]]:
        """Return the name of an event, and what is stated of all that have it."""
        held = _Parts(self.events.get(key, _NOTHING))
        return held.text(2), dict(map(self._stat, held.messages(5)))

    def _stat(self, data: memoryview) -> tuple[str, Any]:
        key, found = 0, None
        for which, value in fields(data):
            if which == 1:
                key = number(value)
            elif which == 2:
                found = struct.unpack("<d", message(value))[0]
            elif which in (3, 4):
                found = number(value)
            elif which == 5:
                found = text(value)
            elif which == 7:
                found = self.stats.get(number(value), "")
        return self.stats.get(key, ""), found


# Trace Event format


def _rows_of_trace(data: str) -> Iterator[_Row]:
    """Yield the complete slices of a trace, read one at a time."""
    planes: dict[Any, str] = {}
    lines: dict[tuple[Any, Any], str] = {}
    for event in _objects(data):
        kind, stated = event.get("ph"), event.get("args")
        stats: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        if kind == "M" and event.get("name") == "process_name":
            planes[pid] = str(stats.get("name"))
        elif kind == "M" and event.get("name") == "thread_name":
            lines[pid, tid] = str(stats.get("name"))
        elif kind == "X":
            start, took = event.get("ts"), event.get("dur", 0)
            if isinstance(start, int | float) and isinstance(took, int | float):
                begin, end = round(start * _US), round((start + took) * _US)
                name, line = str(event.get("name")), lines.get((pid, tid), tid)
                yield _Row(planes.get(pid, pid), line, name, begin, end, stats)


def _objects(data: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace: of its `traceEvents`, or of the list that it is."""
    head = data.find('"traceEvents"')
    start = data.find("[", max(head, 0))
    if start < 0 or (head < 0 and data[:start].strip()):
        raise CaptureError("it has no `traceEvents`")
    read, at, size = json.JSONDecoder().raw_decode, start + 1, len(data)
    gap = re.compile(r"[\s,]*+")
    while True:
        found = gap.match(data, at)
        at = at if found is None else found.end()
        if at >= size or data[at] == "]":
            return
        event, at = read(data, at)
        if isinstance(event, dict):
            yield event


#: What an instant counts for first: what computes, what moves data, what only calls others.
Rank = int
COMPUTES, MOVES, CALLS = range(3)
#: The lane whose slices overlap each other.
_ASYNC_LINE = "Async"
_S = 1e-12


class Took(NamedTuple):
    """What one operation takes in a step, on one device, in seconds; see `Spent`."""

    seconds: float
    shown: float
    runs: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The complete steps of a capture.

    Attributes:
      module: whose runs they are.
      devices: that ran it.
      count: of steps on each device, the fewest.
      times: of each step on each device.
      ops: by name; the empty name is what is of no instruction of the module.
      idle: of a step, while nothing runs.
      period: from the start of a step to that of the next; None for a single one.
      once: of each operation the times of its runs, each of the device where it was shortest.

    Invariants:
      sum: what `ops` show and `idle` sum to the mean of `times`.
    """

    module: str
    devices: tuple[str, ...]
    count: int
    times: tuple[float, ...] = field(repr=False)
    period: float | None
    ops: dict[str, Took] = field(repr=False)
    idle: float
    once: dict[str, tuple[float, ...]] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return what a step takes."""
        return statistics.fmean(self.times)


class _Run(NamedTuple):
    """One run of the module on one device."""

    device: str
    events: tuple[Event, ...]

    @property
    def start(self) -> int:
        return self.events[0].start

    @property
    def end(self) -> int:
        return max(each.end for each in self.events)

    def whole(self) -> Iterator[Event]:
        """Yield the events that are whole operations, and not the start or the end of one."""
        beside = {each.op for each in self.events if each.lane.startswith(_ASYNC_LINE)}
        for each in self.events:
            if each.op not in beside or each.lane.startswith(_ASYNC_LINE):
                yield each


def modules_of(capture: Capture) -> dict[str, float]:
    """Return the modules of a capture and the seconds of their operations, the longest first."""
    found: Counter[str] = Counter()
    for each in capture.events:
        if each.module:
            found[each.module] += each.end - each.start
    return {name: picoseconds * _S for name, picoseconds in found.most_common()}


def steps_of(
    capture: Capture,
    module: str,
    rank: Callable[[str], Rank],
    name: Callable[[str], str] = str,
) -> Steps:
    """Return what the operations of a module take in a step.

    Args:
      rank: what an instant counts for, by the name of an operation.
      name: what the end of an operation counts as: what began it.
    """
    notes: list[str] = []
    runs = [
        _Run(run.device, tuple(each._replace(op=name(each.op)) for each in run.events))
        for run in _complete(list(_runs(capture, module)), notes)
    ]
    beside = by_key((each.device, each) for each in capture.events if each.module != module)
    ops, idle = _added_up(runs, beside, rank)
    return Steps(
        module,
        tuple(dict.fromkeys(run.device for run in runs)),
        min(Counter(run.device for run in runs).values()),
        tuple((run.end - run.start) * _S for run in runs),
        _period(runs),
        ops,
        idle,
        _shortest(runs),
        tuple(notes),
    )


def _added_up(
    runs: Sequence[_Run], beside: Mapping[str, Sequence[Event]], rank: Callable[[str], Rank]
) -> tuple[dict[str, Took], float]:
    """Return what operations take in the mean of some runs, and how long nothing runs."""
    ops: dict[str, list[float]] = {}
    idle = 0.0
    for run in runs:
        others = _within(beside.get(run.device, ()), run)
        busy, shown, empty = _swept([*run.events, *others], rank)
        idle += empty
        for op, took in busy.items():
            held = ops.setdefault(op, [0.0, 0.0, 0.0])
            held[0] += took * _S
            held[1] += shown.get(op, 0.0) * _S
        for each in run.whole():
            ops.setdefault(each.op, [0.0, 0.0, 0.0])[2] += 1
    mean = {op: Took(*(value / len(runs) for value in held)) for op, held in ops.items()}
    return mean, idle * _S / len(runs)


def _runs(capture: Capture, module: str) -> Iterator[_Run]:
    """Yield the runs of a module on each device, in order."""
    own = by_key((each.device, each) for each in capture.events if each.module == module)
    for device, events in own.items():
        if all(each.run for each in events):
            found = grouped(events, lambda each: each.run).values()
            yield from (_Run(device, tuple(each)) for each in found)
        else:
            yield from (_Run(device, tuple(each)) for each in _apart(events))


def _apart(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield the events of each run, where nothing says which run they are of.

    A run has one of the operation that a step runs least often; between two of them it ends where
    nothing runs for longest.
    """
    counts = Counter(each.op for each in events)
    least = min(counts.values())
    once = next(each.op for each in events if counts[each.op] == least)
    marks = [at for at, each in enumerate(events) if each.op == once]
    cuts = [_longest_gap(events, *pair) for pair in pairwise(marks)]
    yield from (events[a:b] for a, b in pairwise((0, *cuts, len(events))))


def _longest_gap(events: Sequence[Event], first: int, last: int) -> int:
    """Return which of the events behind the first, up to the last, begins after the longest gap."""
    end, gaps = events[first].end, []
    for at in range(first + 1, last + 1):
        gaps.append((events[at].start - end, -at))
        end = max(end, events[at].end)
    return -max(gaps)[1]


def _complete(runs: list[_Run], notes: list[str]) -> list[_Run]:
    """Return the runs that have as many operations as most have."""
    usual = Counter(len(run.events) for run in runs)
    size = max(usual, key=lambda each: (usual[each], each))
    is_usual = 2 * usual[size] > len(runs)
    whole = [run for run in runs if not is_usual or len(run.events) == size]
    if len(whole) < len(runs) and usual[size] > 1:
        part = len(runs) - len(whole)
        notes.append(
            f"{part} of {counted(len(runs), 'captured step')} of a device"
            f" {'has' if part == 1 else 'have'} fewer or more operations than the others: left out"
        )
        return whole
    return runs


def _within(events: Sequence[Event], run: _Run) -> list[Event]:
    """Return what else the device did meanwhile, cut to the run, under no name."""
    start, end = run.start, run.end
    return [
        each._replace(op="", start=max(start, each.start), end=min(end, each.end))
        for each in events
        if each.start < end and each.end > start
    ]


def _period(runs: Iterable[_Run]) -> float | None:
    """Return the time from the start of a step to the start of the next."""
    gaps = [
        (later.start - before.start) * _S
        for found in grouped(runs, lambda run: run.device).values()
        for before, later in pairwise(sorted(found, key=lambda run: run.start))
    ]
    return statistics.median(gaps) if gaps else None


def _shortest(runs: Iterable[_Run]) -> dict[str, tuple[float, ...]]:
    """Return the times of each operation, run by run: of all devices the shortest.

    A device that comes early to a collective waits for the others; the last one does not.
    """
    found: dict[tuple[str, int], int] = {}
    for run_list in grouped(runs, lambda run: run.device).values():
        seen: Counter[str] = Counter()
        for run in run_list:
            for each in run.whole():
                key = each.op, seen[each.op]
                seen[each.op] += 1
                took = each.end - each.start
                found[key] = min(found.get(key, took), took)
    times = by_key((op, took * _S) for (op, _), took in found.items())
    return {op: tuple(each) for op, each in times.items()}


# one run


def _swept(
    events: Sequence[Event], rank: Callable[[str], Rank]
) -> tuple[dict[str, float], dict[str, float], float]:
    """Return what operations take, what they show, and how long nothing runs."""
    points: list[tuple[int, int, str]] = []
    for lane in grouped(events, lambda each: each.lane).values():
        for start, end, op in _own(lane):
            points += ((start, 1, op), (end, -1, op))
    points.sort()
    active: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    busy: dict[str, float] = {}
    shown: dict[str, float] = {}
    idle, before = 0.0, points[0][0] if points else 0
    for at, change, op in points:
        took = at - before
        if took:
            before = at
            for ops in active:
                for name in ops:
                    busy[name] = busy.get(name, 0.0) + took
            first = next((ops for ops in active if ops), None)
            idle += took if first is None else 0
            for name in first or ():
                shown[name] = shown.get(name, 0.0) + took / len(first or ())
        ops = active[rank(op)]
        ops[op] += change
        if not ops[op]:
            del ops[op]
        busy.setdefault(op, 0.0)
    return busy, shown, idle


def _own(events: Iterable[Event]) -> Iterator[tuple[int, int, str]]:
    """Yield the slices of one lane: of what is around others, what these leave."""
    open_: list[Event] = []
    at = 0
    for each in sorted(events, key=lambda each: (each.start, -each.end)):
        while open_ and open_[-1].end <= each.start:
            last = open_.pop()
            if last.end > at:
                yield at, last.end, last.op
                at = last.end
        if each.lane.startswith(_ASYNC_LINE) or (open_ and each.end > open_[-1].end):
            yield each.start, each.end, each.op
            continue
        if open_ and each.start > at:
            yield at, each.start, open_[-1].op
        at = each.start
        open_.append(each)
    while open_:
        last = open_.pop()
        if last.end > at:
            yield at, last.end, last.op
            at = last.end


def told_of_others(modules: dict[str, float], module: str) -> Iterator[str]:
    """Yield which other modules ran for long."""
    whole = sum(modules.values())
    for name, seconds in modules.items():
        if name != module and seconds > 0.05 * whole:
            yield f"{name} took {percent(seconds, whole)} of the time of operations: not this step"
