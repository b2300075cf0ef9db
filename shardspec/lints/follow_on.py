"""What is true and of no use, because of something else that is shown.

A rule with a slip in it is reported, and lost: no rule names its axis, nothing is split over its
mesh axis, and memory overflows. These findings are true of what is left and of no use, since they
go when the slip does. So a fault of reading hides those that an absent entry would explain, and
no others: what two entries say that were read is told in the same run.

And of two findings about one thing, the one that says more is enough.

All of it is decided on what will be shown, after levels and suppressions: a finding that is
silenced hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Severity, SourceFile, Span

#: Findings of reading after which an entry, or a whole section, is missing.
_LOSSES = frozenset(
    {"SHD002", "SHD003", "SHD004", "SHD006", "SHD008", "SHD012"}
    | {"SHD015", "SHD016", "SHD101", "SHD208", "SHD211"}
)
_RULES = frozenset({"rules", "drop", "extends"})
_NAMES = frozenset({"params", "overrides", "derive", "scan", "extends"})
_ARRAYS = frozenset({"arrays", "caches", "manifest"})
_MACHINES = frozenset({"targets", "mesh", "hardware"})
_AXES = frozenset({"axes"})

#: Findings about what nothing does, and the sections that might have done it.
_EXPLAINED_BY: dict[str, frozenset[str]] = {
    "SHD203": _RULES,
    "SHD205": _NAMES,
    "SHD206": frozenset({"scan"}),
    "SHD204": _ARRAYS,
    "SHD241": _ARRAYS,
    "SHD217": _NAMES | _ARRAYS,
    "SHD102": _MACHINES,
    "SHD104": _MACHINES,
    "SHD106": _MACHINES | {"extends"},
    "SHD201": _MACHINES,
    "SHD202": _RULES | _NAMES | _ARRAYS | _AXES,
    "SHD230": (_NAMES | _ARRAYS | _AXES) - _RULES,
    "SHD211": _AXES,
    "SHD305": _AXES,
    "SHD240": _ARRAYS | {"step", "activations"},
    "SHD243": frozenset({"step"}),
    "SHD110": _RULES | _NAMES | _ARRAYS,
    "SHD112": _RULES | _NAMES,
    "SHD225": _RULES | _NAMES,
    **dict.fromkeys(("SHD401", "SHD402", "SHD403", "SHD404", "SHD405", "SHD407"), _RULES | _NAMES),
}

#: Of these, an entry that was lost explains those whose subject it names; a lost section, all.
_NAMED = frozenset({"SHD201", "SHD202", "SHD203", "SHD211", "SHD230", "SHD240"})
_OF_ONE_TARGET = frozenset({"SHD102", "SHD104"})

#: Findings, and those that say the same of the same place and more.
_SAID_AT_PLACE: dict[str, frozenset[str]] = {
    "SHD111": frozenset({"SHD506"}),
    "SHD203": frozenset({"SHD202"}),
    "SHD217": frozenset({"SHD220", "SHD226", "SHD229"}),
    "SHD223": frozenset({"SHD214", "SHD217"}),
    "SHD503": frozenset({"SHD513"}),
    "SHD507": frozenset({"SHD513"}),
}
#: Findings, and the errors that make them needless on a target.
_SAID_OF_TARGET: dict[str, frozenset[str]] = {"SHD405": frozenset({"SHD301"})}
#: Findings, and those that say the same of the same arrays and more; each behind those it names.
_WHY_WHOLE = frozenset(
    {
        *("SHD201", "SHD202", "SHD203", "SHD204", "SHD205", "SHD206"),
        *("SHD232", "SHD241", "SHD242"),
        *("SHD301", "SHD312", "SHD313"),
    }
)
_SAID_OF_ARRAYS: dict[str, frozenset[str]] = {
    "SHD401": _WHY_WHOLE,
    "SHD403": frozenset({"SHD205", "SHD206"}),
    "SHD404": _WHY_WHOLE | {"SHD203", "SHD205", "SHD401", "SHD410"},
}
_ORDER = {code: at for at, code in enumerate([*_SAID_AT_PLACE, *_SAID_OF_TARGET, *_SAID_OF_ARRAYS])}

_SAYERS_AT_PLACE = frozenset().union(*_SAID_AT_PLACE.values())
_SAYERS_OF_TARGET = frozenset().union(*_SAID_OF_TARGET.values())
_SAYERS_OF_ARRAYS = frozenset().union(*_SAID_OF_ARRAYS.values())

#: Findings that say that there is nothing to say.
_ALONE = frozenset({"SHD020"})

_WORD = re.compile(r"\w[\w-]*(?:\.[\w-]+)*")

_LOUDNESS = {Severity.ALLOW: 0, Severity.WARNING: 1, Severity.ERROR: 2}


#: A source, by its identity, and the number of a line in it.
_Line = tuple[SourceFile, int]


class _Lost(NamedTuple):
    """What faults of reading took away from one section.

    Attributes:
      places: where the faults are.
      whole: where those are that took all of the section.
      by_line: the faults by their lines.
      by_word: the lines by the words on them.
    """

    places: list[Span]
    whole: list[Span]
    by_line: dict[_Line, list[Span]]
    by_word: dict[str, list[_Line]]


_NOTHING = _Lost([], [], {}, {})


def without_follow_ons(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics without those that others of them explain or say better.

    Args:
      diagnostics: what is to be shown, as loud as it is to be.
    """
    found = tuple(diagnostics)
    lost = _lost(found)
    kept = tuple(each for each in found if not _is_explained(each, lost)) if lost else found
    shown = [each for each in kept if each.code.id not in _ORDER]
    said = _Said({}, {}, {}, {})
    _take_in(shown, said)
    rest = (each for each in kept if each.code.id in _ORDER)
    for each in sorted(rest, key=lambda each: _ORDER[each.code.id]):
        if not _is_said(each, said):
            shown.append(each)
            _take_in((each,), said)
    return tuple(each for each in shown if each.code.id not in _ALONE or len(shown) == 1)


def _lost(diagnostics: Sequence[Diagnostic]) -> dict[str, _Lost]:
    """Return what is missing, by section."""
    lost: dict[str, _Lost] = {}
    for each in diagnostics:
        label, section = each.primary, each.section
        if each.code.id not in _LOSSES or not each.is_error or section is None or label is None:
            continue
        here = lost.setdefault(section, _Lost([], [], {}, {}))
        here.places.append(label.span)
        if each.subject == section:
            here.whole.append(label.span)
        line = _line(label.span)
        if line not in here.by_line:
            for word in dict.fromkeys(_words(label.span)):
                here.by_word.setdefault(word, []).append(line)
        here.by_line.setdefault(line, []).append(label.span)
    return lost


def _is_explained(diagnostic: Diagnostic, lost: Mapping[str, _Lost]) -> bool:
    code, label = diagnostic.code.id, diagnostic.primary
    sections = _EXPLAINED_BY.get(code)
    if sections is None or label is None:
        return False
    if code == "SHD230" and _line(label.span) in lost.get("rules", _NOTHING).by_line:
        return True
    gone = [lost[section] for section in sections if section in lost]
    if code in _NAMED:
        faults = chain(_naming(diagnostic.subject or "", gone), *(each.whole for each in gone))
    else:
        faults = chain(*(each.places for each in gone))
    others = (span for span in faults if span != label.span)
    if code in _OF_ONE_TARGET:
        return any(_is_within_one_entry(label.span, span) for span in others)
    return any(True for _ in others)


def _naming(word: str, gone: Iterable[_Lost]) -> Iterator[Span]:
    """Yield the faults on the lines that hold a word."""
    for each in gone:
        for line in each.by_word.get(word, ()):
            yield from each.by_line[line]


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

    at_place: dict[tuple[_Line, int, int], _Words]
    of_array: dict[str, list[_Words]]
    of_arrays: dict[tuple[str, ...], _Words]
    of_target: _Words


def _take_in(shown: Iterable[Diagnostic], said: _Said) -> None:
    for each in shown:
        word = _Word(each.code.id, each.severity, each.target)
        if word.code in _SAYERS_AT_PLACE:
            for label in each.labels:
                said.at_place.setdefault(_place(label.span), {}).setdefault(word)
        if word.code in _SAYERS_OF_ARRAYS:
            _words_about(each.arrays, said).setdefault(word)
        if word.code in _SAYERS_OF_TARGET:
            said.of_target.setdefault(word)


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
    code, label = diagnostic.code.id, diagnostic.primary
    if label is not None and code in _SAID_AT_PLACE:
        others = said.at_place.get(_place(label.span), ())
        if _louder(diagnostic, _SAID_AT_PLACE[code], others):
            return True
    if code in _SAID_OF_TARGET:
        louder = _louder(diagnostic, _SAID_OF_TARGET[code], said.of_target)
        return any(word.severity is Severity.ERROR for word in louder)
    if diagnostic.arrays and code in _SAID_OF_ARRAYS:
        return all(
            _louder(diagnostic, _SAID_OF_ARRAYS[code], chain(*said.of_array.get(path, ())))
            for path in diagnostic.arrays
        )
    return False


def _louder(diagnostic: Diagnostic, codes: frozenset[str], said: Iterable[_Word]) -> list[_Word]:
    """Return those with one of `codes` that hold on its target and are at least as loud."""
    least = _LOUDNESS[diagnostic.severity]
    return [
        each
        for each in said
        if each.code in codes
        and _LOUDNESS[each.severity] >= least
        and each.target in (None, diagnostic.target)
    ]


def _line(span: Span) -> _Line:
    return span.source, span.line


def _place(span: Span) -> tuple[_Line, int, int]:
    return _line(span), span.start, span.end


def _is_within_one_entry(one: Span, other: Span) -> bool:
    """Say whether two places are on one line, or in one block that starts at either of them."""
    if one.source != other.source:
        return False
    first, last = sorted((one, other), key=lambda span: span.start)
    lines = [one.source.line_text(line) for line in range(first.line, last.line + 1)]
    depth = _indent(lines[0])
    return all(_indent(line) > depth for line in lines[1:] if line.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))


def _words(span: Span) -> Iterator[str]:
    """Yield the names on the line of a fault; of a name with dots, what stands before each, too."""
    for found in _WORD.finditer(span.source.line_text(span.line)):
        parts = found[0].split(".")
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
