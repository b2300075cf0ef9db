"""A path -> the arrays there: finds out what it is, and asks the reader of that format.

A function (`package.module:function`) is refused here. To check a spec that came from somewhere
else must stay safe, so only the person at the command line may ask for code to be run.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from shardspec.arrays import reading
from shardspec.arrays.listing import read_manifest
from shardspec.arrays.reading import LISTING, Kind, Outcome, foreign, refused, unsafe
from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.words import listed, natural
from shardspec.ir.spec import Arrays
from shardspec.language import files
from shardspec.language.files import Boundary, veiled
from shardspec.language.layer import countable, distinct

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def is_entry_point(name: str) -> bool:
    """Say whether `name` is `package.module:function`, and no file that happens to be called so.

    >>> is_entry_point("models.gpt:init"), is_entry_point("./gpt.json")
    (True, False)
    """
    return spells_entry_point(name) and not os.path.lexists(name)


def spells_entry_point(name: str) -> bool:
    """Say whether `name` has the form `package.module:function`."""
    return _ENTRY_POINT.fullmatch(name) is not None


def read_arrays(
    path: str, included_from: Span | None = None, boundary: Boundary | None = None
) -> Outcome:
    """Return the arrays of a manifest, a checkpoint or a folder of one (`-` is standard input).

    No weights are read, and nothing in a file is run. A file at fault has no arrays, except
    that sound entries of a manifest stay.

    Args:
      included_from: the entry of a spec that names the path; None where a person names it.
      boundary: of whose project; None for that of the file itself.
    """
    if is_entry_point(path):
        return refused(entry_point_refused(path))
    try:
        arrays, faults = _read(path, included_from, boundary or files.boundary_of(path))
    except (OSError, ValueError) as fault:
        return refused(_unreadable(path, fault))
    params, twice = distinct(arrays.params, f" of `{path}`")
    params, too_large = countable(params)
    return arrays._replace(params=params), (*faults, *twice, *too_large)


def _read(path: str, included_from: Span | None, boundary: Boundary) -> Outcome:
    place, name = path, path
    if os.path.isdir(path):
        found = arrays_in(path, path)
        if isinstance(found, Diagnostic):
            return refused(found)
        place, name = found
    if os.path.isdir(place):
        return _folder(place, name)
    kind: Kind | Diagnostic = LISTING
    if place != "-" and os.path.isfile(place):
        kind = reading.kind_at(place, name)
    if isinstance(kind, Diagnostic):
        return refused(kind)
    if not kind.is_text:
        return reading.read_as(kind, place, name)
    is_asked = included_from is None and place == path
    source = files.read_argument(place) if is_asked else files.read_source(Path(place), name=name)
    if isinstance(source, Diagnostic):
        arrays, faults = refused(source)
    else:
        source = replace(source, name=name, included_from=included_from)
        source = source if is_asked else files.marked(source, boundary, place)
        arrays, faults = _from_text(kind, source, place)
    is_shown = (is_asked and place == "-") or boundary.holds(place)
    if not faults or is_shown:
        return arrays, faults
    return refused(*veiled(faults, f"shardspec manifest {files.real_path(place)}"))


def _folder(folder: str, name: str) -> Outcome:
    from shardspec.arrays import orbax

    try:
        return orbax.read(folder, name)
    except reading.DamageError as damage:
        return refused(reading.damaged(f"`{name}`: {damage}"))


def _from_text(kind: Kind, source: SourceFile, path: str) -> Outcome:
    if kind is not LISTING:
        module = import_module(f"{__package__}.{kind.module}")
        outcome: Outcome = module.read(source)
        return outcome
    if source.text.lstrip()[:1] == "{":
        from shardspec.arrays.safetensors import is_index, read_index

        if is_index(source):
            return read_index(source, os.path.dirname(path))
    params, faults = read_manifest(source)
    return Arrays(params, (), (source,)), faults


def entry_point_refused(name: str) -> Diagnostic:
    """Return the finding for a function where only files are read."""
    return unsafe(
        f"`{name}` is a function, and to call it would run code",
        f"the command line may ask for that, `--arrays {name}`; Python code passes what it returns",
    )


def _unreadable(
    path: str, fault: OSError | ValueError, help: str = "name a file that can be read"
) -> Diagnostic:
    reason = str(fault)
    if isinstance(fault, OSError):
        reason = (fault.strerror or reason).lower()
    return Diagnostic(codes.UNREADABLE, f"`{path}` cannot be read: {reason}", help=help)


_SOUGHT = (
    "looked for an Orbax checkpoint (`_METADATA`), `*.index.json`, `*.safetensors`, `*.msgpack`, "
    "`*.npz`, `model-info.txt`, and folders of steps"
)
_ITEMS = "_CHECKPOINT_METADATA"

#: A checkpoint in a folder of items in a folder of steps.
_DEEPEST = 3


def arrays_in(folder: str, name: str, depth: int = 0) -> tuple[str, str] | Diagnostic:
    """Return path and name of the file, or the folder of one checkpoint, that holds the arrays.

    Args:
      name: what messages call the folder.
    """
    from shardspec.arrays.orbax import is_checkpoint

    try:
        if is_checkpoint(folder):
            return folder, name
        names = sorted(os.listdir(folder), key=natural)
    except OSError as fault:
        return _unreadable(name, fault, "check its permissions")
    binary = (kind.suffixes for kind in reading.KINDS if not kind.is_text)
    for suffixes in ((".index.json",), *binary):
        found = [each for each in names if each.endswith(suffixes)]
        if found:
            return _only(found, folder, name)
    folders = [each for each in names if os.path.isdir(os.path.join(folder, each))]
    # Of steps of training, `1000` or `checkpoint_1000`, the newest is the last.
    below = [each for each in folders if each.rpartition("_")[2].isdecimal()][-1:]
    if not below and _ITEMS in names:
        below = [each for each in folders if is_checkpoint(os.path.join(folder, each))]
    if below and depth < _DEEPEST:
        inner = _only(below, folder, name)
        return inner if isinstance(inner, Diagnostic) else arrays_in(*inner, depth + 1)
    if reading.MODEL_INFO.suffixes[0] in names:
        return _only([reading.MODEL_INFO.suffixes[0]], folder, name)
    return foreign(f"the folder `{name}` holds no arrays that can be read", _SOUGHT)


def _only(found: list[str], folder: str, name: str) -> tuple[str, str] | Diagnostic:
    first = os.path.join(name, found[0])
    if len(found) == 1:
        return os.path.join(folder, found[0]), first
    message = f"the folder `{name}` holds {len(found)} of a kind: {listed(found, 4)}"
    return foreign(message, f"name the one you mean: `{first}`")


_SUFFIXES = (*(suffix for kind in reading.KINDS for suffix in kind.suffixes), *reading.PICKLES, "/")
_PREFIXES = ("./", "../", "/")


def names_path(name: str) -> bool:
    """Say whether an entry of `manifest:` is a path or a function, not a bundled name.

    >>> names_path("./run"), names_path("model.safetensors"), names_path("gpt2")
    (True, True, False)
    """
    return name.endswith(_SUFFIXES) or name.startswith(_PREFIXES) or spells_entry_point(name)


def read_named(name: str, path: str, excerpt: Excerpt, boundary: Boundary) -> Outcome:
    """Return the arrays of an entry of `manifest:`; a file outside the project is not quoted.

    Args:
      name: the entry as it is written.
      path: where that is, seen from this folder.
      excerpt: the entry in the spec; what has no place of its own is shown there.
    """
    if spells_entry_point(name):
        return refused(_here(entry_point_refused(name), excerpt))
    arrays, faults = read_arrays(path, excerpt.span, boundary)
    if faults and not boundary.holds(path):
        arrays, faults = Arrays(), tuple(veiled(faults, f"shardspec manifest {path}"))
    return arrays, tuple(_here(fault, excerpt) for fault in faults)


def _here(fault: Diagnostic, excerpt: Excerpt) -> Diagnostic:
    """Return a fault with a place; a file that is not there is the entry's fault."""
    is_gone = fault.code is codes.UNREADABLE
    if fault.labels and not is_gone:
        return fault
    code, notes = codes.UNKNOWN_PRESET if is_gone else fault.code, fault.notes
    return point(code, fault.message, excerpt.span, "named here", notes=notes, help=fault.help)
