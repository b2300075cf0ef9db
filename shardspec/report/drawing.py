"""Arrays drawn: as text in a terminal, as tables in a notebook.

Which devices hold which part of an array: 2-D tables for an array of any rank.

The last split dimension goes across, the one before it down; every other split dimension makes a
table for each of its parts. One that is split alone goes down, where there is room.

Nothing here needs a device: the parts follow from the plan, and hosts and slices from the
placement of the mesh on its hardware.

Arrays and plans as HTML tables, for notebooks.

Plain tables without colours of their own, so that they are legible on light and dark pages: lines
are drawn in the colour of the text. Everything that comes from a spec is escaped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.diagnostics.words import binary_bytes, counted, did_you_mean
from shardspec.ir.plan import ActivationSharding, DimSharding, Sharding, ShardingPlan
from shardspec.ir.spec import Mesh
from shardspec.report.html import Html, escaped, joined, tag
from shardspec.report.html import table as html_table
from shardspec.report.table import rows
from shardspec.resolve.resolver import activation_for
from shardspec.topology.machine import Machine
from shardspec.topology.placement import Placement, placed

Part = tuple[int, ...]
Devices = tuple[int, ...]

#: What lies between two neighbours: nothing, another host, another slice (GPUs: node).
SAME, HOST, SLICE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Homes:
    """Host and slice of every device, in mesh order."""

    hosts: tuple[tuple[int, ...], ...]
    slices: tuple[tuple[int, ...], ...]
    slice_word: str

    def level(self, one: Devices, other: Devices) -> int:
        """Return what lies between the devices of two neighbours."""
        if {self.slices[device] for device in one} != {self.slices[device] for device in other}:
            return SLICE
        return int({self.hosts[d] for d in one} != {self.hosts[d] for d in other})


@dataclass(frozen=True, slots=True)
class Side:
    """One dimension of an array as rows, columns or tables.

    Attributes:
      dim: its index; None where the array has no such dimension.
    """

    dim: int | None
    sharding: DimSharding | None

    @property
    def count(self) -> int:
        """Return the number of parts."""
        return 1 if self.sharding is None else self.sharding.ways

    def range_text(self, part: int) -> str:
        """Return the elements of a part: `0:1024`, `all` where it is whole."""
        dim = self.sharding
        if dim is None or dim.ways == 1:
            return "" if dim is None else "all" if dim.size is None else f"all {dim.size}"
        if dim.size is None or dim.shard_size is None:
            return f"{part + 1} of {dim.ways}"
        start, end = part * dim.shard_size, min((part + 1) * dim.shard_size, dim.size)
        return f"{start}:{end}" if start < end else "empty"

    def place_text(self, part: int, mesh: Mesh) -> str:
        """Return the mesh coordinates of a part: `data 0`, `replica 0 data 3`."""
        if self.sharding is None:
            return ""
        found = []
        for name in reversed(self.sharding.mesh_axes):
            part, digit = divmod(part, mesh.sizes.get(name, 1))
            found.append(f"{name} {digit}")
        return " ".join(reversed(found))

    def title(self) -> str:
        """Return `dim 0 embed=4096 over (replica, data)`."""
        if self.sharding is None:
            return ""
        size = "" if self.sharding.size is None else f"={self.sharding.size}"
        axes = self.sharding.mesh_axes
        over = f"({', '.join(axes)})" if len(axes) > 1 else "".join(axes)
        where = f" over {over}" if self.sharding.ways > 1 else " whole"
        return f"dim {self.dim} {self.sharding.logical_axis or '_'}{size}{where}"


@dataclass(frozen=True, slots=True)
class Table:
    """The parts of an array at one place of the dimensions that are neither rows nor columns.

    Attributes:
      outer: the part of each of those dimensions.
      cells: by row and column, the devices that hold the part.
    """

    outer: Part
    cells: tuple[tuple[Devices, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """One array, cut.

    Attributes:
      title: path, type and answer.
      outer: the split dimensions that are neither rows nor columns.
      homes: None where the target has no hardware.
      machine: `on tpu v5e 4x4`; empty without hardware.
    """

    title: str
    mesh: Mesh
    outer: tuple[Side, ...]
    down: Side
    across: Side
    tables: tuple[Table, ...]
    homes: Homes | None
    machine: str

    @property
    def copies(self) -> int:
        """Return how many devices hold each part."""
        return len(self.tables[0].cells[0][0])

    def gaps(self, cells: Sequence[Sequence[Devices]]) -> tuple[int, ...]:
        """Return what lies after each column of `cells` but the last."""
        homes = self.homes
        if homes is None:
            return (SAME,) * (len(cells[0]) - 1)
        return tuple(
            max(homes.level(row[index], row[index + 1]) for row in cells)
            for index in range(len(cells[0]) - 1)
        )


def grid(sharding: Sharding, plan: ShardingPlan) -> Grid:
    """Return an array or an activation of a plan, cut into its parts."""
    dims, mesh = sharding.dims, plan.mesh
    split = [index for index, dim in enumerate(dims) if dim.ways > 1]
    inner = _inner(split, len(dims))
    sides = [Side(index, dims[index]) for index in inner]
    down, across = (*sides, *[Side(None, None)] * (2 - len(sides)))
    outer = tuple(Side(index, dims[index]) for index in split if index not in inner)
    holders = _holders((*outer, down, across), mesh)
    tables = tuple(
        Table(
            part,
            tuple(
                tuple(holders[(*part, row, column)] for column in range(across.count))
                for row in range(down.count)
            ),
        )
        for part in itertools.product(*(range(side.count) for side in outer))
    )
    placement = placed(plan.target, plan.spec.policy.order)
    homes = None if placement is None else _homes(placement)
    machine = "" if plan.target.hardware is None else f"on {plan.target.hardware.title}"
    return Grid(_title(sharding), mesh, outer, down, across, tables, homes, machine)


def _inner(split: Sequence[int], rank: int) -> list[int]:
    """Return the dimensions that are rows and columns; fewer where the array has fewer."""
    if len(split) > 1:
        return list(split[-2:])
    whole = [index for index in range(rank) if index not in split]
    return [*split, *whole[len(split) - 2 :]]


def _holders(sides: Sequence[Side], mesh: Mesh) -> dict[Part, Devices]:
    """Return the devices, in mesh order, that hold each part."""
    found: dict[Part, list[int]] = {}
    sizes = mesh.sizes
    for number, place_ in enumerate(itertools.product(*map(range, sizes.values()))):
        at = dict(zip(sizes, place_, strict=True))
        part = []
        for side in sides:
            index = 0
            for name in side.sharding.mesh_axes if side.sharding else ():
                index = index * sizes.get(name, 1) + at.get(name, 0)
            part.append(index)
        found.setdefault(tuple(part), []).append(number)
    return {part: tuple(devices) for part, devices in found.items()}


def _homes(placement: Placement) -> Homes:
    machine: Machine = placement.machine
    far = [index for index, axis in enumerate(machine) if axis.link == "dcn"]
    coordinates = placement.coordinates()
    hosts = tuple(
        tuple(value // axis.host for value, axis in zip(each, machine, strict=True))
        for each in coordinates
    )
    slices = tuple(tuple(each[index] for index in far) for each in coordinates)
    return Homes(hosts, slices, machine[far[0]].name if far else "slice")


def _title(sharding: Sharding) -> str:
    if isinstance(sharding, ActivationSharding):
        return f"activation {sharding.activation.name}   {sharding.partition_spec}"
    size = binary_bytes(sharding.per_device_bytes)
    shard = f"shard {list(sharding.shard_shape)}, {size} per device"
    param = sharding.param
    return f"{param.path}   {param}   {sharding.partition_spec}   {shard}"


ROWS_DRAWN = 32
COLUMNS_DRAWN = 16
_WIDTH = 112
TABLES_DRAWN = 4
_MOST_LISTED = 4

_BETWEEN = {SAME: "  ", HOST: " | ", SLICE: " || "}
_RULES = {HOST: "-", SLICE: "="}


def grid_lines(found: Grid, width: int | None = None) -> Iterator[str]:
    """Yield the lines of one array, with as many columns as the width has room for."""
    yield found.title
    yield from (f"  {line}" for line in key_lines(found))
    shown = found.tables[:TABLES_DRAWN]
    for table in shown:
        yield ""
        if found.outer:
            yield f"  {outer_text(found, table)}"
        lines = _table_lines(found, table, (width or _WIDTH) - 2)
        yield from (f"  {line}".rstrip() for line in lines)
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


def _table_lines(found: Grid, table: Table, width: int) -> Iterator[str]:
    """Yield the table: two lines of headings, a line for each row, borders between."""
    cells = [row[:COLUMNS_DRAWN] for row in table.cells[:ROWS_DRAWN]]
    lines = _cell_texts(found, cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gaps = ["  " if width else "" for width in widths[:2]]
    gaps += [_BETWEEN[level] for level in found.gaps(cells)]
    fitting = _fitting(widths, gaps, width)
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


def _fitting(widths: Sequence[int], gaps: Sequence[str], width: int) -> int:
    """Return how many columns a line has room for, one at least."""
    before = (0, *map(len, gaps))
    ends = itertools.accumulate(map(int.__add__, widths, before))
    return max(sum(end <= width for end in ends) - 2, 1)


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


_PLAN_ROWS = 200
_LINES = {SAME: "1px solid", HOST: "3px solid", SLICE: "5px double"}
_TABLE_STYLE = "border-collapse: collapse; font-family: monospace; text-align: left"
_HEADINGS = ("array", "type", "spec", "shard", "per device")


def _grid_html(found: Grid) -> Iterator[str]:
    yield f"<p><code>{escaped(found.title)}</code>"
    for line in key_lines(found):  # a page has other borders than a text
        said = line.replace("`||` and `=`:", "double line:").replace("`|` and `-`:", "thick line:")
        yield f"<br><small>{escaped(said)}</small>"
    yield "</p>"
    for table in found.tables[:TABLES_DRAWN]:
        if found.outer:
            yield f"<p><small>{escaped(outer_text(found, table))}</small></p>"
        yield from _table_html(found, table)
    if len(found.tables) > TABLES_DRAWN:
        yield f"<p><small>{len(found.tables) - TABLES_DRAWN} more tables</small></p>"


def _table_html(found: Grid, table: Table) -> Iterator[str]:
    cells = [row[:COLUMNS_DRAWN] for row in table.cells[:ROWS_DRAWN]]
    right = (*found.gaps(cells), SAME)
    below = (*found.gaps(tuple(zip(*cells, strict=True))), SAME)
    heads = (_head(found.across, column, found) for column in range(len(cells[0])))
    rows = [tag("tr", tag("th"), *heads)]
    for number, row in enumerate(cells):
        tds = (
            tag("td", devices_text(devices), style=_border(across, below[number]))
            for devices, across in zip(row, right, strict=True)
        )
        rows.append(tag("tr", _head(found.down, number, found), *tds))
    yield tag("table", *rows, style=_TABLE_STYLE)
    left = (len(table.cells) - len(cells), len(table.cells[0]) - len(cells[0]))
    if any(left):
        yield f"<p><small>{left[0]} more rows, {left[1]} more columns</small></p>"


def _head(side: Side, part: int, found: Grid) -> Html:
    texts = (side.place_text(part, found.mesh), side.range_text(part))
    return tag("th", Html("<br>".join(escaped(text) for text in texts if text)))


def _border(right: int, below: int) -> str:
    return (
        "border: 1px solid currentColor; padding: 2px 8px; "
        f"border-right: {_LINES[right]} currentColor; border-bottom: {_LINES[below]} currentColor"
    )


def plan_html(plan: ShardingPlan) -> str:
    """Return a plan as an HTML table, layers that agree in everything as one row."""
    shown = rows(plan)
    held = f"{len(plan.arrays)} arrays, {binary_bytes(plan.per_device_bytes)} per device"
    cells = (
        (
            row.name,
            str(row.first.param),
            str(row.first.partition_spec),
            str(list(row.first.shard_shape)),
            binary_bytes(row.per_device_bytes),
        )
        for row in shown[:_PLAN_ROWS]
    )
    left = len(shown) - _PLAN_ROWS
    more = [tag("p", tag("small", f"{left} more rows"))] if left > 0 else []
    heading = tag("p", tag("b", plan.target.name), f": mesh {plan.mesh}, {held}")
    return joined((heading, html_table(_HEADINGS, cells, (4,), style=_TABLE_STYLE), *more))


#: Devices of a mesh that is drawn at most: a terminal has less room long before.
MOST_DRAWN = 65_536


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """Arrays, drawn: text in a terminal, tables in a notebook."""

    grids: tuple[Grid, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yield the lines of the text, with room for `width` columns; an empty one between two."""
        for number, each in enumerate(self.grids):
            if number:
                yield ""
            yield from grid_lines(each, width)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "\n".join("\n".join(_grid_html(found)) for found in self.grids)


def drawing(shardings: Sequence[Sharding], plan: ShardingPlan) -> Drawing:
    """Return arrays of a plan, drawn."""
    return Drawing(tuple(grid(sharding, plan) for sharding in shardings))


def drawing_of(name: str, plan: ShardingPlan) -> Drawing:
    """Return the array at a path, or the activation of this name, drawn.

    Raises:
      KeyError: there is neither; it has the nearest name.
    """
    if not isinstance(name, str):
        raise TypeError(f"what is drawn is named by a string, not by a `{type(name).__name__}`")
    arrays = {each.param.path: each for each in plan.arrays}
    found = arrays.get(name) or activation_for(plan.activations, name)
    if found is None:
        activations = (each.activation.name for each in plan.activations)
        near = did_you_mean(name, [*arrays, *activations])
        hint = near or f"there are {counted(len(arrays), 'array')}"
        raise KeyError(f"no array and no activation `{name}`; {hint}")
    return drawing([found], plan)
