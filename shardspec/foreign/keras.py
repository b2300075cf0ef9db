"""Keras's `LayoutMap`: regexes for variable paths, each with the mesh axes of its dimensions.

An entry whose key is the path itself comes first; else exactly one regex may match, and several are
an error. A variable that nothing matches is whole. Keys were searched for until February 2026, and
match the whole path since.
Source: Keras 3.15.1, `keras.src.distribution.distribution_lib.LayoutMap`, and its earlier text in
keras-team/keras at 015139f.

Written is a Python module with the entries: regex -> mesh axes of each dimension. Keras refuses a
path that two regexes match; these are anchored and disjoint, so that `search` and
`fullmatch` agree. A dimension over several mesh axes has no place in a `TensorLayout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.words import described, grouped
from shardspec.foreign import formats, path_entries
from shardspec.foreign.flax import axes_literal, tuple_literal
from shardspec.foreign.path_entries import PathEntry, Taken, left_out
from shardspec.foreign.regex import Group, all_taken, check_call, groups, line_end, matching, raw
from shardspec.ir.spec import Mesh, Param, Params, PartitionSpec
from shardspec.language.regex import regex_literal

TOOL = "Keras"
_CHOOSE = "say which Keras: --match fullmatch (since February 2026) or --match search (before)"


class KerasReading(NamedTuple):
    """The entries of a LayoutMap."""

    entries: tuple[PathEntry, ...]
    match: path_entries.Match


def read(sources: Sequence[SourceFile], options: formats.Options) -> formats.Outcome:
    """Return the spec that says what a LayoutMap does."""
    wrong = check_call(sources, "/")
    if wrong is not None:
        return None, (wrong,)
    found = path_entries.find_entries(sources[0], options.name, "LayoutMap")
    if not isinstance(found, path_entries.Found):
        return None, found
    entries, faults = path_entries.read_entries(found.node)
    faults += tuple(_refused(entries))
    if faults:
        return None, faults
    match = matching(entries, options, "/", "variables", _CHOOSE)
    if isinstance(match, Diagnostic):
        return None, (match,)
    reading = KerasReading(entries, match)
    several = _Owners(reading)
    kept = _exact(reading, several, options.params)
    for each in all_taken(entries, match, "/", options.params, several.only):
        # Keras makes no exception of scalars.
        params = None if each.params is None else (*each.params, *each.scalars)
        kept.append(Taken(each.entry, each.pattern, params))
    sections = path_entries.path_sections(kept, is_ordered=False)
    faults = (*left_out(entries), *sections.faults, *_contested(several, options.params or ()))
    how = "match whole paths" if match == "fullmatch" else "are searched for in paths"
    data, comments = path_entries.document(f"Keras's LayoutMap, whose regexes {how}", sections)
    return formats.Imported(data, comments, reading, TOOL), faults


def _refused(entries: Sequence[PathEntry]) -> list[Diagnostic]:
    """Return what Keras refuses: a key that is given twice, several mesh axes in one place."""
    seen: dict[str, PathEntry] = {}
    faults = []
    for entry in entries:
        if entry.pattern in seen:
            faults.append(formats.bad(f"`{entry.pattern}` is given twice (ValueError)", entry.span))
        if entry.pattern is not None:
            seen[entry.pattern] = entry
        if any(len(dim) > 1 for dim in entry.dims or ()):
            message = f"{entry}: Keras takes one mesh axis for a dimension"
            faults.append(formats.bad(message, entry.span))
    return faults


class _Owners:
    """Who wins a path: the key that is the path, or else all keys that match."""

    def __init__(self, reading: KerasReading) -> None:
        self.entries = reading.entries
        self.winners = path_entries.Winners(reading.entries, reading.match)
        self._keys = {entry.pattern: index for index, entry in enumerate(reading.entries)}

    def of(self, path: str) -> tuple[int, ...]:
        """Return the positions of the entries that Keras finds for a path."""
        return (self._keys[path],) if path in self._keys else self.winners.all(path)

    def only(self, path: str) -> int | None:
        """Return the position of the entry that Keras takes for a path."""
        found = self.of(path)
        return found[0] if len(found) == 1 else None


def _exact(reading: KerasReading, owners: _Owners, params: Params | None) -> list[Taken]:
    """Return, for keys that are paths, what has to stand first for them to win."""
    exact = []
    by_path = {param.path: (param,) for param in params or ()}
    for index, entry in enumerate(reading.entries):
        key = entry.pattern
        if key is None or regex_literal(key) != key:
            continue
        own = None if params is None else by_path.get(key, ())
        is_contested = len(owners.winners.all(key)) > 1 and owners.of(key) == (index,)
        if is_contested and own != ():
            exact.append(Taken(entry, key, own, must_win=True))
    return exact


def _contested(owners: _Owners, params: Params) -> list[Diagnostic]:
    """Return a finding for each set of keys that match the same variables."""
    groups = grouped((param.path for param in params), owners.of)
    faults = []
    for found, paths in ((found, paths) for found, paths in groups.items() if len(found) > 1):
        first, second = (owners.entries[at] for at in found[:2])
        which = f"`{first.pattern}` and `{second.pattern}` match the same variables"
        message = f"{which}, which Keras refuses: {described(paths)}"
        help = "the spec goes by the first that splits them"
        faults.append(formats.lost(message, second.span, help=help))
    return faults


def answer(reading: KerasReading, params: Params, mesh: Mesh) -> tuple[formats.Answer, ...]:
    """Return what Keras gives each variable."""
    owners = _Owners(reading)
    return tuple(_answer(reading, owners, param, mesh) for param in params)


def _answer(reading: KerasReading, owners: _Owners, param: Param, mesh: Mesh) -> formats.Answer:
    found = owners.of(param.path)
    if not found:
        return PartitionSpec(((),) * param.rank)
    entries = [reading.entries[index] for index in found]
    if len(entries) > 1:
        keys = ", ".join(f"`{entry.pattern}`" for entry in entries)
        help = "in the file, write keys of which one matches"
        return formats.NoAnswer(f"{keys} match (ValueError)", help=help)
    return path_entries.placed(entries[0], param, mesh)


def write(request: formats.Request) -> formats.Written:
    """Return the layouts of the plan's arrays, without those that Keras cannot say."""
    found = groups(request.plan)
    kept = [group for group in found if not _is_joined(group)]
    end = line_end(request.plan)
    lines = []
    for group in kept:
        axes = tuple_literal(map(axes_literal, group.partition.dims))
        lines.append(f"    {raw(f'^{group.regex}{end}')}: {axes},")
    use = ("    for path, axes in LAYOUT_MAP.items():", "        layout_map[path] = axes")
    body = (f"# {request.target_title}", "LAYOUT_MAP = {", *lines, "}")
    text = formats.python_module(request, "Entries of a Keras LayoutMap", use, body)
    joined = [_left_out(group) for group in found if _is_joined(group)]
    return text, (*joined, *formats.losses(request, "a LayoutMap", *formats.BY_PATH))


def _is_joined(group: Group) -> bool:
    return any(len(dim) > 1 for dim in group.partition.dims)


def _left_out(group: Group) -> Diagnostic:
    many = f" x{len(group.paths)}" if len(group.paths) > 1 else ""
    message = f"`{group.paths[0]}`{many} is {group.partition}: a dimension over several mesh axes"
    help = "it is left out: Keras lays out a dimension over one mesh axis"
    return formats.lost(message, None, help=help)
