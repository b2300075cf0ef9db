"""Mistakes in sizes and units."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shardspec.diagnostics import Excerpt
from tests.mutations.subjects import Subject
from tests.mutations.text import Change, Mistake, entries, parts, replaced, values


def _axis_sizes(subject: Subject) -> Iterator[tuple[str, Excerpt]]:
    for route, value in (*values(subject, "axes", None), *values(subject, "axes", None, "size")):
        yield str(route[1]), value


def axis_size_off_by_one(subject: Subject) -> Iterator[Mistake]:
    """Size + 1 under `axes`."""
    for axis, value in _axis_sizes(subject):
        for number in parts(value, r"^\d+$"):
            size = str(int(number.text) + 1)
            yield replaced(f"`{axis}: {size}`", number, size)


def axis_size_digit_lost(subject: Subject) -> Iterator[Mistake]:
    """A digit lost in a size under `axes`."""
    for axis, value in _axis_sizes(subject):
        for number in parts(value, r"^\d{2,}$"):
            yield replaced(f"`{axis}: {number.text[:-1]}`", number, number.text[:-1])


def axis_product_wrong(subject: Subject) -> Iterator[Mistake]:
    """A factor lost in a size under `axes`."""
    for axis, value in _axis_sizes(subject):
        for factor in parts(value, r"\s*\*\s*\w+"):
            yield replaced(f"`{axis}` without `{factor.text}`", factor, "")


def array_size_off_by_one(subject: Subject) -> Iterator[Mistake]:
    """Size + 1 in an array's type."""
    for _, key, value in entries(subject, "arrays"):
        for number in parts(value, r"(?<=[\[ =,])\d+"):
            size = str(int(number.text) + 1)
            yield replaced(f"`{key.text}`: {size} for {number.text}", number, size)


def array_sizes_swapped(subject: Subject) -> Iterator[Mistake]:
    """Two sizes swapped in an array's type."""
    for _, key, value in entries(subject, "arrays"):
        found = list(parts(value, r"(?<=[\[ ])\d+"))
        for one, other in pairwise(found):
            if one.text != other.text and one.start and other.start:
                first = Change(one.start, one.start + len(one.text), other.text)
                second = Change(other.start, other.start + len(other.text), one.text)
                yield Mistake(f"`{key.text}`: {one.text} and {other.text}", (first, second))


def unit_removed(subject: Subject) -> Iterator[Mistake]:
    """A unit removed."""
    for route, value in values(subject, "axes", None, "unit"):
        start, end = subject.reading.source_map.key(route).span.start, value.span.end
        text = subject.text
        if subject.name.endswith(".shard"):
            start = text.rfind("unit", 0, value.span.start)
        elif text[:start].endswith(", "):
            start -= 2
        else:
            start, end = text.rfind("\n", 0, start), text.find("\n", end)
        yield Mistake(f"no unit of `{route[1]}`", (Change(start, end, ""),))


def unit_wrong(subject: Subject) -> Iterator[Mistake]:
    """Another unit."""
    for route, value in values(subject, "axes", None, "unit"):
        if not value.text.isdecimal():
            continue  # a unit may be the size of an axis
        for other in (int(value.text) * 2, int(value.text) * 16, int(value.text) + 1):
            yield replaced(f"`{route[1]}`: unit {other}", value, str(other))


MUTATORS = (
    axis_size_off_by_one,
    axis_size_digit_lost,
    axis_product_wrong,
    array_size_off_by_one,
    array_sizes_swapped,
    unit_removed,
    unit_wrong,
)
