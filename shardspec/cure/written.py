"""The lines of a search as changes of the files that they stand in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from shardspec.cure.lines import Layout, Line, Site
from shardspec.cure.patching import Constrained, Patched, Refused, patched

#: Names that any value could be constrained by: whether there is a way to write it is asked.
_ANY = Layout("_", ())
#: What is called where a file has no constraints of its own.
_IDIOM = "shardspec"


def written(lines: Iterable[Line]) -> tuple[Patched, ...] | Refused:
    """Return the files that lines change, in order of path, or why they cannot be written."""
    by_file: dict[str, list[Constrained]] = {}
    for line in lines:
        if line.site.at is not None:
            names = tuple(each.names for each in line.layouts)
            by_file.setdefault(line.site.at.file, []).append(Constrained(line.site.at, names))
    found = []
    for file in sorted(by_file):
        source = source_of(file)
        changed = source if isinstance(source, Refused) else patched(source, file, by_file[file])
        if isinstance(changed, Refused):
            return changed
        found.append(changed)
    return tuple(found)


def writable(sites: Iterable[Site], folder: str) -> list[Site]:
    """Return the sites whose expressions can be constrained in a file inside of a folder."""
    inside = os.path.realpath(folder) + os.sep
    found = []
    for site in sites:
        if site.at is None:
            found.append(site)
        elif os.path.realpath(site.at.file).startswith(inside):
            changed = written([Line(site, (_ANY,))])
            if not isinstance(changed, Refused):
                found.append(replace(site, effort=_effort(changed[0])))
    return found


def _effort(changed: Patched) -> int:
    if f"{_IDIOM}." in changed.lines[0]:
        return 2
    return int(len(changed.new.splitlines()) == len(changed.old.splitlines()))


@lru_cache(maxsize=256)
def source_of(file: str) -> str | Refused:
    """Return the text of a file as it is, line ends and all."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except OSError as error:
        return Refused(f"{file} cannot be read: {error.strerror}")
