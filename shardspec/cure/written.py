"""The lines of a search as changes of the files that they stand in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from shardspec.cure.lines import Layout, Line, Site
from shardspec.cure.patching import Constrained, Patched, Refused, patched
from shardspec.diagnostics import SourceFile
from shardspec.language.reading import is_dsl

#: Names that any value could be constrained by: whether there is a way to write it is asked.
_ANY = Layout("_", ())
#: What is called where a file has no constraints of its own.
_IDIOM, _IMPORT = "shardspec", "import shardspec"


def written(lines: Iterable[Line], spec: SourceFile | None = None) -> tuple[Patched, ...] | Refused:
    """Return the files that lines change, the spec first, or why they cannot be written.

    Args:
      spec: gets an entry of `params` for each argument.
    """
    lines = tuple(lines)
    found = []
    entries = [line for line in lines if line.site.at is None]
    if entries:
        changed = _with_entries(entries, spec)
        if isinstance(changed, Refused):
            return changed
        found.append(changed)
    by_file: dict[str, list[Constrained]] = {}
    for line in lines:
        if line.site.at is not None:
            names = tuple(each.names for each in line.layouts)
            by_file.setdefault(line.site.at.file, []).append(Constrained(line.site.at, names))
    for file in sorted(by_file):
        source = source_of(file)
        made = source if isinstance(source, Refused) else patched(source, file, by_file[file])
        if isinstance(made, Refused):
            return made
        found.append(made)
    return tuple(found)


def _with_entries(entries: Sequence[Line], spec: SourceFile | None) -> Patched | Refused:
    """Return a spec with entries of `params`, the first of the section."""
    if spec is None or spec.name == "-":
        return Refused("the spec is no file")
    rows = [f'"{each.site.path}": {each.layouts[0].names}' for each in entries]
    head, end = _YAML, ""
    if is_dsl(spec):
        rows = [f"{each.site.path} : {each.layouts[0].names}" for each in entries]
        head, end = _DSL, "}\n"
    text = spec.text
    found = head.search(text)
    made = "".join(f"  {row}\n" for row in rows)
    if found is not None and found["inline"]:  # `params: {wi: embed mlp}`
        is_empty = text[found.end() :].lstrip().startswith("}")
        made = ", ".join((*rows, *(() if is_empty else ("",))))
    if found is not None:
        text = text[: found.end()] + made + text[found.end() :]
    elif re.search(r"(?m)^params\b", text):
        return Refused(f"{spec.name} has `params` in a form that is not written")
    else:
        text = f"{text.rstrip()}\nparams{' {' if end else ':'}\n{made}{end}"
    return Patched(spec.name, spec.text, text, tuple(rows))


#: How a block of `params` begins.
_DSL = re.compile(r"(?m)^params \{[ \t]*\n(?P<inline>)")
_YAML = re.compile(r"(?m)^params:[ \t]*(?:(?P<inline>\{[ \t]*)|(?:#[^\n]*)?\n)")


def writable(sites: Iterable[Site], folder: str) -> list[Site]:
    """Return the sites whose expressions can be constrained in a file inside of a folder."""
    found = []
    for site in sites:
        if site.at is None:
            found.append(site)
        elif is_inside(site.at.file, folder):
            changed = written([Line(site, (_ANY,))])
            if not isinstance(changed, Refused):
                found.append(replace(site, effort=_effort(changed[0])))
    return found


def is_inside(file: str, folder: str) -> bool:
    """Say whether a file is in a folder, wherever links lead."""
    return os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))


def _effort(changed: Patched) -> int:
    more = len(changed.new.splitlines()) - len(changed.old.splitlines())
    needs_import = _IMPORT in changed.new and _IMPORT not in changed.old
    is_foreign = f"{_IDIOM}." in changed.lines[0]
    return 2 * is_foreign + (more == needs_import)


@lru_cache(maxsize=256)
def source_of(file: str) -> str | Refused:
    """Return the text of a file as it is, line ends and all."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except OSError as error:
        return Refused(f"{file} cannot be read: {error.strerror}")
