"""Orbax checkpoints: a folder with the tree in `_METADATA` and the arrays as zarr.

The tree gives the keys of every leaf; shapes and dtypes stand in the zarr metadata, in files or
in an OCDBT database, which only TensorStore can read: it is asked for the few bytes of metadata
and for no chunk. `_sharding` says how the arrays were laid out when they were saved.
Folders without `_METADATA` (T5X's own, and old Orbax) are read by the names of their arrays.
Source: what orbax-checkpoint 0.12 writes; the zarr specifications, versions 2 and 3.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from shardspec.arrays import reading
from shardspec.arrays.reading import FrugalFile, Outcome, damaged, foreign, parse_json, refused
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Arrays, PartitionSpec, Shape

TREE = "_METADATA"
SHARDING = "_sharding"

#: Leaves that are no arrays.
_NO_ARRAY = {"None", "Dict", "List", "Tuple", "NamedTuple", "string", "str"}


class _Saved(NamedTuple):
    """A leaf of the tree: its keys, and the name under which its array is stored."""

    keys: tuple[str, ...]
    stored: str
    is_array: bool = True


def is_checkpoint(folder: str) -> bool:
    """Say whether a folder is a checkpoint of Orbax or T5X."""
    if any(os.path.isfile(os.path.join(folder, mark)) for mark in (TREE, OCDBT)):
        return True
    return next(iter(_zarr_folders(folder)), None) is not None


def read(folder: str, name: str) -> Outcome:
    """Return the arrays of a checkpoint, and the layout it was saved in."""
    leaves = _tree(folder, name)
    if isinstance(leaves, Diagnostic):
        return refused(leaves)
    if os.path.isfile(os.path.join(folder, OCDBT)):
        names = None if leaves is None else [leaf.stored for leaf in leaves]
        stored = _read_ocdbt(folder, names, name)
    else:
        stored = _zarr_files(folder, leaves, name)
    if isinstance(stored, Diagnostic):
        return refused(stored)
    if leaves is None:
        leaves = [_Saved(tuple(each.replace("/", ".").split(".")), each) for each in sorted(stored)]
    return _arrays(leaves, stored, folder, name)


def _arrays(leaves: list[_Saved], stored: dict[str, bytes], folder: str, name: str) -> Outcome:
    faults, arrays, kept = [], [], []
    for leaf in leaves:
        raw = stored.get(leaf.stored)
        if raw is None:
            shown = "/".join(leaf.keys)
            faults.append(damaged(f"`{name}` names `{shown}` in its tree and does not hold it"))
            continue
        found = parse_zarr(raw, leaf.stored, name)
        if isinstance(found, Diagnostic):
            faults.append(found)
        else:
            arrays.append(reading.Leaf(leaf.keys, *found))
            kept.append(leaf)
    if faults:
        return refused(*faults)
    partitions = _partitions(folder, kept, [len(leaf.shape) for leaf in arrays])
    return Arrays(reading.params_of_leaves(arrays), partitions), ()


def _tree(folder: str, name: str) -> list[_Saved] | Diagnostic | None:
    """Return the leaves that `_METADATA` lists, None where there is no such file."""
    path = os.path.join(folder, TREE)
    if not os.path.isfile(path):
        return None
    data = _json(path, f"`{os.path.join(name, TREE)}`")
    if isinstance(data, Diagnostic):
        return data
    tree = data.get("tree_metadata") if isinstance(data, dict) else None
    if not isinstance(tree, dict):
        return damaged(f"`{os.path.join(name, TREE)}` holds no tree")
    leaves = []
    for written, entry in tree.items():
        leaf = _leaf(entry)
        if leaf is None:
            return damaged(f"`{os.path.join(name, TREE)}` has no keys for the leaf `{written}`")
        if leaf.is_array:
            leaves.append(leaf)
    return leaves


def _leaf(entry: Any) -> _Saved | None:
    """Return one leaf, None where it is malformed."""
    try:
        keys = tuple(part["key"] for part in entry["key_metadata"])
        is_array = entry["value_metadata"]["value_type"] not in _NO_ARRAY
        return _Saved(keys, ".".join(keys), is_array)  # a TypeError where one is no text
    except (TypeError, KeyError, AttributeError):
        return None


def _json(path: str, name: str) -> Any:
    with FrugalFile(path) as file:
        return parse_json(file.read(), name)


def _zarr_files(
    folder: str, leaves: list[_Saved] | None, name: str
) -> dict[str, bytes] | Diagnostic:
    """Return array -> its metadata, from files."""
    names = _zarr_folders(folder) if leaves is None else [leaf.stored for leaf in leaves]
    found: dict[str, bytes] = {}
    for stored in names:
        is_outside = os.path.isabs(stored) or ".." in stored.split("/")
        if is_outside or set(stored) & set("\\\0"):
            return damaged(f"`{name}` names the array `{stored}`, which leads out of the folder")
        for metadata in METADATA:
            path = os.path.join(folder, stored, metadata)
            if os.path.isfile(path):
                with FrugalFile(path) as file:
                    found[stored] = file.read()
    if not found and leaves:
        return foreign(
            f"`{name}` has a tree and no arrays: no `{OCDBT}`, and no zarr metadata",
            "name the folder that holds the arrays",
        )
    return found


def _zarr_folders(folder: str) -> list[str]:
    """Return the subfolders that are zarr arrays."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            inside = (os.path.join(entry.path, metadata) for metadata in METADATA)
            if entry.is_dir() and any(map(os.path.isfile, inside)):
                found.append(entry.name)
            if len(found) > reading.MOST_ARRAYS:
                break
    return sorted(found)


def _partitions(
    folder: str, leaves: list[_Saved], ranks: list[int]
) -> tuple[tuple[str, PartitionSpec], ...]:
    """Return how the arrays were laid out; what cannot be read there is no fault of theirs."""
    path = os.path.join(folder, SHARDING)
    data = _json(path, SHARDING) if os.path.isfile(path) else None
    if not isinstance(data, dict):
        return ()
    found = []
    paths = reading.paths_of([leaf.keys for leaf in leaves])
    for leaf, array, rank in zip(leaves, paths, ranks, strict=True):
        key = base64.b64encode(leaf.stored.encode("utf-8", "replace")).decode("ascii")
        partition = _partition(data.get(key), rank)
        if partition is not None:
            found.append((array, partition))
    return tuple(found)


def _partition(text: Any, rank: int) -> PartitionSpec | None:
    """Return the PartitionSpec of one entry, None for a sharding that has none."""
    entry = parse_json(text, SHARDING) if isinstance(text, str) else None
    dims = entry.get("partition_spec") if isinstance(entry, dict) else None
    if not isinstance(dims, list) or len(dims) > rank:
        return None
    split = []
    for dim in dims:
        axes = [] if dim is None else dim if isinstance(dim, list) else [dim]
        if not all(isinstance(axis, str) for axis in axes):
            return None
        split.append(tuple(axes))
    return PartitionSpec(tuple(split) + ((),) * (rank - len(split)))


#: The file that says that a folder is such a database.
OCDBT = "manifest.ocdbt"

#: Requests under way at once.
_AT_ONCE = 256


def _read_ocdbt(
    folder: str, arrays: Iterable[str] | None, name: str
) -> dict[str, bytes] | Diagnostic:
    """Return array -> its zarr metadata; an array without any has no entry.

    Args:
      arrays: names to look up; None for all there are.
      name: what messages call the folder.
    """
    from urllib.parse import quote

    try:
        import tensorstore
    except ImportError:
        return foreign(
            f"`{name}` is stored as OCDBT, which takes TensorStore to read",
            "pip install 'shardspec[orbax]'; or save with `use_ocdbt=False`",
        )
    base = f"file://{quote(os.path.abspath(folder))}/"
    try:
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        names = _all_arrays(store.list().result()) if arrays is None else list(arrays)
        found: dict[str, bytes] = {}
        for start in range(0, len(names), _AT_ONCE):
            found |= _values(store, names[start : start + _AT_ONCE])
    except (ValueError, OSError, RuntimeError, TypeError) as fault:
        # The reason without its trail of source lines.
        reason = str(fault).partition(" [")[0].partition("\n")[0]
        return damaged(f"`{name}` is no sound OCDBT database: {reason}")
    return found


def _all_arrays(keys: Iterable[bytes]) -> list[str]:
    ends = tuple(f"/{name}".encode() for name in METADATA)
    return [
        key.rpartition(b"/")[0].decode("utf-8", "backslashreplace")
        for key in keys
        if key.endswith(ends)
    ]


def _values(store: object, names: list[str]) -> dict[str, bytes]:
    asked = [
        (name, store.read(f"{name}/{metadata}".lstrip("/")))  # type: ignore[attr-defined]
        for name in names
        for metadata in METADATA
    ]
    answers = [(name, future.result()) for name, future in asked]
    return {name: answer.value for name, answer in answers if answer.state == "value"}


#: What the metadata of an array is called, in version 2 and in version 3.
METADATA = (".zarray", "zarr.json")

Zarr = tuple[Shape, str]


def parse_zarr(raw: bytes, array: str, name: str) -> Zarr | Diagnostic:
    """Return shape and dtype that a zarr array's metadata states.

    Args:
      array: the array's name, for messages.
      name: the checkpoint's.
    """
    data = parse_json(raw, f"the metadata of `{array}` in `{name}`")
    if isinstance(data, Diagnostic):
        return data
    shape = reading.sizes_of(data.get("shape")) if isinstance(data, dict) else None
    if shape is None:
        return damaged(f"the metadata of `{array}` in `{name}` has no shape of sizes")
    code = data.get("dtype", data.get("data_type"))
    if not isinstance(code, str):
        return damaged(f"the metadata of `{array}` in `{name}` has no dtype")
    dtype = reading.numpy_dtype(code)
    return reading.no_dtype(array, code, name) if dtype is None else (shape, dtype)
