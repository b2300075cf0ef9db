"""safetensors: the length of a header, the header as JSON, then the weights, which stay unread.

The format asks that the arrays cover the weights from end to end, without a hole and without
an overlap, and that a header has at most 100 MB. A file that breaks this is refused.
Source: the format's description, huggingface/safetensors, README.md.

Names stay as they are, dots included: `model.layers.0.mlp.up_proj.weight` is a path of one
component, as it is in the flat dict that `safetensors.flax.load_file` gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.manifests.arrays import (
    Arrays,
    Outcome,
    damaged,
    in_bytes,
    no_dtype,
    refused,
)
from shardspec.frontend.manifests.frugal_file import FrugalFile
from shardspec.frontend.manifests.json_text import parse_json, sizes_of
from shardspec.frontend.manifests.kinds import LARGEST_HEADER
from shardspec.ir.param import Param, Shape, array_bytes, dtype_name

_LENGTH = 8
_METADATA = "__metadata__"
_KEYS = {"dtype", "shape", "data_offsets"}

#: What its names leave out of ours. Source: safetensors' Dtype and torch's dtypes of these names.
_DTYPES = {"F8_E4M3": "f8_e4m3fn", "F8_E8M0": "f8_e8m0fnu", "F4": "f4_e2m1fn"}


class _Entry(NamedTuple):
    path: str
    shape: Shape
    dtype: str
    start: int
    end: int


def read(path: str, name: str) -> Outcome:
    """Return the arrays of a safetensors file."""
    with FrugalFile(path) as file:
        header = _header(file, name)
        size = file.size
    if isinstance(header, Diagnostic):
        return refused(header)
    data, length = header
    entries, faults = [], []
    for key, value in data.items():
        entry = None if key == _METADATA else _entry(key, value, name)
        if isinstance(entry, Diagnostic):
            faults.append(entry)
        elif entry is not None:
            entries.append(entry)
    misplaced = None if faults else _misplaced(entries, size - _LENGTH - length, name)
    if misplaced:
        faults.append(misplaced)
    if faults:
        return refused(*faults)
    return Arrays(tuple(Param(entry.path, entry.shape, entry.dtype) for entry in entries)), ()


def _header(file: FrugalFile, name: str) -> tuple[dict[str, Any], int] | Diagnostic:
    length = int.from_bytes(file.exactly(_LENGTH), "little")
    if length > LARGEST_HEADER:
        message = f"`{name}` has a header of {in_bytes(length)}; safetensors allows 100 MB"
        return damaged(message, help="is it a safetensors file at all?")
    data = parse_json(file.exactly(length), f"the header of `{name}`")
    if not isinstance(data, dict | Diagnostic):
        return damaged(f"the header of `{name}` is no mapping of names to arrays")
    return data if isinstance(data, Diagnostic) else (data, length)


def _entry(key: str, value: Any, name: str) -> _Entry | Diagnostic:
    """Return one array of a header; its bytes are as many as shape and dtype need."""
    if not isinstance(value, dict) or set(value) != _KEYS:
        return damaged(f"`{key}` in `{name}` does not state a dtype, a shape and its offsets alone")
    shape, offsets = sizes_of(value["shape"]), value["data_offsets"]
    if shape is None:
        return damaged(f"`{key}` in `{name}`: `shape` is no list of sizes")
    if not isinstance(offsets, list) or [type(offset) for offset in offsets] != [int, int]:
        return damaged(f"`{key}` in `{name}`: `data_offsets` are not two numbers")
    if not isinstance(value["dtype"], str):
        return damaged(f"`{key}` in `{name}`: `dtype` is no name")
    dtype = dtype_name(_DTYPES.get(value["dtype"], value["dtype"]))
    if dtype is None:
        return no_dtype(key, value["dtype"], name)
    start, end = offsets
    needed = array_bytes(shape, dtype)
    if end - start != needed:
        message = f"`{key}` in `{name}` takes {in_bytes(end - start)}; its shape needs {needed:,}"
        return damaged(message)
    return _Entry(key, shape, dtype, start, end)


def _misplaced(entries: list[_Entry], room: int, name: str) -> Diagnostic | None:
    """Return why the arrays do not cover `room` bytes of weights from end to end."""
    at, before = 0, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start < at:
            return damaged(
                f"`{entry.path}` in `{name}` overlaps {before} by {in_bytes(at - entry.start)}"
            )
        if entry.start > at:
            return damaged(
                f"`{name}` has a hole of {in_bytes(entry.start - at)} before `{entry.path}`"
            )
        at, before = entry.end, f"`{entry.path}`"
    if at > room:
        return damaged(f"`{name}` is cut off: {before} ends at byte {at:,} of {room:,}")
    if at < room:
        return damaged(f"`{name}` has {in_bytes(room - at)} after the last array")
    return None
