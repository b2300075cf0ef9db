"""Entries of other tools -> `overrides:` and `replicate:` of a spec.

JAX lets a PartitionSpec be shorter than the array has dimensions; an override states every
dimension. So an entry becomes one override for each rank of the arrays that it takes: the most
common rank keeps the regex, the others come before it by name. Without arrays an entry is carried
over as it is written, and that is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic
from shardspec.formats.foreign.imported import came_from, lost, place
from shardspec.formats.foreign.path_entries import PathEntry, unwritable
from shardspec.formats.foreign.rules import Dims
from shardspec.frontend.reading import Comments, Data, Route
from shardspec.ir.grouping import collapsed, counted, described, natural, template
from shardspec.ir.param import Param
from shardspec.ir.spec import override_text

_ANY_PATH = ".*"
_ANY_PATHS = frozenset((_ANY_PATH, ".+", ".*.+.*", ".*..*"))
_PLAIN = re.compile(r"[\w./-]+")


@dataclass(frozen=True, slots=True)
class Taken:
    """An entry with the arrays that it takes in its tool.

    Attributes:
      pattern: regex for whole paths of ours.
      params: None where no arrays are known.
      scalars: arrays that match, but that the tool leaves whole whatever the entry says.
      must_win: whether others behind it would take its arrays, though order decides nothing.
    """

    entry: PathEntry
    pattern: str
    params: tuple[Param, ...] | None = None
    scalars: tuple[Param, ...] = ()
    must_win: bool = False


@dataclass(slots=True)
class PathSections:
    """What a list of entries becomes."""

    overrides: list[Data] = field(default_factory=list)
    replicate: list[Data] = field(default_factory=list)
    comments: dict[Route, Comments] = field(default_factory=dict)
    faults: list[Diagnostic] = field(default_factory=list)

    @property
    def data(self) -> dict[str, Data]:
        """Return the sections that are not empty."""
        sections: dict[str, list[Data]] = {
            "overrides": self.overrides,
            "replicate": self.replicate,
        }
        return {key: list(value) for key, value in sections.items() if value}

    @property
    def says_the_rest(self) -> bool:
        """Say whether an entry leaves all other arrays whole."""
        return any(isinstance(e, dict) and e["match"] == _ANY_PATH for e in self.replicate)

    def override(self, key: str, pattern: str, dims: Dims, comment: Comments) -> None:
        """Add an override; `key` is `match` for a regex, `path` for a glob."""
        self.comments["overrides", len(self.overrides)] = comment
        self.overrides.append({key: pattern, "spec": override_text(dims)})

    def whole(self, pattern: str, because: str, comment: Comments) -> None:
        """Add an entry for arrays that are meant to be whole."""
        self.comments["replicate", len(self.replicate)] = comment
        self.replicate.append({"match": pattern, "because": because})


def path_sections(taken: Sequence[Taken], *, is_ordered: bool = True) -> PathSections:
    """Return the sections of a spec that say what the entries do.

    Args:
      is_ordered: whether an earlier entry takes an array from a later one.
    """
    sections = PathSections()
    last_split = max(
        (index for index, each in enumerate(taken) if not each.entry.is_whole), default=-1
    )
    as_written: list[PathEntry] = []
    for index, each in enumerate(taken):
        entry = each.entry
        assert entry.span is not None
        if unwritable(entry) is not None:
            continue
        if entry.is_whole and not each.must_win and (index > last_split or not is_ordered):
            because = f"{entry} in {place(entry.span)}"
            pattern = _ANY_PATH if each.pattern in _ANY_PATHS else each.pattern
            sections.whole(pattern, because, came_from(entry.span))
        elif each.params is None:
            as_written.append(entry)
            assert entry.dims is not None
            sections.override("match", each.pattern, entry.dims, came_from(entry.span))
        else:
            _by_rank(each, each.params, sections)
    if as_written:
        sections.faults.append(_rank_unknown(as_written))
    return sections


def _rank_unknown(entries: Sequence[PathEntry]) -> Diagnostic:
    first = entries[0]
    fits = counted(len(first.dims or ()), "dimension")
    message = (
        f"{first} serves arrays of {fits} or more, and `overrides:` states every dimension: "
        f"{counted(len(entries), 'entry').replace('entrys', 'entries')} as written"
    )
    return lost(
        message,
        first.span,
        help="--against ARRAYS gives each the dimensions of the arrays it takes",
    )


def _by_rank(taken: Taken, params: Sequence[Param], sections: PathSections) -> None:
    """Add one override for the most common rank, and before it those for all others."""
    entry, dims = taken.entry, taken.entry.dims
    assert dims is not None
    assert entry.span is not None
    too_short = [param for param in params if param.rank < len(dims)]
    fitting = [param for param in params if param.rank >= len(dims)]
    if too_short:
        sections.faults.append(_too_short(entry, too_short))
    ranks = Counter(param.rank for param in fitting)
    main = max(ranks, key=lambda rank: (ranks[rank], -rank)) if ranks else len(dims)
    others: dict[Dims, list[str]] = {}
    for param in fitting:
        if param.rank != main:
            others.setdefault(_full(dims, param.rank), []).append(param.path)
    for param in taken.scalars:
        others.setdefault(((),) * param.rank, []).append(param.path)
    for partition, paths in others.items():
        for key, pattern in patterns_of(paths):
            more = f"with {counted(len(partition), 'dimension')}"
            sections.override(key, pattern, partition, came_from(entry.span, more))
    sections.override("match", taken.pattern, _full(dims, main), came_from(entry.span))


def _too_short(entry: PathEntry, params: Sequence[Param]) -> Diagnostic:
    shortest = counted(min(param.rank for param in params), "dimension")
    message = f"{entry} is too long for {shortest}: JAX refuses it"
    found = lost(message, entry.span, help="EasyDeL cuts it to fit; state those arrays yourself")
    return Diagnostic(
        found.code,
        found.message,
        found.labels,
        (described([param.path for param in params]),),
        found.help,
    )


def _full(dims: Dims, rank: int) -> Dims:
    return dims + ((),) * (rank - len(dims))


def patterns_of(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the patterns that match exactly these paths: (`path`, glob) or (`match`, regex)."""
    alike: dict[str, list[str]] = {}
    for path in sorted(set(paths), key=natural):
        alike.setdefault(template(path), []).append(path)
    for group in alike.values():
        glob = collapsed(group) if all(_PLAIN.fullmatch(path) for path in group) else None
        if glob is not None:
            yield "path", glob
        elif len(group) == 1 or not all(_PLAIN.fullmatch(path) for path in group):
            for path in group:
                yield "match", re.escape(path)
        else:
            yield from (("path", path) for path in group)


def document(
    doc: str, sections: PathSections, *, is_strict: bool = False
) -> tuple[dict[str, Data], dict[Route, Comments]]:
    """Return a document of path entries, with what all of these formats have in common.

    Args:
      is_strict: whether the tool refuses arrays that nothing matches; else they are whole.
    """
    data: dict[str, Data] = {"doc": doc, **sections.data}
    data["policy"] = {"indivisible": "keep"}
    comments = dict(sections.comments)
    comments["policy",] = Comments(trailing="as JAX does, which refuses what does not divide")
    if not is_strict and not sections.says_the_rest:
        data["lints"] = {"unnamed-array": "warn"}
        comments["lints",] = Comments(trailing="what nothing matches is whole over there")
    return data, comments
