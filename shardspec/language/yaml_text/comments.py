"""Comments -> the entries they belong to, since libyaml drops them.

A comment on a line of its own belongs to the entry that starts next, or, where it is indented
deeper than that one, to the end of the block above it; one behind an entry, to that entry.
Inside `[...]` and `{...}` all belong to the entry that holds the brackets. Every comment goes
somewhere: what follows the last entry is kept under the route `()`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardspec.diagnostics import Excerpt
from shardspec.language.reading import Comments, Data, Route, SourceMap

# The line breaks of YAML 1.1; libyaml ends a comment at each of them.
_COMMENT = re.compile("#[^\r\n\x85\u2028\u2029]*")


def comment_text(raw: str) -> str:
    """Return a comment without its `#` and the space behind it; a bare `#` gives one space.

    An empty text would be an empty line.

    >>> comment_text("# the data axis "), comment_text("#"), comment_text("#   indented")
    ('the data axis', ' ', '  indented')
    """
    return raw.removeprefix("#").removeprefix(" ").rstrip() or " "


def comment_line(text: str) -> str:
    """Return the line that `comment_text` reads as `text`; empty for an empty line.

    >>> comment_line("the data axis"), comment_line(" "), comment_line("")
    ('# the data axis', '#', '')
    """
    return f"# {text}".rstrip() if text else ""


def attach_comments(source_map: SourceMap) -> Mapping[Route, Comments]:
    """Return the comments of a YAML text by the route of the entry that each belongs to."""
    if "#" not in source_map.source.text:
        return {}
    spans = list(comment_spans(source_map))
    return _Attacher(_Entries.of(source_map)).attach(spans) if spans else {}


def comment_spans(source_map: SourceMap) -> Iterator[tuple[int, int]]:
    """Yield where comments are: each `#` that no key and no value holds."""
    text = source_map.source.text
    scalars = sorted(_scalar_spans(source_map, text))
    starts = [start for start, _ in scalars]
    position = text.find("#")
    while position >= 0:
        index = bisect_right(starts, position) - 1
        end = scalars[index][1] if index >= 0 else 0
        if end <= position:
            found = _COMMENT.match(text, position)
            end = found.end() if found else position + 1
            yield position, end
        position = text.find("#", end)


def _scalar_spans(source_map: SourceMap, text: str) -> Iterator[tuple[int, int]]:
    for excerpts in (source_map.keys, source_map.values):
        for excerpt in excerpts.values():
            start, end = excerpt.span.start, excerpt.span.end
            if excerpt.text and text[start] in "|>":
                # A comment may stand behind the sign that begins a block of text.
                line_end = text.find("\n", start, end)
                start = end if line_end < 0 else line_end
            if excerpt.text:
                yield start, end


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries that a comment can belong to, in the order of the text.

    Attributes:
      brackets: the outermost `[...]` and `{...}`, as (start, end).
      values: where the value of each entry starts.
      places: the index of each route.
    """

    text: str
    starts: tuple[int, ...]
    routes: tuple[Route, ...]
    brackets: tuple[tuple[int, int], ...]
    values: Mapping[Route, Excerpt]
    places: Mapping[Route, int]

    @classmethod
    def of(cls, source_map: SourceMap) -> _Entries:
        """Return the entries of a text; those inside brackets or behind an alias are none."""
        text, values = source_map.source.text, source_map.values
        heads = ((e.span.start, len(route), route) for route, e in _heads(source_map))
        found = sorted(heads, key=lambda entry: entry[:2])
        untexted = ((route, e.span.start) for route, e in values.items() if not e.text)
        closed = {route for route, at in untexted if text[at : at + 1] in ("[", "{", "*")}
        inner: set[Route] = set()
        kept: list[tuple[int, Route]] = []
        for start, _, route in found:
            if route[:-1] in closed or route[:-1] in inner:
                inner.add(route)
            else:
                kept.append((start, route))
        spans = (values[route].span for route in closed - inner)
        outer = sorted((span.start, span.end) for span in spans)
        starts = tuple(start for start, _ in kept)
        routes = tuple(route for _, route in kept)
        places = {route: index for index, route in enumerate(routes)}
        return cls(text, starts, routes, tuple(outer), values, places)

    def last_before(self, position: int) -> int:
        """Return the index of the last entry that starts before `position`, or -1."""
        return bisect_right(self.starts, position) - 1

    def owner(self, position: int) -> tuple[int, bool]:
        """Return the entry of a comment, and whether the comment stands above it.

        The index is len(routes) where no entry follows.
        """
        line_start = self.text.rfind("\n", 0, position) + 1
        last = self.last_before(position)
        if last >= 0 and self._is_in_brackets(position):
            return last, False
        if self.text[line_start:position].strip(" \t\r-?"):
            return max(last, 0), False
        if last >= 0 and self._awaits_value(last, position):
            return last, False
        index = last + 1
        while index < len(self.starts) and self.starts[index] <= position:
            index += 1
        return index, True

    def closed_block(self, position: int, index: int) -> Route | None:
        """Return the block that a comment above entry `index` ends; None where it ends none."""
        column, last = self._column(position), self.last_before(position)
        following = self.route_at(index)
        if last < 0 or column <= (self._indent(following) if following else 0):
            return None
        route = self.routes[last]
        while route and self._indent(route) > column:
            route = route[:-1]
        block = route[:-1]
        return block if block and following[: len(block)] != block else None

    def route_at(self, index: int) -> Route:
        """Return the route of an entry, `()` behind the last."""
        return self.routes[index] if index < len(self.routes) else ()

    def _indent(self, route: Route) -> int:
        """Return the column of an entry; that of its `-` or `?` where it has one."""
        start = self.starts[self.places[route]]
        column = self._column(start)
        before = self.text[start - column : start].rstrip()
        mark = "-" if isinstance(route[-1], int) else "?"
        return len(before) - 1 if before.endswith(mark) else column

    def _column(self, position: int) -> int:
        return position - (self.text.rfind("\n", 0, position) + 1)

    def _is_in_brackets(self, position: int) -> bool:
        index = bisect_right(self.brackets, (position, len(self.text))) - 1
        return index >= 0 and self.brackets[index][0] < position < self.brackets[index][1]

    def _awaits_value(self, index: int, position: int) -> bool:
        """Return whether the comment stands between an entry's key and its single value."""
        route = self.routes[index]
        value = self.values.get(route)
        if value is None or value.span.start < position:
            return False
        return self.route_at(index + 1)[: len(route)] != route


def _heads(source_map: SourceMap) -> Iterable[tuple[Route, Excerpt]]:
    """Yield each entry's route with its key, or for a list item with its value."""
    yield from source_map.keys.items()
    for route, excerpt in source_map.values.items():
        if route and isinstance(route[-1], int):
            yield route, excerpt


@dataclass(slots=True)
class Gathered:
    """Comments by route while they are handed out, as `Comments` has them."""

    before: dict[Route, list[str]] = field(default_factory=dict)
    trailing: dict[Route, str] = field(default_factory=dict)
    after: dict[Route, list[str]] = field(default_factory=dict)

    def by_route(self) -> dict[Route, Comments]:
        """Return the comments of each route."""
        found = {}
        for route in dict.fromkeys((*self.before, *self.trailing, *self.after)):
            before, after = self.before.get(route, ()), self.after.get(route, ())
            found[route] = Comments(tuple(before), self.trailing.get(route), tuple(after))
        return found


class _Attacher(Gathered):
    """Hands out comments in the order of the text."""

    def __init__(self, entries: _Entries) -> None:
        super().__init__()
        self.entries = entries

    def attach(self, spans: list[tuple[int, int]]) -> Mapping[Route, Comments]:
        """Return the comments at `spans` by route."""
        for number, (start, end) in enumerate(spans):
            index, is_above = self.entries.owner(start)
            route = self.entries.route_at(index)
            raw = comment_text(self.entries.text[start:end])
            if self._is_trailing(route, start) and not is_above:
                self.trailing[route] = raw
                continue
            block = self.entries.closed_block(start, index) if is_above else None
            if block is not None:
                lines = self.after.setdefault(block, [])
                lines += ["", raw] if self._is_gap_above(start) else [raw]
                continue
            lines = self.before.setdefault(route, [])
            if is_above and not lines and self._starts_group(start, index):
                lines.append("")
            lines.append(raw)
            following = spans[number + 1][0] if number + 1 < len(spans) else None
            if is_above and self._is_gap(end, index, following):
                lines.append("")
        return self.by_route()

    def _is_trailing(self, route: Route, start: int) -> bool:
        text = self.entries.text
        line_start = text.rfind("\n", 0, start) + 1
        return bool(route) and route not in self.trailing and bool(text[line_start:start].strip())

    def _starts_group(self, start: int, index: int) -> bool:
        """Return whether an empty line sets a comment off from an entry above it."""
        route = self.entries.route_at(index)
        is_first = len(route) < 2 or self.entries.routes[index - 1] == route[:-1]
        return not is_first and self._is_gap_above(start)

    def _is_gap_above(self, start: int) -> bool:
        """Return whether the line above is empty."""
        text = self.entries.text
        line_start = text.rfind("\n", 0, start) + 1
        above = text.rfind("\n", 0, max(line_start - 1, 0)) + 1
        return not text[above:line_start].strip()

    def _is_gap(self, end: int, index: int, following: int | None) -> bool:
        """Return whether an empty line stands below an own-line comment, before what it is for."""
        starts = (*self.entries.starts[index : index + 1], following)
        stops = [start for start in starts if start is not None]
        gap = self.entries.text[end : min(stops, default=end)]
        return gap.count("\n") >= 2 and not gap.strip(" \t\r\n-?")


class Placed(NamedTuple):
    """The comments at the routes of the data, each where a reader would find it again.

    Attributes:
      commented_below: the routes of entries in which, or at whose end, something has a comment.
    """

    comments: Mapping[Route, Comments]
    commented_below: frozenset[Route]

    def at(self, route: Route) -> Comments:
        """Return the comments of an entry."""
        return self.comments.get(route, Comments())


def place_comments(data: Mapping[str, Data], comments: Mapping[Route, Comments]) -> Placed:
    """Return the comments moved to entries of `data`, none lost.

    A list item and the first entry in it begin on one line: what stands above either stands
    above the item, what stands behind either stands behind the first entry.
    """
    found = Gathered()
    for route, comment in comments.items():
        place = _existing(data, route)
        head, last = _line_of(data, place)
        above = found.before.setdefault(head, [])
        above += comment.before
        if place == route and route and _is_block(data, route):
            found.after[route] = _without_needless(comment.after, may_lead=True, may_end=False)
        else:
            above += comment.after
        if comment.trailing is None:
            continue
        if place == () or last in found.trailing:
            above.append(comment.trailing)
        else:
            found.trailing[last] = comment.trailing
    tidy = {route: _tidy(lines, data, route) for route, lines in found.before.items()}
    found.before = {route: lines for route, lines in tidy.items() if any(lines)}
    found.after = {route: lines for route, lines in found.after.items() if any(lines)}
    placed = found.by_route()
    return Placed(placed, frozenset((*_above(placed), *found.after)))


def _existing(data: Any, route: Route) -> Route:
    """Return the longest beginning of `route` that leads somewhere in `data`."""
    step: Any
    for length, step in enumerate(route):
        if not isinstance(data, (dict, list)):
            return route[:length]
        if step not in (data if isinstance(data, dict) else range(len(data))):
            return route[:length]
        data = data[step]
    return route


def _line_of(data: Any, route: Route) -> tuple[Route, Route]:
    """Return the outermost and the innermost entry that begin on the line of an entry."""
    values: list[Any] = [data]
    for step in route:
        values.append(values[-1][step])
    head = route
    while head[-2:-1] and isinstance(head[-2], int) and _is_first(values[len(head) - 1], head[-1]):
        head = head[:-1]
    last, value = route, values[-1]
    while last and isinstance(last[-1], int) and isinstance(value, (dict, list)) and value:
        first: Any = next(iter(value)) if isinstance(value, dict) else 0
        last, value = (*last, first), value[first]
    return head, last


def _is_first(value: Data, step: str | int) -> bool:
    return step == (next(iter(value)) if isinstance(value, dict) else 0)


def _tidy(lines: Iterable[str], data: Any, route: Route) -> list[str]:
    """Return lines without needless empty ones.

    One above the first comment sets off a group, so it needs an entry above it; sections are
    apart anyway. At the end of the file there is nothing to be apart from.
    """
    for step in route[:-1]:
        data = data[step]
    may_lead = len(route) > 1 and not _is_first(data, route[-1])
    return _without_needless(lines, may_lead=may_lead, may_end=route != ())


def _without_needless(lines: Iterable[str], *, may_lead: bool, may_end: bool) -> list[str]:
    """Return lines with one empty one of several, and none where none may stand."""
    kept: list[str] = []
    for line in lines:
        if line or (kept[-1] if kept else may_lead):
            kept.append(line)
    while not may_end and kept and not kept[-1]:
        kept.pop()
    return kept


def _is_block(data: Any, route: Route) -> bool:
    """Say whether what stands at a route of the data holds entries."""
    for step in route:
        data = data[step]
    return isinstance(data, (dict, list)) and bool(data)


def _above(routes: Iterable[Route]) -> Iterable[Route]:
    for route in routes:
        for length in range(len(route)):
            yield route[:length]
