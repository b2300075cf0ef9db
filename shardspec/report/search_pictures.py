"""What a search found, drawn: time against memory, with what no other row beats as a front.

A saved search shows as one that was just made: both are a `SavedSearch`, of the keys of the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from shardspec.analysis.step_memory import MARKS, Basis
from shardspec.diagnostics import Diagnostic, SourceFile, point
from shardspec.diagnostics.codes import BAD_COST
from shardspec.diagnostics.words import binary_bytes, counted, grouped, seconds_text
from shardspec.records import record_of
from shardspec.report.cost_json import Uncounted, Whole, read_saved
from shardspec.report.html import Html, Scale, chart, joined, straight, table, tag
from shardspec.report.page_pieces import with_misfit
from shardspec.report.search_json import search_data
from shardspec.search.ranking import UNKNOWN_ROWS, Found, Point, SearchRow, unbeaten
from shardspec.versions import SEARCH_JSON

#: Rows that are drawn, and that the table shows beside the front, at most.
_MOST_DRAWN, _MOST_ROWS = 1000, 15
_HIGH = 340
#: No time, memory or number of chips is more.
_MOST = 1e24
_AGAIN = "save it anew: `shardspec search SPEC -o FILE`"


class Option(NamedTuple):
    """A row of a search, as `SearchRow` has it."""

    hardware: str
    chips: Whole
    written: dict[str, str]
    changes: dict[str, str]
    step_s: float
    is_tie: bool
    bound: str
    memory_bytes: int
    memory_basis: Basis
    hbm_bytes: int | None
    fits: bool | None
    unknown: tuple[Uncounted, ...]

    @property
    def point(self) -> Point:
        """Return what it takes of time, memory and chips."""
        return self.step_s, self.memory_bytes, self.chips

    @property
    def name(self) -> str:
        """Return `fsdp=64 tensor=2 remat=full`."""
        return " ".join(f"{key}={value}" for key, value in (self.written | self.changes).items())

    @property
    def step_text(self) -> str:
        """Return `~ 1.92 s`."""
        return f"{'at least ' if self.unknown else ''}~ {seconds_text(self.step_s)}"

    @property
    def memory_text(self) -> str:
        """Return `~ 12.3 GiB, DOES NOT FIT`."""
        room = {True: "fits", False: "DOES NOT FIT", None: "unknown whether it fits"}[self.fits]
        return f"{MARKS[self.memory_basis]} {binary_bytes(self.memory_bytes)}, {room}"


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """What a search found on one target, the best first."""

    spec: str
    target: str
    is_complete: bool
    today: Option | None
    rows: tuple[Option, ...] = field(repr=False)

    @property
    def front(self) -> tuple[Option, ...]:
        """Return the rows that no other beats in time, memory and chips; see `pareto`."""
        known = {each.point for each in self.rows if not each.unknown}
        front = unbeaten((each.point for each in self.rows), known)
        return tuple(each for each in self.rows if each.point in front)


def saved_search(found: Found, best: SearchRow | None) -> SavedSearch:
    """Return what a search found, as it would be read from a file."""
    return record_of(SavedSearch, search_data(found, best))


def read_search(source: SourceFile) -> SavedSearch | Diagnostic:
    """Return the search that a file holds, or what is wrong with it.

    Invariants:
      total: any text is either a search that can be drawn, or refused.
    """
    found = read_saved(source, SavedSearch, SEARCH_JSON, _AGAIN)
    if isinstance(found, SavedSearch):
        rows = (*found.rows, *([] if found.today is None else [found.today]))
        sizes = (size for each in rows for size in (*each.point, each.hbm_bytes or 0))
        if any(size > _MOST for size in sizes):
            message = f"`{source.name}` is no saved search: a figure is out of range"
            return point(BAD_COST, message, None, help=_AGAIN)
    return found


def search_picture(found: SavedSearch) -> Html:
    """Return the rows by time and memory, and a table of the best and of the front."""
    drawn, front = found.rows[:_MOST_DRAWN], found.front[:_MOST_DRAWN]
    pieces = [tag("p", f"{found.spec}, target {found.target}. {_HOW}", class_="quiet")]
    if drawn:
        pieces.append(_chart(found, drawn, front))
    if left := len(found.rows) - len(drawn):
        pieces.append(tag("p", f"{counted(left, 'slower row')} not drawn", class_="quiet"))
    if not found.is_complete:
        said = "The search did not look at all candidates: others may be better."
        pieces.append(tag("p", said, class_="quiet"))
    return joined((*pieces, _table(found, front)))


_HOW = (
    "Memory of a device to the right, time of a step up: the best are at the bottom left. Filled"
    " points are the Pareto front: no other row is as good in time, memory and chips, and better in"
    " one. A line joins those of as many chips. The red line is the memory that a device has."
)


def _chart(found: SavedSearch, drawn: Sequence[Option], front: Sequence[Option]) -> Html:
    """Return the rows as points, the front filled and joined, and what a device has room for."""
    today = found.today
    all_ = [*drawn, *front, *([] if today is None else [today])]
    rooms = {each.hbm_bytes for each in all_ if each.hbm_bytes is not None}
    widest = max(each.memory_bytes for each in all_)
    limits = [room for room in sorted(rooms) if room <= 1.5 * widest]
    x = Scale.around([*(float(each.memory_bytes) for each in all_), *map(float, limits)])
    y = Scale.around([each.step_s for each in all_])
    marks = [straight(x, y, (room, y.low), (room, y.high), "roof") for room in limits]
    for chips, rows in grouped(front, lambda each: each.chips).items():
        joint = sorted((float(each.memory_bytes), each.step_s) for each in rows)
        for one, other in pairwise(joint):
            corner = other[0], one[1]  # what is as fast with more memory is in reach
            marks += [straight(x, y, one, corner, "front"), straight(x, y, corner, other, "front")]
        if len({each.chips for each in front}) > 1:
            where = {"x": x.at(joint[-1][0]), "y": y.down(joint[-1][1]), "dx": "8", "dy": "14"}
            marks.append(tag("text", counted(chips, "chip"), **where))
    best = {each.point for each in front}
    marks += (_mark(each, x, y, "beaten") for each in drawn if each.point not in best)
    marks += (_mark(each, x, y, "best") for each in front)
    if today is not None:
        where = {"x": x.at(today.memory_bytes), "y": y.down(today.step_s), "dx": "8", "dy": "-6"}
        marks += [_mark(today, x, y, "today"), tag("text", "today", **where)]
    return chart(marks, (x, y), _HIGH, "options", (binary_bytes, seconds_text))


_SHAPES = {
    "beaten": {"r": "4", "fill": "none", "stroke": "currentColor"},
    "best": {"r": "5", "fill": "#0b5cad", "stroke": "none"},
    "today": {"r": "8", "fill": "none", "stroke": "currentColor", "stroke_width": "2"},
}


def _mark(each: Option, x: Scale, y: Scale, kind: str) -> Html:
    told = f"{each.name}, {each.hardware}: {each.step_text}, {each.memory_text}"
    where = {"cx": x.at(each.memory_bytes), "cy": y.down(each.step_s), **_SHAPES[kind]}
    dashed = "2 2" if each.unknown else None
    return tag("circle", tag("title", told), class_=kind, stroke_dasharray=dashed, **where)


def _table(found: SavedSearch, front: Sequence[Option]) -> Html:
    rows = list(_rows(found, {each.point for each in front}))
    headings = ("rank", "mesh", "machine", "step", "memory", "bound by", "front")
    more = len(found.rows) - len(rows)
    left = [tag("p", f"and {counted(more, 'row')} more", class_="quiet")] if more > 0 else []
    unknown = any(each.unknown for each in found.rows)
    note = [tag("p", f"? {UNKNOWN_ROWS}", class_="quiet")] if unknown else []
    return joined((table(headings, rows, (0,), class_="stack"), *left, *note))


def _rows(found: SavedSearch, front: set[Point]) -> Iterator[tuple[str, ...]]:
    for rank, each in enumerate(found.rows, 1):
        if rank <= _MOST_ROWS or (each.point in front and rank <= _MOST_DRAWN):
            number = "?" if each.unknown else f"{rank}{'=' if each.is_tie and rank > 1 else ''}"
            room = with_misfit(each.memory_text)
            figures = each.name, each.hardware, each.step_text, room, each.bound
            yield number, *figures, "yes" if each.point in front else ""
