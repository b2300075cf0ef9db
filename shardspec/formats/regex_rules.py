"""Lists of (regex, PartitionSpec), as big_vision, scalax, EasyLM and EasyDeL have them.

The first regex that matches a path decides. Whether it must match the whole path or any part of it
is not in the list: scalax (`TreePathShardingRule`), EasyLM and EasyDeL search, others match fully.
The tools that search leave scalars whole before they look at the list.
Source: scalax 0.2.6, `scalax.sharding.TreePathShardingRule`; eformer 0.0.101,
`eformer.escale.partition.constraints.match_partition_rules`; google-research/big_vision,
`big_vision.sharding.infer_sharding` (whose entries are tactics, not PartitionSpecs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.imported import (
    Answer,
    Imported,
    NoAnswer,
    Options,
    Outcome,
    ambiguous,
    bad,
    placed,
)
from shardspec.formats.foreign.path_entries import (
    Found,
    PathEntry,
    Winners,
    find_entries,
    left_out,
    needs_choice,
    read_entries,
    worked_out,
)
from shardspec.formats.foreign.path_overrides import Taken, document, path_sections
from shardspec.formats.foreign.regexes import Match, slashed, whole_path_regex
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import Param, Params
from shardspec.ir.partition import PartitionSpec

TOOL = "the list"
_CHOOSE = "say how the tool reads them: --match search (scalax, EasyLM, EasyDeL) or fullmatch"


@dataclass(frozen=True, slots=True)
class RegexReading:
    """A list and who reads it.

    Attributes:
      separator: what joins paths there.
      is_strict: whether an array that nothing matches is an error there.
    """

    entries: tuple[PathEntry, ...]
    match: Match
    separator: str = "/"
    is_strict: bool = False

    def there(self, path: str) -> str:
        """Return what the tool calls an array."""
        return path.replace("/", self.separator)


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a list of regexes does."""
    separator = options.separator or "/"
    wrong = check_call(sources, separator)
    if wrong is not None:
        return None, (wrong,)
    what = "list of regexes and PartitionSpecs"
    found = find_entries(sources[0], options.name, what, [axis for axis, _ in options.mesh])
    if not isinstance(found, Found):
        return None, found
    entries, faults = read_entries(found.node)
    if faults:
        return None, faults
    match = matching(entries, found, options, separator)
    if isinstance(match, Diagnostic):
        return None, (match,)
    is_strict = bool(options.strict if options.strict is not None else found.is_strict)
    reading = RegexReading(entries, match, separator, is_strict)
    sections = path_sections(_taken(reading, options.params))
    how = "any part of a path" if match == "search" else "the whole path"
    doc = f"A list of regexes, which match {how}; the first decides"
    data, comments = document(doc, sections, is_strict=is_strict)
    return Imported(data, comments, reading, TOOL), (*left_out(entries), *sections.faults)


def check_call(sources: Sequence[SourceFile], separator: str) -> Diagnostic | None:
    """Return what is wrong with the number of files, or with the separator."""
    if len(sources) != 1:
        return bad(f"one file holds the entries, and here are {len(sources)}", sources[1].whole)
    if len(separator) != 1:
        return bad(f"`--separator {separator}` is not one character", None)
    return None


def matching(
    entries: Sequence[PathEntry], found: Found, options: Options, separator: str
) -> Match | Diagnostic:
    """Return how the regexes are meant, or the finding that asks."""
    if options.match is not None:
        return "search" if options.match == "search" else "fullmatch"
    if found.tool:
        return "search"
    paths = None
    if options.params is not None:
        paths = [param.path.replace("/", separator) for param in options.params]
    doubtful = needs_choice(entries, paths)
    if doubtful is None:
        return "fullmatch"
    message = f"`{doubtful.pattern}` matches other arrays under `search` than under `fullmatch`"
    return ambiguous(message, doubtful.span, _CHOOSE)


def _taken(reading: RegexReading, params: Params | None) -> list[Taken]:
    """Return the entries with the arrays that each takes."""
    winners = Winners(reading.entries, reading.match)
    won: dict[int, list[Param]] = {}
    for param in params or ():
        index = winners.first(reading.there(param.path))
        if index is not None:
            won.setdefault(index, []).append(param)
    return [
        taken(entry, reading.match, reading.separator, None if params is None else won.get(i, []))
        for i, entry in enumerate(reading.entries)
    ]


def taken(entry: PathEntry, match: Match, separator: str, params: Sequence[Param] | None) -> Taken:
    """Return an entry with its regex for our paths, and the arrays it takes."""
    pattern = whole_path_regex(slashed(entry.pattern or "", separator), match)
    if params is None:
        return Taken(entry, pattern)
    others = tuple(param for param in params if match != "search" or not is_scalar(param))
    scalars = tuple(param for param in params if match == "search" and is_scalar(param))
    return Taken(entry, pattern, others, scalars)


def is_scalar(param: Param) -> bool:
    """Say whether tools that search leave an array whole for its size."""
    return math.prod(param.shape) == 1


def answer(reading: RegexReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return what the first matching entry gives each array."""
    winners = Winners(reading.entries, reading.match)
    return tuple(_answer(reading, winners, param, mesh) for param in params)


def _answer(reading: RegexReading, winners: Winners, param: Param, mesh: Mesh) -> Answer:
    whole = PartitionSpec(((),) * param.rank)
    if reading.match == "search" and is_scalar(param):
        return whole
    index = winners.first(reading.there(param.path))
    if index is None:
        return NoAnswer("no regex matches (ValueError)") if reading.is_strict else whole
    entry = reading.entries[index]
    if entry.dims is None:
        return worked_out(entry)
    return placed(entry.dims, param, mesh)
