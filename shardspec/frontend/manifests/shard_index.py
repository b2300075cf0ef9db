"""`model.safetensors.index.json`: which file beside it holds which array.

The index has no shapes, so the header of every file it names is read. A name that leads out of
the folder is refused: an index is often fetched from strangers, and a sound one never has it.
Links are followed, since Hugging Face's cache is made of them.
"""

from __future__ import annotations

import os.path
import re
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.codes import BAD_CHECKPOINT
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import listed
from shardspec.frontend.manifests.arrays import Arrays, Outcome, damaged, refused
from shardspec.frontend.manifests.binary import read_checkpoint
from shardspec.frontend.manifests.json_text import parse_json
from shardspec.ir.grouping import counted
from shardspec.ir.param import Param

_MAP = "weight_map"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
SUFFIX = ".index.json"


def is_index(source: SourceFile) -> bool:
    """Say whether a JSON text is an index, by its name or its two keys."""
    if source.name.endswith(SUFFIX):
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


def read(source: SourceFile, folder: str) -> Outcome:
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
    if _leads_out(shard):
        message = f"`{shard}` is not the name of a file beside `{source.name}`"
        return (damaged(message, span, "is the index from a source you trust?"),)
    path = os.path.join(index.folder, shard)
    if not os.path.isfile(path):
        return (_missing(shard, names, index),)
    arrays, faults = read_checkpoint(path, os.path.join(os.path.dirname(source.name), shard))
    if faults:
        return tuple(
            point(fault.code, fault.message, span, "named here", help=fault.help)
            for fault in faults
        )
    return _agreed(arrays, names, shard, index)


def _leads_out(shard: str) -> bool:
    """Say whether a name is more than that of a file in this folder."""
    has_path = os.path.basename(shard) != shard or bool(set(shard) & set("\\:\0"))
    return has_path or shard in {"", ".", ".."}


def _missing(shard: str, names: list[str], index: _Index) -> Diagnostic:
    name = index.source.name
    there = "is no file" if os.path.lexists(os.path.join(index.folder, shard)) else "is not there"
    message = f"`{shard}`, which `{name}` names, {there}"
    note = f"it holds {counted(len(names), 'array')}, first {names[0]}"
    help = f"put it beside `{os.path.basename(name)}`"
    return point(BAD_CHECKPOINT, message, index.place(shard), notes=(note,), help=help)


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
