"""The metadata of arrays inside an OCDBT database, the form in which Orbax saves by default.

Only TensorStore knows that form. It is asked for the few bytes of metadata and for no chunk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.manifests.arrays import damaged, foreign
from shardspec.frontend.manifests.zarr_metadata import METADATA

#: The file that says that a folder is such a database.
MARK = "manifest.ocdbt"

#: Requests under way at once.
_AT_ONCE = 256


def read_metadata(
    folder: str, arrays: Iterable[str] | None, name: str
) -> dict[str, bytes] | Diagnostic:
    """Return array -> its zarr metadata; an array without any has no entry.

    Args:
      arrays: names to look up; None for all there are.
      name: what messages call the folder.
    """
    try:
        import tensorstore
    except ImportError:
        return foreign(
            f"`{name}` is stored as OCDBT, which takes TensorStore to read",
            "pip install 'shardspec[orbax]'; or save with `use_ocdbt=False`",
        )
    base = "file://" + _quoted(os.path.abspath(folder)) + "/"
    try:
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        names = _all_arrays(store.list().result()) if arrays is None else list(arrays)
        found: dict[str, bytes] = {}
        for start in range(0, len(names), _AT_ONCE):
            found |= _values(store, names[start : start + _AT_ONCE])
    except (ValueError, OSError, RuntimeError, TypeError) as fault:
        return damaged(f"`{name}` is no sound OCDBT database: {_reason(fault)}")
    return found


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


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


def _reason(fault: Exception) -> str:
    """Return TensorStore's reason without its trail of source lines."""
    return str(fault).partition(" [")[0].partition("\n")[0]
