"""Arrays and plans as HTML tables, for notebooks.

Plain tables without colours of their own, so that they are legible on light and dark pages: lines
are drawn in the colour of the text. Everything that comes from a spec is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from shardspec.ir.plan import ShardingPlan
from shardspec.ir.units import binary_bytes
from shardspec.report.array_grid import HOST, SAME, SLICE, Grid, Side, Table
from shardspec.report.array_text import (
    COLUMNS_DRAWN,
    ROWS_DRAWN,
    TABLES_DRAWN,
    devices_text,
    key_lines,
    outer_text,
)
from shardspec.report.table import rows

_PLAN_ROWS = 200
_LINES = {SAME: "1px solid", HOST: "3px solid", SLICE: "5px double"}
_TABLE = "border-collapse: collapse; font-family: monospace; text-align: left"
_HEADINGS = ("array", "type", "spec", "shard", "per device")


def grids_html(grids: Sequence[Grid]) -> str:
    """Return drawn arrays as HTML."""
    return "\n".join("\n".join(_grid_html(found)) for found in grids)


def _grid_html(found: Grid) -> Iterator[str]:
    yield f"<p><code>{escape(found.title)}</code>"
    yield from (f"<br><small>{escape(_in_words(line))}</small>" for line in key_lines(found))
    yield "</p>"
    for table in found.tables[:TABLES_DRAWN]:
        if found.outer:
            yield f"<p><small>{escape(outer_text(found, table))}</small></p>"
        yield from _table_html(found, table)
    if len(found.tables) > TABLES_DRAWN:
        yield f"<p><small>{len(found.tables) - TABLES_DRAWN} more tables</small></p>"


def _in_words(line: str) -> str:
    """Return a line of the key with the borders that a page has, in place of those of text."""
    return line.replace("`||` and `=`:", "double line:").replace("`|` and `-`:", "thick line:")


def _table_html(found: Grid, table: Table) -> Iterator[str]:
    cells = [row[:COLUMNS_DRAWN] for row in table.cells[:ROWS_DRAWN]]
    right = (*found.gaps(cells), SAME)
    below = (*found.gaps(tuple(zip(*cells, strict=True))), SAME)
    yield f'<table style="{_TABLE}">'
    heads = (_head(found.across, column, found) for column in range(len(cells[0])))
    yield f"<tr><th></th>{''.join(heads)}</tr>"
    for number, row in enumerate(cells):
        tds = "".join(
            f'<td style="{_border(across, below[number])}">{escape(devices_text(devices))}</td>'
            for devices, across in zip(row, right, strict=True)
        )
        yield f"<tr>{_head(found.down, number, found)}{tds}</tr>"
    yield "</table>"
    left = (len(table.cells) - len(cells), len(table.cells[0]) - len(cells[0]))
    if any(left):
        yield f"<p><small>{left[0]} more rows, {left[1]} more columns</small></p>"


def _head(side: Side, part: int, found: Grid) -> str:
    texts = (side.place_text(part, found.mesh), side.range_text(part))
    return f"<th>{'<br>'.join(escape(text) for text in texts if text)}</th>"


def _border(right: int, below: int) -> str:
    return (
        "border: 1px solid currentColor; padding: 2px 8px; "
        f"border-right: {_LINES[right]} currentColor; border-bottom: {_LINES[below]} currentColor"
    )


def plan_html(plan: ShardingPlan) -> str:
    """Return a plan as an HTML table, layers that agree in everything as one row."""
    shown = rows(plan)
    lines = [
        f"<p><b>{escape(plan.target.name)}</b>: mesh {escape(str(plan.mesh))}, "
        f"{len(plan.params)} arrays, {binary_bytes(plan.per_device_bytes)} per device</p>",
        f'<table style="{_TABLE}">',
        _row("th", _HEADINGS),
    ]
    for row in shown[:_PLAN_ROWS]:
        first = row.first
        cells = (
            row.name,
            str(first.param),
            str(first.partition_spec),
            str(list(first.shard_shape)),
            binary_bytes(row.per_device_bytes),
        )
        lines.append(_row("td", cells))
    lines.append("</table>")
    if len(shown) > _PLAN_ROWS:
        lines.append(f"<p><small>{len(shown) - _PLAN_ROWS} more rows</small></p>")
    return "\n".join(lines)


def _row(tag: str, cells: Sequence[str]) -> str:
    inner = "".join(f'<{tag} style="padding: 2px 8px">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"
