"""Comments -> where a printer can put them: every one at an entry that is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardspec.frontend.reading import Comments, Data, Route


@dataclass(frozen=True, slots=True)
class Placed:
    """The comments at the routes of the data, each where a reader would find it again."""

    lines_before: Mapping[Route, tuple[str, ...]]
    lines_trailing: Mapping[Route, str]
    lines_after: Mapping[Route, tuple[str, ...]]
    commented_below: frozenset[Route]

    def before(self, route: Route) -> tuple[str, ...]:
        """Return the own-line comments above an entry; an empty string is an empty line."""
        return self.lines_before.get(route, ())

    def trailing(self, route: Route) -> str | None:
        """Return the comment behind an entry."""
        return self.lines_trailing.get(route)

    def after(self, route: Route) -> tuple[str, ...]:
        """Return the own-line comments at the end of the block of an entry."""
        return self.lines_after.get(route, ())

    def is_commented_below(self, route: Route) -> bool:
        """Say whether anything inside the entry has a comment, or its end."""
        return route in self.commented_below


def place_comments(data: Mapping[str, Data], comments: Mapping[Route, Comments]) -> Placed:
    """Return the comments moved to entries of `data`, none lost.

    A list item and the first entry in it begin on one line: what stands above either stands
    above the item, what stands behind either stands behind the first entry.
    """
    before: dict[Route, list[str]] = {}
    trailing: dict[Route, str] = {}
    after: dict[Route, tuple[str, ...]] = {}
    for route, comment in comments.items():
        place = _existing(data, route)
        head, last = _line_of(data, place)
        before.setdefault(head, []).extend(comment.before)
        if place == route and route and _is_block(data, route):
            after[route] = _without_needless(comment.after, may_lead=True, may_end=False)
        else:
            before[head].extend(comment.after)
        if comment.trailing is None:
            continue
        if place == () or last in trailing:
            before.setdefault(head, []).append(comment.trailing)
        else:
            trailing[last] = comment.trailing
    tidy = {route: _tidy(lines, data, route) for route, lines in before.items()}
    tidy = {route: lines for route, lines in tidy.items() if any(lines)}
    after = {route: lines for route, lines in after.items() if any(lines)}
    return Placed(tidy, trailing, after, frozenset((*_above((*tidy, *trailing, *after)), *after)))


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
    while (
        len(head) > 1 and isinstance(head[-2], int) and _is_first(values[len(head) - 1], head[-1])
    ):
        head = head[:-1]
    last, value = route, values[-1]
    while last and isinstance(last[-1], int) and isinstance(value, (dict, list)) and value:
        first: Any = next(iter(value)) if isinstance(value, dict) else 0
        last, value = (*last, first), value[first]
    return head, last


def _is_first(value: Data, step: str | int) -> bool:
    return step == (next(iter(value)) if isinstance(value, dict) else 0)


def _tidy(lines: Iterable[str], data: Any, route: Route) -> tuple[str, ...]:
    """Return lines without needless empty ones.

    One above the first comment sets off a group, so it needs an entry above it; sections are
    apart anyway. At the end of the file there is nothing to be apart from.
    """
    for step in route[:-1]:
        data = data[step]
    may_lead = len(route) > 1 and not _is_first(data, route[-1])
    return _without_needless(lines, may_lead=may_lead, may_end=route != ())


def _without_needless(lines: Iterable[str], *, may_lead: bool, may_end: bool) -> tuple[str, ...]:
    """Return lines with one empty one of several, and none where none may stand."""
    kept: list[str] = []
    for line in lines:
        if line or (kept[-1] if kept else may_lead):
            kept.append(line)
    while not may_end and kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _is_block(data: Any, route: Route) -> bool:
    """Say whether what stands at a route of the data holds entries."""
    for step in route:
        data = data[step]
    return isinstance(data, (dict, list)) and bool(data)


def _above(routes: Iterable[Route]) -> Iterable[Route]:
    for route in routes:
        for length in range(len(route)):
            yield route[:length]
