"""One finding for a family of targets that differ in their count of slices alone.

`hardware: "{1..8} * tpu v5e 4x4"` is eight targets, and what is wrong with the mesh they share is
wrong on most of them, each time with other numbers. Findings of one code at one place, whose
messages differ in numbers and the names of such targets only, are told as one:

```
`data` = 4 crosses slices on target `pod[2]`
`data` = 6 crosses slices on target `pod[3]`    ->    `data` = {4, 6} crosses slices on targets ...
```

Labels, notes and help are those of the first count, and a note says so where others differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import grouped, named, natural

#: Targets of a family as `named` lists them; or a number, with its unit.
_TOKEN = re.compile(
    r"targets? (?P<names>`[^`\s]+\[\d{1,5}\]`(?:(?:, | to )`[^`\s]+\[\d{1,5}\]`)*)(?! and \d)"
    r"|(?P<number>(?<![\w.])\d+(?:\.\d+)?(?: (?:B|[KMGTPE]iB|%))?(?![\w.]\d))"
)
_SHOWN = 4


class _Told(NamedTuple):
    """A message cut at its numbers: the text between them, and the targets it names."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    targets: tuple[str, ...]


def as_families(diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield findings, those of several counts of slices as one, where the first of them stood."""
    found = tuple(diagnostics)
    told = {each: _told(each.message) for each in found if "]`" in each.message}

    def key(each: Diagnostic) -> object:
        here = told.get(each)
        if here is None or not here.targets:
            return each
        place = each.primary.span if each.primary else None
        return each.code, each.level, place, each.subject, each.arrays, here.texts

    for members in grouped(found, key).values():
        names = [name for each in members if each in told for name in told[each].targets]
        if len(members) == 1 or len(set(names)) < len(names):
            yield from members
        else:
            yield _as_one(sorted(members, key=lambda each: natural(told[each].targets[0])), told)


def _told(message: str) -> _Told:
    tokens = list(_TOKEN.finditer(message))
    ends = [0, *(token.end() for token in tokens)]
    starts = [*(token.start() for token in tokens), len(message)]
    texts = tuple(message[at:to] for at, to in zip(ends, starts, strict=True))
    lists = [token["names"] for token in tokens if token["names"]]
    targets = tuple(_targets(lists[0])) if len(lists) == 1 else ()
    return _Told(texts, tuple(token["number"] or "" for token in tokens), targets)


def _targets(names: str) -> Iterator[str]:
    """Yield each of the targets that `named` has listed.

    >>> list(_targets("`a[1]` to `a[3]`, `a[5]`"))
    ['a[1]', 'a[2]', 'a[3]', 'a[5]']
    """
    for run in names.split(", "):
        first, _, last = (each.strip("`]") for each in run.partition(" to "))
        stem, _, start = first.rpartition("[")
        end = last.rpartition("[")[2] or start
        yield from (f"{stem}[{count}]" for count in range(int(start), int(end) + 1))


def _as_one(members: Sequence[Diagnostic], told: Mapping[Diagnostic, _Told]) -> Diagnostic:
    """Return one finding for all of them, which are in order of the counts."""
    first = members[0]
    texts = told[first].texts
    names = [name for each in members for name in told[each].targets]
    columns = zip(*(told[each].numbers for each in members), strict=True)
    tokens = [_set(column) if any(column) else named("target", names) for column in columns]
    message = "".join(text + token for text, token in zip(texts, (*tokens, ""), strict=True))
    notes = first.notes
    if any(
        (each.labels, each.notes, each.help) != (first.labels, notes, first.help)
        for each in members
    ):
        notes = (*notes, f"places, notes and help have the numbers of {named('target', names[:1])}")
    sizes = [each.bytes for each in members if each.bytes is not None]
    return replace(first, message=message, notes=notes, target=None, bytes=max(sizes, default=None))


def _set(numbers: Iterable[str]) -> str:
    """Return what stands for one number of a message: `6`, `{4, 6, 8}`, `{4, 6, ..., 16}`."""
    several = list(dict.fromkeys(numbers))
    if len(several) > _SHOWN:
        several = [*several[:2], "...", several[-1]]
    return several[0] if len(several) == 1 else f"{{{', '.join(several)}}}"
