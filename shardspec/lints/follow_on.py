"""What is true and of no use, because of something else that is shown.

A rule with a slip in it is reported, and lost: no rule names its axis, nothing is split over its
mesh axis, and memory overflows. These findings are true of what is left and of no use, since they
go when the slip does. So a fault of reading hides those that an absent entry would explain, and
no others: what two entries say that were read is told in the same run.

And of two findings about one thing, the one that says more is enough; so is one of those that the
counts of slices of one target have, which names the others.

All of it is decided on what will be shown, after levels and suppressions: a finding that is
silenced hides no other.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain
from typing import NamedTuple

from shardspec.diagnostics import Code, Diagnostic, Severity, Span
from shardspec.diagnostics.codes import ALL, BY_ID
from shardspec.diagnostics.words import by_key, grouped, listed, natural
from shardspec.ir.spec import Spec, family
from shardspec.lints.context import Context
from shardspec.lints.registry import run

#: Findings that outrank others about their arrays.
_SAYERS = frozenset(chain(*(code.outranked_by for code in ALL)))

_NAME = re.compile(r"\w[\w-]*(?:\.[\w-]+)*")
_NUMBERS = re.compile(r"\d[\d.,]*(?: (?:[KMGTP]iB|bytes|%))?")
_COMMENT = re.compile(r"(?<!\S)#.*")

_LOUDNESS = {Severity.ALLOW: 0, Severity.WARNING: 1, Severity.ERROR: 2}


class _Lost(NamedTuple):
    """What faults of reading took away from one section.

    Attributes:
      places: where the faults are.
      whole: where those are that took all of the section.
      by_entry: where they are by the entry that they took.
      by_name: the same by the names in that entry, a list for each entry.
    """

    places: list[Span]
    whole: list[Span]
    by_entry: dict[Span, list[Span]]
    by_name: dict[str, list[list[Span]]]


def without_follow_ons(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics without those that others of them explain or say better.

    Args:
      diagnostics: what is to be shown, as loud as it is to be.
    """
    found = tuple(diagnostics)
    lost = _lost(found)
    kept = tuple(each for each in found if not _is_explained(each, lost)) if lost else found
    shown: list[Diagnostic] = []
    said = _Said({}, {}, {}, {})
    # a finding comes behind those that may outrank it; most have none
    for each in sorted(kept, key=lambda each: _rank(each.code)):
        if not _is_said(each, said):
            shown.append(each)
            _take_in(each, said)
    return tuple(each for each in shown if not each.code.is_alone or len(shown) == 1)


@cache
def _rank(code: Code) -> int:
    """Return how many findings may outrank each other down to this one."""
    return max((1 + _rank(BY_ID[id]) for id in code.outrankers), default=0)


def _lost(diagnostics: Sequence[Diagnostic]) -> dict[str, _Lost]:
    """Return what is missing, by section."""
    lost: dict[str, _Lost] = {}
    for each in diagnostics:
        label, section = each.primary, each.section
        if not each.code.loses_entry or not each.is_error or section is None or label is None:
            continue
        here = lost.setdefault(section, _Lost([], [], {}, {}))
        here.places.append(label.span)
        if each.subject == section:
            here.whole.append(label.span)
        entry = each.entry or label.span
        if entry not in here.by_entry:
            here.by_entry[entry] = []
            for name in set(_names(entry.text)):
                here.by_name.setdefault(name, []).append(here.by_entry[entry])
        here.by_entry[entry].append(label.span)
    return lost


def _is_explained(diagnostic: Diagnostic, lost: Mapping[str, _Lost]) -> bool:
    code, label = diagnostic.code, diagnostic.primary
    if label is None:
        return False
    if code.explained_in_entry and any(
        label.span in entry for each in lost.values() for entry in each.by_entry
    ):
        return True
    all_of = (lost[section] for section in code.explained_by & lost.keys())
    named_in = [lost[section] for section in code.explained_by_name & lost.keys()]
    faults = chain(
        *(each.places for each in all_of),
        *(each.whole for each in named_in),
        *(places for each in named_in for places in each.by_name.get(diagnostic.subject or "", ())),
    )
    return any(span != label.span for span in faults)


class _Word(NamedTuple):
    """What of a finding decides whether another is needless beside it."""

    code: str
    severity: Severity
    target: str | None


#: The words of findings, each once.
_Words = dict[_Word, None]


class _Said(NamedTuple):
    """What is shown, by the places and by the arrays that it is about; and what is of a target.

    Attributes:
      of_arrays: the words about arrays that are told of together, which each of them finds in
        `of_array`: a thousand findings may be about the same thousand arrays.
    """

    at_place: dict[Span, _Words]
    of_array: dict[str, list[_Words]]
    of_arrays: dict[tuple[str, ...], _Words]
    on_target: _Words


def _take_in(shown: Diagnostic, said: _Said) -> None:
    word = _Word(shown.code.id, shown.severity, shown.target)
    for label in shown.labels:
        said.at_place.setdefault(label.span, {}).setdefault(word)
    if word.code in _SAYERS:
        _words_about(shown.arrays, said).setdefault(word)
    said.on_target.setdefault(word)


def _words_about(arrays: tuple[str, ...], said: _Said) -> _Words:
    """Return the words about these arrays, which each of them finds."""
    found = said.of_arrays.get(arrays)
    if found is None:
        found = said.of_arrays[arrays] = {}
        for path in arrays:
            said.of_array.setdefault(path, []).append(found)
    return found


def _is_said(diagnostic: Diagnostic, said: _Said) -> bool:
    """Say whether a finding at least as loud says what this one does, and more."""
    code, label = diagnostic.code, diagnostic.primary
    others = said.at_place.get(label.span, ()) if label else ()
    if _louder(diagnostic, code.outranked_here, others):
        return True
    louder = _louder(diagnostic, code.outranked_on_target, said.on_target)
    if any(word.severity is Severity.ERROR for word in louder):
        return True
    if not code.outranked_by or not diagnostic.arrays:
        return False
    return all(
        _louder(diagnostic, code.outranked_by, chain(*said.of_array.get(path, ())))
        for path in diagnostic.arrays
    )


def _louder(diagnostic: Diagnostic, ids: Collection[str], said: Iterable[_Word]) -> list[_Word]:
    """Return those with one of `ids` that hold on its target and are at least as loud."""
    least = _LOUDNESS[diagnostic.severity]
    return [
        each
        for each in (said if ids else ())
        if each.code in ids
        and _LOUDNESS[each.severity] >= least
        and each.target in (None, diagnostic.target)
    ]


def families_as_one(found: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield findings; of those that several counts of slices have, that of the first count.

    `hardware: "{1..8} * tpu v5e 4x4"` is eight targets, and what is wrong with the mesh that they
    share is wrong on most of them, each time with other numbers.
    """

    def key(each: Diagnostic) -> object:
        if each.target is None or family(each.target) == each.target:
            return each
        place = each.primary.span if each.primary else None
        return each.code, each.level, place, each.subject, each.arrays, family(each.target)

    for members in grouped(found, key).values():
        first, *others = sorted(members, key=lambda each: natural(each.target or ""))
        names = dict.fromkeys(each.target for each in others if each.target != first.target)
        if not others or len(names) < len(others):
            yield from members
            continue
        note = f"also on {listed(filter(None, names))}, with their own numbers"
        most = max((each.bytes for each in members if each.bytes is not None), default=None)
        yield replace(first, notes=(*first.notes, note), target=None, bytes=most)


def _names(entry: str) -> Iterator[str]:
    """Yield the names in an entry; of a name with dots, what stands before each, too."""
    for found in _NAME.finditer(_COMMENT.sub("", entry)):
        parts = found[0].split(".")
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


# What the checks find in a spec and in its phases, told together.
#
# What all of them say is said once; what only phases say, or say with other numbers, names them.
# That nothing uses a rule, a pattern or a mesh axis is a finding where it is true of all phases
# that have it: a rule that a phase puts another one in place of is idle there, and at work
# elsewhere.


def together(contexts: Sequence[Context]) -> Iterator[Diagnostic]:
    """Yield what every check finds, of a spec and its phases."""
    found = [tuple(run(context)) for context in contexts]
    places = [_places(context.spec) for context in contexts]
    told = [{_key(each) for each in here if each.code.is_idle} for here in found]
    named = by_key(
        (each, context.spec.phase)
        for context, here in zip(contexts, found, strict=True)
        for each in here
    )
    shown = (
        (each, phases)
        for each, phases in named.items()
        if not each.code.is_idle
        or all(
            _key(each) in keys or not known.has(each)
            for keys, known in zip(told, places, strict=True)
        )
    )
    for members in grouped(shown, lambda pair: replace(pair[0], notes=(), bytes=None)).values():
        yield from _as_one(members)


def _as_one(members: Sequence[tuple[Diagnostic, list[str]]]) -> Iterator[Diagnostic]:
    """Yield one finding for phases that differ in numbers alone: it has those of the first."""
    told = [each if "" in phases else _in_phases(each, phases) for each, phases in members]
    names = [name for _, phases in members for name in phases]
    others = names[len(members[0][1]) :]
    notes = {_NUMBERS.sub("", " ".join(each.notes)) for each, _ in members}
    if not others or len({*names}) < len(names) or len(notes) > 1:
        yield from told  # numbers differ within one phase, or more than numbers does
    else:
        whose = "its" if len(others) == 1 else "their"
        note = f"also {_phases(others)}, with {whose} own numbers"
        most = max((each.bytes for each, _ in members if each.bytes is not None), default=None)
        yield replace(told[0], notes=(*told[0].notes, note), bytes=most)


def _in_phases(found: Diagnostic, phases: Sequence[str]) -> Diagnostic:
    """Return a finding that names the phases that it is about, where it does not itself."""
    names = dict.fromkeys(phases)
    if all(f"phase `{name}`" in found.message for name in names):
        return found
    return replace(found, notes=(*found.notes, _phases([*names])))


def _phases(names: Sequence[str]) -> str:
    return f"in phase{'s' if len(names) > 1 else ''} {listed(names)}"


def _key(found: Diagnostic) -> tuple[str, Span | None]:
    return found.code.id, found.primary.span if found.primary else None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the entries of a spec stand.

    Attributes:
      by_source: the starts of the entries, and how far each reaches with those before it.
    """

    by_source: dict[str, tuple[list[int], list[int]]]

    def has(self, found: Diagnostic) -> bool:
        """Say whether what a finding points at is part of the spec."""
        if found.primary is None:
            return True
        span = found.primary.span
        starts, reach = self.by_source.get(span.source.name, ([], []))
        before = bisect_right(starts, span.start)
        return before > 0 and reach[before - 1] >= span.end


def _places(spec: Spec) -> _Places:
    spans = sorted(
        (span.source.name, span.start, span.end) for span in _spans(spec) if span is not None
    )
    grouped = by_key((name, (start, end)) for name, start, end in spans)
    return _Places(
        {
            name: ([start for start, _ in ends], list(accumulate((end for _, end in ends), max)))
            for name, ends in grouped.items()
        }
    )


def _spans(spec: Spec) -> Iterator[Span | None]:
    yield from (_with_left_side(rule.span) for rule in spec.axis_rules)
    yield from (pattern.span for pattern in spec.patterns)
    yield from (entry.span for entry in spec.path_rules)
    yield from (entry.span for entry in spec.overrides)
    yield from (entry.span for entry in spec.scans)
    yield from (entry.span for entry in spec.replicate)
    yield from (entry.span for entry in spec.activations)
    yield from (entry.span for entry in spec.logical_axes)
    for target in spec.targets:
        yield target.span
        yield from (axis.span for axis in target.mesh.axes)


def _with_left_side(span: Span | None) -> Span | None:
    """Return an alternative with what stands before it on its line: the axes that it is for."""
    if span is None:
        return None
    return Span(span.source, span.source.text.rfind("\n", 0, span.start) + 1, span.end)
