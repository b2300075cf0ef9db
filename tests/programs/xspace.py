"""Captures as profilers write them: an XSpace, field by field, and traces of Perfetto's form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

MS = 10**9  # in picoseconds


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def put(number: int, value: int | str | bytes) -> bytes:
    """Return one field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    held = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(held)) + held


class Slice(NamedTuple):
    """One event of a line, in picoseconds."""

    name: str
    start: int
    took: int
    stats: Mapping[str, Any] = {}


def plane(
    name: str, lines: Mapping[str, Iterable[Slice]], about: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return a plane with lines of events, and what is stated of the device."""
    events: dict[str, int] = {}
    stats: dict[str, int] = {}
    out = put(2, name)
    for key, value in about.items():
        out += put(6, put(1, stats.setdefault(key, len(stats) + 1)) + put(5, value))
    for line, slices in lines.items():
        body = put(2, line) + put(3, 7)
        for each in slices:
            event = put(1, events.setdefault(each.name, len(events) + 1))
            event += put(2, each.start) + put(3, each.took)
            for key, value in each.stats.items():
                number = stats.setdefault(key, len(stats) + 1)
                kind = 4 if isinstance(value, int) else 5
                event += put(4, put(1, number) + put(kind, value))
            body += put(4, event)
        out += put(3, body)
    for known, field in ((events, 4), (stats, 5)):
        for text, number in known.items():
            out += put(field, put(1, number) + put(2, put(1, number) + put(2, text)))
    return put(1, out)


def programs(found: Mapping[str, bytes]) -> bytes:
    """Return the plane that carries compiled programs."""
    out = put(2, "/host:metadata") + put(5, put(1, 1) + put(2, put(1, 1) + put(2, "Hlo Proto")))
    for number, (name, proto) in enumerate(found.items(), 1):
        held = put(1, number) + put(2, name) + put(5, put(1, 1) + put(6, put(1, proto)))
        out += put(4, put(1, number) + put(2, held))
    return put(1, out)


def on_cpu(op: str, start: int, took: int, device: int = 0, run: int = 1) -> Slice:
    """Return an operation as XLA:CPU traces it."""
    stats = {"hlo_op": op, "hlo_module": "jit_step", "run_id": run, "device_ordinal": device}
    return Slice(op, start, took, stats)


def trace(path: Path, rows: Iterable[tuple[str, str, Slice]]) -> Path:
    """Write a `trace.json.gz` with slices of planes and lines."""
    events: list[dict[str, Any]] = []
    pids: dict[str, int] = {}
    for process, thread, each in rows:
        pid = pids.setdefault(process, len(pids) + 1)
        named = {"ph": "M", "pid": pid, "tid": thread}
        events.append({**named, "name": "process_name", "args": {"name": process}})
        events.append({**named, "name": "thread_name", "args": {"name": thread}})
        times = {"ts": each.start / 1e6, "dur": each.took / 1e6}
        at = {"ph": "X", "pid": pid, "tid": thread, "name": each.name, **times}
        events.append({**at, "args": {key: str(value) for key, value in each.stats.items()}})
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path
