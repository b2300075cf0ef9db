"""Grammar -> parser, built once per machine and kept in the user's cache folder.

Building a table takes about 20 ms a grammar, loading one takes 1 ms, and most runs need five.
The cache is a convenience: where it cannot be written, or holds rubbish, the table is built
again and nobody is told. Files are keyed by everything that a table depends on, and
replaced in one step, so that processes do not see each other's halves.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardspec import assets

if TYPE_CHECKING:
    from lark import Lark

#: Where parsing may begin, by grammar.
STARTS = {
    "axis_rule": ("axis_rule", "partition", "mesh_axes"),
    "names": ("names", "scan", "place"),
    "array_type": ("array_type", "size"),
    "mesh_axis": ("mesh_size",),
    "hardware": ("hardware",),
    "path_pattern": ("path_pattern",),
    "document": (
        *("version", "doc", "extends", "axis", "drop", "manifest", "policy", "lint", "override"),
        *("scan", "activation", "section", "machine", "target", "mesh", "mesh_entry"),
        *("rules_entry", "params_entry", "scan_entry", "arrays_entry", "activation_entry"),
        *("state", "coverage", "replicate"),
    ),
}


OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "maybe_placeholders": False,
    "propagate_positions": True,
}


@cache
def parser(grammar: str) -> Lark:
    """Return the parser for the grammar of this name."""
    file = cache_folder() / f"{grammar}-{_fingerprint()}.lalr"
    loaded = _load(file)
    if loaded is not None:
        return loaded
    built = build_parser(grammar)
    _save(built, file)
    return built


def build_parser(grammar: str) -> Lark:
    """Return the parser, built from the text of its grammar."""
    from lark import Lark

    path = assets.grammar_path(grammar)
    starts = list(STARTS[grammar])
    return Lark.open(str(path), start=starts, **OPTIONS)


def cache_folder() -> Path:
    """Return the folder for what can be made again: `$XDG_CACHE_HOME/shardspec`."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(stated):
        return Path(stated, "shardspec")
    return Path(os.path.expanduser("~"), ".cache", "shardspec")


@cache
def _fingerprint() -> str:
    """Return a key that changes with the grammars, with lark and with Python."""
    from hashlib import sha256

    import lark

    digest = sha256(f"{lark.__version__} {sys.version_info[:2]} {STARTS} {OPTIONS}".encode())
    for name in assets.grammar_names():
        digest.update(assets.grammar_path(name).read_bytes())
    return digest.hexdigest()[:16]


def _load(file: Path) -> Lark | None:
    """Return the parser kept in `file`, or None where there is none that is whole."""
    from hashlib import sha256

    from lark import Lark

    try:
        digest, _, table = file.read_bytes().partition(b"\n")
        if digest == sha256(table).hexdigest().encode():
            return Lark.load(io.BytesIO(table))
    except Exception:  # a cache can hold anything; what is in it is never worth a failure
        return None
    return None


def _save(built: Lark, file: Path) -> None:
    """Keep the parser; do nothing where that is not possible."""
    from hashlib import sha256

    buffer = io.BytesIO()
    built.save(buffer)
    table = buffer.getvalue()
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_bytes(sha256(table).hexdigest().encode() + b"\n" + table)
        os.replace(partial, file)
