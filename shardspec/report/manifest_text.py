"""Arrays as a manifest: the names, shapes and dtypes of a checkpoint in a file for git.

YAML has one line for all layers that differ in their numbers alone, `layers.{0..79}.mlp.up`;
JSON has one for each array. Both read back as the same arrays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from shardspec.diagnostics.diagnostic import printable_json
from shardspec.diagnostics.words import by_key, collapsed, template
from shardspec.ir.spec import Param, Params
from shardspec.versions import MANIFEST

#: What a path must not hold: braces are ranges in a manifest.
UNWRITABLE = "{}"


def manifest_json(params: Params, source: str) -> str:
    """Return the manifest as JSON, one array a line, and its line break."""
    arrays = {param.path: array_type(param) for param in params}
    data = {"shardspec-arrays": MANIFEST, **_head(params, source), "arrays": arrays}
    return printable_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n"


def manifest_yaml(params: Params, source: str) -> str:
    """Return the manifest as YAML, layers as ranges, and its line break."""
    head = {"shardspec-arrays": MANIFEST, **_head(params, source)}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    if not params:
        return "\n".join((*lines, "arrays: {}")) + "\n"
    entries = (f"  {_quoted(path)}: {kind}" for path, kind in array_entries(params))
    return "\n".join((*lines, "arrays:", *entries)) + "\n"


def array_type(param: Param) -> str:
    """Return the type of an array with the names it carries.

    >>> array_type(Param("k", (4, 8), "bf16", ("embed", None)))
    'bf16[embed=4 _=8]'
    """
    if param.logical_axes is None:
        return str(param)
    dims = zip(param.logical_axes, param.shape, strict=True)
    inside = " ".join(f"{axis or '_'}={size}" for axis, size in dims)
    return f"{param.dtype}[{inside}]"


def _head(params: Params, source: str) -> dict[str, str | int]:
    return {"source": source, "parameters": sum(param.element_count for param in params)}


def array_entries(params: Params) -> Iterator[tuple[str, str]]:
    """Yield a glob and its type for all arrays, in the order of their first ones."""
    named = (((template(param.path), array_type(param)), param.path) for param in params)
    for (_, kind), paths in by_key(named).items():
        glob = collapsed(paths)
        for path in paths if glob is None else (glob,):
            yield path, kind


def _quoted(path: str) -> str:
    """Return a path as a YAML key: JSON's escapes are YAML's, of characters below U+10000."""
    return json.dumps(path, ensure_ascii=not path.isprintable())
