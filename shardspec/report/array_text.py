"""An array drawn as text: who holds which part, with the borders of hosts and slices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shardspec.ir.grouping import counted
from shardspec.report.array_grid import HOST, SAME, SLICE, Devices, Grid, Table

ROWS_DRAWN = 32
COLUMNS_DRAWN = 16
_WIDTH = 110
TABLES_DRAWN = 4
_MOST_LISTED = 4

_BETWEEN = {SAME: "  ", HOST: " | ", SLICE: " || "}
_RULES = {HOST: "-", SLICE: "="}


def grid_lines(found: Grid) -> Iterator[str]:
    """Yield the lines of one array."""
    yield found.title
    yield from (f"  {line}" for line in key_lines(found))
    shown = found.tables[:TABLES_DRAWN]
    for table in shown:
        yield ""
        if found.outer:
            yield f"  {outer_text(found, table)}"
        yield from (f"  {line}".rstrip() for line in _table_lines(found, table))
    if len(found.tables) > len(shown):
        yield f"  ({counted(len(found.tables) - len(shown), 'more table')})"


def key_lines(found: Grid) -> Iterator[str]:
    """Yield how to read a drawing: the mesh, the dimensions, what a cell and a border say."""
    yield f"mesh {found.mesh} {found.machine}".rstrip()
    sides = ((found.down, "down"), (found.across, "across"))
    words = [f"{side.title()}, {where}" for side, where in sides if side.sharding is not None]
    yield "; ".join(words) or "a scalar"
    yield f"a cell is a part, held by {_copies_text(found)}: numbers in mesh order"
    borders = _borders(found)
    if borders:
        yield "; ".join(borders)


def _copies_text(found: Grid) -> str:
    if found.copies == 1:
        return "one device"
    homes = found.homes
    count = len({homes.slices[each] for each in found.tables[0].cells[0][0]}) if homes else 1
    where = f" of {count} {homes.slice_word}s" if homes and count > 1 else ""
    return f"{found.copies} devices{where}"


def _borders(found: Grid) -> list[str]:
    homes = found.homes
    if homes is None:
        return ["the target has no hardware, so hosts are not known"]
    levels = {level for table in found.tables for level in _levels(found, table)}
    words = []
    if HOST in levels:
        words.append("`|` and `-`: another host")
    if SLICE in levels:
        words.append(f"`||` and `=`: another {homes.slice_word}")
    return words


def _levels(found: Grid, table: Table) -> Iterator[int]:
    yield from found.gaps(table.cells)
    yield from found.gaps(tuple(zip(*table.cells, strict=True)))


def outer_text(found: Grid, table: Table) -> str:
    """Return where a table stands: `dim 0 layers, stage 1, 12:24`."""
    parts = zip(found.outer, table.outer, strict=True)
    return "; ".join(
        f"{side.title()}: {side.place_text(part, found.mesh)}, {side.range_text(part)}"
        for side, part in parts
    )


def _table_lines(found: Grid, table: Table) -> Iterator[str]:
    """Yield the table: two lines of headings, a line for each row, borders between."""
    cells = [row[:COLUMNS_DRAWN] for row in table.cells[:ROWS_DRAWN]]
    lines = _cell_texts(found, cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gaps = ["  " if width else "" for width in widths[:2]]
    gaps += [_BETWEEN[level] for level in found.gaps(cells)]
    fitting = _fitting(widths, gaps)
    cells = [row[:fitting] for row in cells]
    shown = [_joined(line[: fitting + 2], widths, gaps) for line in lines]
    yield from (line for line in shown[:2] if line.strip())
    below = found.gaps(tuple(zip(*cells, strict=True)))
    for line, level in zip(shown[2:], (*below, SAME), strict=True):
        yield line
        if level != SAME:
            indent = sum(widths[:2]) + sum(map(len, gaps[:2]))
            yield " " * indent + _RULES[level] * (max(map(len, shown)) - indent)
    yield from _left_out(table, fitting)


def _cell_texts(found: Grid, cells: Sequence[Sequence[Devices]]) -> list[tuple[str, ...]]:
    """Return two lines of headings and a line for each row, the row's two headings first."""
    columns, mesh, down = range(len(cells[0])), found.mesh, found.down
    return [
        ("", "", *(found.across.place_text(column, mesh) for column in columns)),
        ("", "", *(found.across.range_text(column) for column in columns)),
        *(
            (down.place_text(part, mesh), down.range_text(part), *map(devices_text, row))
            for part, row in enumerate(cells)
        ),
    ]


def _fitting(widths: Sequence[int], gaps: Sequence[str]) -> int:
    """Return how many columns a line has room for, one at least."""
    before = (0, *map(len, gaps))
    ends = itertools.accumulate(map(int.__add__, widths, before))
    return max(sum(end <= _WIDTH for end in ends) - 2, 1)


def _joined(line: Sequence[str], widths: Sequence[int], gaps: Sequence[str]) -> str:
    cells = [text.ljust(width) for text, width in zip(line, widths, strict=False)]
    text = "".join(part for pair in zip(cells[:-1], gaps, strict=False) for part in pair)
    return f"{text}{cells[-1]}"


def _left_out(table: Table, columns_drawn: int) -> Iterator[str]:
    rows, columns = len(table.cells) - ROWS_DRAWN, len(table.cells[0]) - columns_drawn
    left = [
        counted(count, f"more {what}")
        for count, what in ((rows, "row"), (columns, "column"))
        if count > 0
    ]
    if left:
        yield f"({' and '.join(left)})"


def devices_text(devices: Devices) -> str:
    """Return the numbers of devices, long runs short.

    >>> devices_text((0, 1, 2, 3)), devices_text((0, 4)), devices_text(tuple(range(0, 64, 8)))
    ('0-3', '0 4', '0 8 .. 56')
    """
    first, last = devices[0], devices[-1]
    if len(devices) > 2 and last - first == len(devices) - 1:
        return f"{first}-{last}"
    if len(devices) <= _MOST_LISTED:
        return " ".join(map(str, devices))
    return f"{first} {devices[1]} .. {last}"
