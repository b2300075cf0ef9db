"""A path -> the arrays there: finds out what it is, and asks the reader of that format."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.codes import UNREADABLE
from shardspec.frontend.boundary import Boundary, boundary_of, marked, real_path, veiled
from shardspec.frontend.countable import countable
from shardspec.frontend.files import read_argument, read_source
from shardspec.frontend.manifests.arrays import Arrays, Outcome, damaged, distinct, refused, unsafe
from shardspec.frontend.manifests.binary import kind_at, read_as
from shardspec.frontend.manifests.frugal_file import DamageError
from shardspec.frontend.manifests.kinds import LISTING, Kind
from shardspec.frontend.manifests.listing import read_manifest

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
        arrays, faults = _read(path, included_from, boundary or boundary_of(path))
    except OSError as fault:
        return refused(_unreadable(path, fault))
    except ValueError as fault:
        return refused(Diagnostic(UNREADABLE, f"`{path}` cannot be read: {fault}"))
    params, twice = distinct(arrays.params, path)
    params, too_large = countable(params)
    return arrays._replace(params=params), (*faults, *twice, *too_large)


def _read(path: str, included_from: Span | None, boundary: Boundary) -> Outcome:
    place, name = path, path
    if os.path.isdir(path):
        from shardspec.frontend.manifests.folder import arrays_in

        found = arrays_in(path, path)
        if isinstance(found, Diagnostic):
            return refused(found)
        place, name = found
    if os.path.isdir(place):
        return _folder(place, name)
    kind: Kind | Diagnostic = LISTING
    if place != "-" and os.path.isfile(place):
        kind = kind_at(place, name)
    if isinstance(kind, Diagnostic):
        return refused(kind)
    if not kind.is_text:
        return read_as(kind, place, name)
    is_asked = included_from is None and place == path
    source = read_argument(place) if is_asked else read_source(Path(place), name=name)
    if isinstance(source, Diagnostic):
        arrays, faults = refused(source)
    else:
        source = replace(source, name=name, included_from=included_from)
        source = source if is_asked else marked(source, boundary, place)
        arrays, faults = _from_text(kind, source, place)
    is_shown = (is_asked and place == "-") or boundary.holds(place)
    if not faults or is_shown:
        return arrays, faults
    return refused(*veiled(faults, f"shardspec manifest {real_path(place)}"))


def _folder(folder: str, name: str) -> Outcome:
    from shardspec.frontend.manifests import orbax

    try:
        return orbax.read(folder, name)
    except DamageError as damage:
        return refused(damaged(f"`{name}`: {damage}"))


def _from_text(kind: Kind, source: SourceFile, path: str) -> Outcome:
    if kind is not LISTING:
        module = import_module(f"{__package__}.{kind.module}")
        outcome: Outcome = module.read(source)
        return outcome
    if source.text.lstrip()[:1] == "{":
        from shardspec.frontend.manifests import shard_index

        if shard_index.is_index(source):
            return shard_index.read(source, os.path.dirname(path))
    params, faults = read_manifest(source)
    return Arrays(params, (), (source,)), faults


def entry_point_refused(name: str) -> Diagnostic:
    """Return the finding for a function where only files are read."""
    return unsafe(
        f"`{name}` is a function, and to call it would run code",
        f"the command line may ask for that, `--params {name}`; Python code passes what it returns",
    )


def _unreadable(path: str, fault: OSError) -> Diagnostic:
    return Diagnostic(
        UNREADABLE, f"`{path}` cannot be read: {(fault.strerror or str(fault)).lower()}"
    )
