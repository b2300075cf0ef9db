"""safetensors: the length of a header, the header as JSON, then the weights, which stay unread.

The format asks that the arrays cover the weights from end to end, without a hole and without
an overlap, and that a header has at most 100 MB. A file that breaks this is refused.
Source: the format's description, huggingface/safetensors, README.md.

Names stay as they are, dots included: `model.layers.0.mlp.up_proj.weight` is a path of one
component, as it is in the flat dict that `safetensors.flax.load_file` gives.

`model.safetensors.index.json` says which file beside it holds which array. It has no shapes, so
the header of every file it names is read. A name that leads out of the folder is refused: an index
is often fetched from strangers, and a sound one never has it. Links are followed, since Hugging
Face's cache is made of them.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardspec.arrays import reading
from shardspec.arrays.reading import Outcome, damaged, in_bytes, parse_json, refused
from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, parted, point
from shardspec.diagnostics.words import counted, listed
from shardspec.ir.spec import Arrays, Param, Shape, array_bytes, dtype_name

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
    with reading.FrugalFile(path) as file:
        header = _header(file, name)
        size = file.size
    if isinstance(header, Diagnostic):
        return refused(header)
    data, length = header
    arrays = ((key, value) for key, value in data.items() if key != _METADATA)
    entries, faults = parted(_entry(key, value, name) for key, value in arrays)
    misplaced = None if faults else _misplaced(entries, size - _LENGTH - length, name)
    if faults or misplaced:
        return refused(*faults, *filter(None, (misplaced,)))
    return Arrays(tuple(Param(entry.path, entry.shape, entry.dtype) for entry in entries)), ()


def _header(file: reading.FrugalFile, name: str) -> tuple[dict[str, Any], int] | Diagnostic:
    length = int.from_bytes(file.exactly(_LENGTH), "little")
    if length > reading.LARGEST_HEADER:
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
    shape, offsets = reading.sizes_of(value["shape"]), value["data_offsets"]
    if shape is None:
        return damaged(f"`{key}` in `{name}`: `shape` is no list of sizes")
    if not isinstance(offsets, list) or [type(offset) for offset in offsets] != [int, int]:
        return damaged(f"`{key}` in `{name}`: `data_offsets` are not two numbers")
    if not isinstance(value["dtype"], str):
        return damaged(f"`{key}` in `{name}`: `dtype` is no name")
    dtype = dtype_name(_DTYPES.get(value["dtype"], value["dtype"]))
    if dtype is None:
        return reading.no_dtype(key, value["dtype"], name)
    start, end = offsets
    needed = array_bytes(shape, dtype)
    if end - start != needed:
        message = f"`{key}` in `{name}` takes {in_bytes(end - start)}; its shape needs {needed:,}"
        return damaged(message)
    return _Entry(key, shape, dtype, start, end)


def _misplaced(entries: Sequence[_Entry], room: int, name: str) -> Diagnostic | None:
    """Return why the arrays do not cover `room` bytes of weights from end to end."""
    at, before = 0, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start < at:
            shared = in_bytes(at - entry.start)
            return damaged(f"`{entry.path}` in `{name}` overlaps {before} by {shared}")
        if entry.start > at:
            hole = in_bytes(entry.start - at)
            return damaged(f"`{name}` has a hole of {hole} before `{entry.path}`")
        at, before = entry.end, f"`{entry.path}`"
    if at > room:
        return damaged(f"`{name}` is cut off: {before} ends at byte {at:,} of {room:,}")
    if at < room:
        return damaged(f"`{name}` has {in_bytes(room - at)} after the last array")
    return None


_MAP = "weight_map"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_INDEX_SUFFIX = ".index.json"


def is_index(source: SourceFile) -> bool:
    """Say whether a JSON text is an index, by its name or its two keys."""
    if source.name.endswith(_INDEX_SUFFIX):
        return True
    text = source.text
    return f'"{_MAP}"' in text[:4096] and '"metadata"' in text[:4096]


class _Index(NamedTuple):
    """An index, and where each text in quotes stands first in it, escapes not resolved."""

    source: SourceFile
    folder: str
    places: dict[str, Span]

    def place(self, text: str) -> Span:
        return self.places.get(text, self.source.whole)


def read_index(source: SourceFile, folder: str) -> Outcome:
    """Return the arrays of all files that an index names.

    Args:
      folder: where the index stands.
    """
    places: dict[str, Span] = {}
    for found in _QUOTED.finditer(source.text):
        places.setdefault(found[1], Span(source, *found.span(1)))
    index = _Index(source, folder, places)
    by_shard = _by_shard(index)
    if isinstance(by_shard, Diagnostic):
        return refused(by_shard)
    params: list[Param] = []
    faults: list[Diagnostic] = []
    for shard, names in by_shard.items():
        outcome = _shard(shard, names, index)
        if isinstance(outcome, list):
            params += outcome
        else:
            faults += outcome
    return refused(*faults) if faults else (Arrays(tuple(params), (), (source,)), ())


def _by_shard(index: _Index) -> dict[str, list[str]] | Diagnostic:
    """Return file -> arrays, both in the order of the index."""
    name = index.source.name
    data = parse_json(index.source.text, f"`{name}`")
    if isinstance(data, Diagnostic):
        return data
    weights = data.get(_MAP) if isinstance(data, dict) else None
    if not isinstance(weights, dict) or not weights:
        message = f"`{name}` has no `{_MAP}` of arrays to files"
        return damaged(message, index.source.whole, "a manifest has another suffix: `arrays.json`")
    by_shard: dict[str, list[str]] = {}
    for array, shard in weights.items():
        if not isinstance(shard, str):
            return damaged(f"`{array}` in `{name}` names no file", index.place(array))
        by_shard.setdefault(shard, []).append(array)
    return by_shard


def _shard(shard: str, names: list[str], index: _Index) -> list[Param] | tuple[Diagnostic, ...]:
    """Return the arrays of one file, or what is wrong with it or with the index."""
    span, source = index.place(shard), index.source
    has_path = os.path.basename(shard) != shard or bool(set(shard) & set("\\:\0"))
    if has_path or shard in {"", ".", ".."}:
        message = f"`{shard}` is not the name of a file beside `{source.name}`"
        return (damaged(message, span, "is the index from a source you trust?"),)
    path = os.path.join(index.folder, shard)
    if not os.path.isfile(path):
        return (_missing(shard, names, index),)
    name = os.path.join(os.path.dirname(source.name), shard)
    arrays, faults = reading.read_checkpoint(path, name)
    found = (point(each.code, each.message, span, "named here", help=each.help) for each in faults)
    return tuple(found) if faults else _agreed(arrays, names, shard, index)


def _missing(shard: str, names: list[str], index: _Index) -> Diagnostic:
    name = index.source.name
    there = "is no file" if os.path.lexists(os.path.join(index.folder, shard)) else "is not there"
    message = f"`{shard}`, which `{name}` names, {there}"
    note = f"it holds {counted(len(names), 'array')}, first {names[0]}"
    help = f"put it beside `{os.path.basename(name)}`"
    return point(codes.BAD_CHECKPOINT, message, index.place(shard), notes=(note,), help=help)


def _agreed(
    arrays: Arrays, names: list[str], shard: str, index: _Index
) -> list[Param] | tuple[Diagnostic, ...]:
    """Return the arrays of a file, which are those that the index says are in it."""
    held = {param.path: param for param in arrays.params}
    faults = []
    missing = [name for name in names if name not in held]
    if missing:
        message = f"`{shard}` lacks {listed(missing, 3)}"
        faults.append(damaged(message, index.place(missing[0])))
    unnamed = sorted(held.keys() - set(names))
    if unnamed:
        message = f"`{shard}` holds {listed(unnamed, 3)}, which the index does not name"
        faults.append(damaged(message, index.place(shard)))
    if faults:
        return tuple(faults)
    return [
        Param(name, held[name].shape, held[name].dtype, None, index.place(name)) for name in names
    ]
