"""What a reader gives back: plain data, and beside it where every piece came from.

The data of a YAML file and of a DSL file that say the same are equal. Positions live in the
`SourceMap`, by route: the keys and indices from the root down, which is also what pydantic
calls `loc`.

Which section a fault of reading is in is read off the text itself, which may have no tree to look
in: the section is the last word that stands at the margin above the fault, a key in YAML, a keyword
in the DSL.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span
from shardspec.diagnostics.words import nearest
from shardspec.language.sections import SECTIONS, section_of

T = TypeVar("T")

#: Digits of a number: more are of no array, and Python refuses to read thousands.
DIGITS = 15

#: What stands before a pattern in a key: of arrays that some models have, of a regex.
OPTIONAL, _REGEX = "optional:", "re:"


class Marks(NamedTuple):
    """What stands before the pattern in a key, and where the pattern starts."""

    is_optional: bool
    is_regex: bool
    start: int


def marks_of(key: str) -> Marks:
    """Return what the key of an entry says of its pattern.

    >>> tuple(marks_of("**/wi")), tuple(marks_of("optional:re:x"))
    ((False, False, 0), (True, True, 12))
    """
    start = len(OPTIONAL) if key.startswith(OPTIONAL) else 0
    is_regex = key.startswith(_REGEX, start)
    return Marks(start > 0, is_regex, start + len(_REGEX) * is_regex)


Route = tuple[str | int, ...]
Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Route -> place in the source.

    Attributes:
      keys: excerpt of the key at each route that ends in a key.
      values: excerpt of the value at each route. For a list or mapping its text is "" and
        its span covers the whole.
    """

    source: SourceFile
    keys: Mapping[Route, Excerpt] = field(default_factory=dict, repr=False)
    values: Mapping[Route, Excerpt] = field(default_factory=dict, repr=False)

    def value(self, route: Route) -> Excerpt:
        """Return the value at `route`, or at the nearest route above it that is known."""
        while route not in self.values and route:
            route = route[:-1]
        return self.values.get(route) or Excerpt("", self.source.whole)

    def key(self, route: Route) -> Excerpt:
        """Return the key at `route`; for a list item, the item."""
        return self.keys.get(route) or self.value(route)

    def entry(self, route: Route) -> Span:
        """Return the span from the key to the end of the value."""
        key, value = self.key(route).span, self.value(route).span
        if key.source is not value.source:
            return value
        return Span(key.source, min(key.start, value.start), max(key.end, value.end))


class Comments(NamedTuple):
    """The comments that belong to one entry, each line without its `#`.

    Attributes:
      before: own-line comments above it; an empty string is an empty line between them, below
        them, or above them where they start a group inside a list or mapping.
      trailing: the comment on the entry's first line.
      after: own-line comments at the end of the block that the entry holds, below the last of
        what stands in it.
    """

    before: tuple[str, ...] = ()
    trailing: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One file, read: data, positions and comments.

    Attributes:
      comments: by route of the entry; `()` holds those after the last entry.
      is_whole: False where an error of syntax took lines away.
      phase: the name of the phase that it is, read as a document of its own; empty for a file.
    """

    data: Data
    source_map: SourceMap
    comments: Mapping[Route, Comments] = field(default_factory=dict)
    is_whole: bool = True
    phase: str = ""

    @property
    def source(self) -> SourceFile:
        """Return the file that was read."""
        return self.source_map.source


def is_dsl(source: SourceFile) -> bool:
    """Say whether a file is in the DSL: by its name, or where that says nothing, its text."""
    is_yaml = source.name.endswith((".yaml", ".yml", ".json"))
    return source.name.endswith(".shard") or (not is_yaml and looks_like_dsl(source.text))


def looks_like_dsl(text: str) -> bool:
    """Say whether `text` is the DSL: its first line of substance is no `key:`."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            first = stripped.split("#", 1)[0]
            return ":" not in first and not first.startswith(("-", "{", "%", "["))
    return False


def inner_route(route: tuple[T, ...]) -> tuple[T, ...]:
    """Return a route counted from the phase that it is in, if it is in one.

    >>> inner_route(("phases", "decode", "rules", 0)), inner_route(("phases", "decode"))
    (('rules', 0), ('phases', 'decode'))
    """
    return route[2:] if route[:1] == ("phases",) and len(route) > 2 else route


def number_or_text(text: str) -> int | str:
    """Return a size as YAML would read it: a number where it is one of few digits."""
    plain = text.isascii() and text.isdecimal() and len(text) <= DIGITS
    return int(text) if plain and (text == "0" or text[0] != "0") else text


def parts_text(parts: Mapping[str, Any]) -> str:
    """Return a mesh axis that is several as one expression: `(kv_tp = 4, q_tp = 2)`."""
    return f"({', '.join(f'{name} = {size}' for name, size in parts.items())})"


#: The sections whose loss other findings may follow from.
_FOLLOWED = frozenset(each.name for each in SECTIONS.values() if not each.is_bare)
_SECTION_KEY = re.compile(r"^\"?([A-Za-z]\w*)", re.MULTILINE)


def placed(
    faults: Iterable[Diagnostic],
    emptied: frozenset[str] = frozenset(),
    maps: Iterable[SourceMap] = (),
) -> Iterator[Diagnostic]:
    """Yield faults, each with the section and the entry that it is in.

    Args:
      emptied: sections of which nothing is left, so that any fault there is about all of it.
      maps: those of the files that were read.
    """
    faults = tuple(faults)
    entries = {each.source.name: _entries(each) for each in maps} if faults else {}
    yield from (_with_entry(_in_section(fault, emptied), entries) for fault in faults)


def _in_section(diagnostic: Diagnostic, emptied: frozenset[str]) -> Diagnostic:
    """Return the fault with the section it is in; a fault of the section's key is about all of it.

    A key that is none stands for the section whose name is nearest.
    """
    label = diagnostic.primary
    if label is None or diagnostic.section is not None:
        return diagnostic
    key, section = _key_above(label.span), section_at(label.span)
    if key is None or section is None:
        return diagnostic
    is_head = key.start == label.span.start and section_of(key.text) == key.text
    is_whole = section in emptied or section == "extends" or is_head
    subject = section if is_whole else diagnostic.subject
    return replace(diagnostic, section=section, subject=subject)


def _with_entry(diagnostic: Diagnostic, entries: Mapping[str, list[Span]]) -> Diagnostic:
    """Return the fault with the entry that was dropped because of it; else, all of its line."""
    if diagnostic.primary is None or not diagnostic.code.loses_entry:
        return diagnostic
    span = diagnostic.primary.span
    here = entries.get(span.source.name, ())
    at = bisect_right(here, span.start, key=_start) - 1
    entry = here[at] if at >= 0 and span in here[at] else span.source.line_span(span.line)
    return replace(diagnostic, entry=entry)


def _entries(source_map: SourceMap) -> list[Span]:
    """Return where the entries of all sections stand, in order.

    A mesh is one entry, and each line of a step's program.
    """
    return sorted(map(source_map.entry, filter(_is_entry, source_map.values)), key=_start)


def _start(span: Span) -> int:
    return span.start


def _is_entry(route: Route) -> bool:
    inner = route[2:] if route[:1] == ("phases",) else route
    depths = {"mesh": (1,), "step": (2, 3)}
    return len(inner) in depths.get(str(inner[0]), (2,)) if inner else False


def section_at(span: Span) -> str | None:
    """Return the section that a place is in."""
    key = _key_above(span)
    return None if key is None else _section(key.text)


def _key_above(span: Span) -> Span | None:
    """Return the word at the start of the last line that is not indented, up to the span's own."""
    text = span.source.text
    end = text.find("\n", span.start)
    keys = _keys(text)
    above = bisect_left(keys, (len(text) if end < 0 else end,))
    return Span(span.source, *keys[above - 1]) if above else None


@lru_cache(maxsize=32)
def _keys(text: str) -> tuple[tuple[int, int], ...]:
    """Return start and end of every word at the margin."""
    return tuple(found.span(1) for found in _SECTION_KEY.finditer(text))


@lru_cache(maxsize=256)
def _section(key: str) -> str | None:
    near = nearest(section_of(key), _FOLLOWED, cutoff=0.75)
    return near[0] if near else None
