"""Edits of a subject's text, and where they stand afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardspec.diagnostics import Excerpt
from shardspec.language.reading import Route
from tests.mutations.subjects import Subject


class Change(NamedTuple):
    """Text in place of `[start, end)` of the subject's text."""

    start: int
    end: int
    text: str


class Mistake(NamedTuple):
    """One mistake: what it is in words, and as changes in order of place."""

    what: str
    changes: tuple[Change, ...]

    @property
    def is_removal(self) -> bool:
        """Say whether what is wrong stands nowhere any more."""
        return all(not change.text.strip() for change in self.changes)


_WORD = re.compile(r"[A-Za-z_]\w*(?:[-.]\w+)*")


def words(excerpt: Excerpt) -> Iterator[Excerpt]:
    """Yield the names in a value, where its characters have a place in the source."""
    if excerpt.start is not None:
        for found in _WORD.finditer(excerpt.text):
            yield excerpt.part(found.start(), found.end())


def parts(excerpt: Excerpt, pattern: str) -> Iterator[Excerpt]:
    """Yield what a regex finds in a value: its first group, where it has one."""
    if excerpt.start is not None:
        for found in re.finditer(pattern, excerpt.text):
            group = 1 if found.re.groups else 0
            yield excerpt.part(found.start(group), found.end(group))


def replaced(what: str, part: Excerpt, text: str) -> Mistake:
    """Return the mistake of `text` where a part stands."""
    assert part.start is not None
    return Mistake(what, (Change(part.start, part.start + len(part.text), text),))


def exchanged(what: str, one: Excerpt, other: Excerpt) -> Mistake:
    """Return the mistake of two parts in each other's place."""
    assert one.start is not None
    assert other.start is not None
    one, other = sorted((one, other), key=lambda part: part.start or 0)
    first = Change(one.start or 0, (one.start or 0) + len(one.text), other.text)
    second = Change(other.start or 0, (other.start or 0) + len(other.text), one.text)
    return Mistake(what, (first, second))


def without_lines(what: str, subject: Subject, start: int, end: int) -> Mistake:
    """Return the mistake of the lines of `[start, end)` gone."""
    text = subject.text
    start = text.rfind("\n", 0, start) + 1
    end = text.find("\n", end)
    return Mistake(what, (Change(start, len(text) if end < 0 else end + 1, ""),))


def typos(word: str) -> tuple[str, ...]:
    """Return misspellings of a word: two letters turned, one lost, one twice, one too many.

    >>> typos("embed")
    ('emebd', 'emed', 'embbed', 'embeds', 'mbed')
    """
    middle = len(word) // 2
    if len(word) < 3:
        return (word + "s", word * 2)
    turned = word[:middle] + word[middle + 1 : middle + 2] + word[middle] + word[middle + 2 :]
    made = (
        turned,
        word[:middle] + word[middle + 1 :],
        word[: middle + 1] + word[middle:],
        word + "s",
        word[1:],
    )
    return tuple(
        dict.fromkeys(typo for typo in made if typo != word and re.match("[A-Za-z_]", typo))
    )


def apply(text: str, changes: Iterable[Change]) -> tuple[str, frozenset[int]]:
    """Return the changed text, and the numbers of the lines that the changes stand on."""
    original, lines = text, set[int]()
    for change in sorted(changes, reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    shift = 0
    for change in sorted(changes):
        start = change.start + shift
        shift += len(change.text) - (change.end - change.start)
        if _is_whole_lines(original, change):
            continue
        last = start + len(change.text.rstrip("\n"))
        lines.update(range(text.count("\n", 0, start) + 1, text.count("\n", 0, last) + 2))
    return text, frozenset(lines)


def _is_whole_lines(text: str, change: Change) -> bool:
    """Say whether a change removes lines, and nothing of any other."""
    starts = change.start == 0 or text[change.start - 1] == "\n"
    return not change.text and starts and text[: change.end].endswith("\n")


# where things stand


def entries(subject: Subject, *sections: str) -> list[tuple[Route, Excerpt, Excerpt]]:
    """Return the entries of sections that map keys to text: route, key, value."""
    source_map = subject.reading.source_map
    return [
        (route, key, source_map.values[route])
        for route, key in source_map.keys.items()
        if len(route) == 2 and route[0] in sections and route in source_map.values
    ]


def rules(subject: Subject) -> list[Excerpt]:
    """Return the text of each rule of the subject itself."""
    source_map = subject.reading.source_map
    found = []
    for index in range(len(_section(subject, "rules"))):
        for route in (("rules", index, "rule"), ("rules", index)):
            excerpt = source_map.values.get(route)
            if excerpt is not None and excerpt.start is not None and excerpt.text:
                found.append(excerpt)
                break
    return found


def mesh_entries(subject: Subject) -> list[tuple[str, str, Excerpt, Excerpt]]:
    """Return target, mesh axis, its key and its size for every target."""
    source_map = subject.reading.source_map
    return [
        (str(route[1]), str(route[3]), key, source_map.values[route])
        for route, key in source_map.keys.items()
        if len(route) == 4 and route[0] == "targets" and route[2] == "mesh"
    ]


def values(subject: Subject, *route: str | None) -> list[tuple[Route, Excerpt]]:
    """Return the values whose route fits: None stands for any step."""
    return [
        (at, excerpt)
        for at, excerpt in subject.reading.source_map.values.items()
        if len(at) == len(route)
        and all(want is None or want == have for want, have in zip(route, at, strict=True))
        and excerpt.start is not None
    ]


def patterns(subject: Subject) -> list[Excerpt]:
    """Return every path pattern of the subject, of whatever section."""
    found = [key for _, key, _ in entries(subject, "params", "scan")]
    for last in ("match", "path"):
        found += [excerpt for _, excerpt in values(subject, "overrides", None, last)]
    return [excerpt for excerpt in found if excerpt.start is not None]


def _section(subject: Subject, name: str) -> list[object]:
    data = subject.reading.data
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def removed_entry(what: str, subject: Subject, route: Route) -> Mistake:
    """Return the mistake of one entry gone; the section too where it was the only one."""
    source_map = subject.reading.source_map
    data = subject.reading.data
    alone = isinstance(data, dict) and len(data[str(route[0])] or ()) == 1  # type: ignore[arg-type]
    span = source_map.entry(route[:1] if alone else route)
    return without_lines(what, subject, span.start, span.end)
