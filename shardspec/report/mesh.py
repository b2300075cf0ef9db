"""A placement: as text, as a picture of the chips of a slice, and as JSON (`shardspec.mesh/1`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from itertools import product
from typing import NamedTuple

from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import three_figures
from shardspec.ir.spec import Target, shape_text
from shardspec.records import Data, picked
from shardspec.report.table import target_title, typed
from shardspec.topology import placement as explanations
from shardspec.topology.assignment import SubmeshChoice, choose_submesh
from shardspec.topology.machine import Coordinate, host_shape
from shardspec.topology.placement import Placement, place
from shardspec.versions import MESH_JSON

AXIS_HEADINGS = (
    "axis",
    "size",
    "runs over",
    "shape",
    "hops",
    "hosts",
    "slices",
    "one way, per device",
)
#: Of terminals with 256 colours: readable on white and on black.
_COLOURS = (196, 32, 28, 133, 130, 30, 198, 63, 100, 165, 64, 161, 98, 31, 131, 29)
_PLANES_DRAWN = 4
_ROWS_DRAWN = 32


def mesh_lines(target: Target, placement: Placement, *, color: bool = False) -> Iterator[str]:
    """Yield the whole report on one target; every escape sequence in it is a colour of ours."""
    yield from map(printable, _report(target, placement))
    yield from drawing(placement, color=color)


def _report(target: Target, placement: Placement) -> Iterator[str]:
    yield target_title(target)
    yield from machine_lines(placement)
    yield f"mesh {placement.mesh}{_asked(placement)}"
    yield ""
    yield from columns([AXIS_HEADINGS, *map(axis_cells, explanations.explain_axes(placement))])
    yield ""
    notes = tuple(note_lines(placement))
    yield from (*notes, "") if notes else ()


def machine_lines(placement: Placement) -> Iterator[str]:
    """Yield what hosts have, and how far the torus wraps around."""
    hardware = placement.hardware
    hosts = shape_text(host_shape(hardware))
    wrapped = [axis.name for axis in placement.machine if axis.wraps]
    if hardware.chip.torus_rank:
        torus = f"wraps around in {', '.join(wrapped)}" if wrapped else "does not wrap around"
        yield f"  a host has {hosts} chips; the torus {torus}"
    elif hardware.chip.platform == "gpu":
        yield f"  a host has {hosts} GPUs; {hardware.chip.fabric} joins {hardware.topology[0]}"


def _asked(placement: Placement) -> str:
    said = []
    for placed in placement.axes:
        axis = placed.axis
        if axis.submesh is not None:
            said.append(f"{axis.name} = submesh {shape_text(axis.submesh)}")
        elif axis.auto:
            tile = shape_text(tile_of(placement, axis.name))
            said.append(f"{axis.name} = auto {axis.size}: submesh {tile}")
        elif axis.over:
            said.append(f"{axis.name} = over {' '.join(map(str, axis.over))}")
    said += typed(placement.mesh)
    said += ["devices as listed" if placement.order == "listed" else f"order {placement.order}"]
    said += [placement.path] if placement.path and placement.path != "plain" else []
    return f"   ({', '.join(said)})"


def tile_of(placement: Placement, name: str) -> tuple[int, ...]:
    """Return how many devices a mesh axis takes along each physical axis inside a slice."""
    sizes = [1] * len(placement.machine)
    for digit in placement.axis(name).digits:
        sizes[digit.axis] *= digit.size
    return tuple(sizes[1:])


def axis_cells(explanation: explanations.AxisExplanation) -> tuple[str, ...]:
    """Return the cells of a mesh axis under `AXIS_HEADINGS`."""
    runs = "; ".join(map(str, explanation.runs)) or "-"
    return (
        explanation.name,
        str(explanation.size),
        runs,
        explanation.shape,
        hops_text(explanation),
        str(explanation.hosts),
        str(explanation.slices),
        speed_text(explanation),
    )


def hops_text(explanation: explanations.AxisExplanation) -> str:
    """Return `1`, or `1 to 3, 5 back`: hops to the next device, and from the last to the first."""
    if not explanation.hops:
        return "-"
    low, high, back = min(explanation.steps), max(explanation.steps), explanation.hops[-1]
    steps = str(low) if low == high else f"{low} to {high}"
    return steps if back == high == low else f"{steps}, {back} back"


def speed_text(explanation: explanations.AxisExplanation) -> str:
    """Return `~ 158 GB/s ICI`."""
    names = {"dcn": "DCN", "ici": "ICI", "chip": "in the chip", "nvlink": explanation.fabric}
    if explanation.bottleneck not in names:
        return "-"
    if explanation.bytes_per_s is None:
        return names[explanation.bottleneck]
    speed = three_figures(explanation.bytes_per_s / 1e9)
    return f"~ {speed} GB/s {names[explanation.bottleneck]}"


def note_lines(placement: Placement) -> Iterator[str]:
    """Yield what is worth saying of cores, of chosen tiles, and of the order."""
    if placement.hardware.chip.platform == "tpu":
        yield f"  {explanations.core_note(placement.hardware)}"
    name = explanations.drawn_axis(placement)
    tiled = [p for p in placement.axes if p.axis.auto or p.axis.submesh or p.axis.over]
    for placed in tiled if len(tiled) == 1 else ():
        if placed.axis.auto:
            choice = choose_submesh(placement.hardware, placed.axis.size)
            if choice is not None:
                yield f"  {choice_text(choice, placed.axis.size)}"
    if name is None or placement.order == "listed" or placement.axis(name).axis.over:
        return
    if placement.hardware.chip.torus_rank:
        yield from _order_lines(placement, name)


def _order_lines(placement: Placement, name: str) -> Iterator[str]:
    """Yield the hops of the drawn axis in both orders, where they differ."""
    target = Target("", placement.mesh, placement.hardware)
    texts = {}
    for order in ("t5x", "ring"):
        other = place(target, "ring" if order == "ring" else "t5x")
        if isinstance(other, Placement):
            explained = next(
                entry for entry in explanations.explain_axes(other) if entry.name == name
            )
            texts[order] = f"{hops_text(explained)} ({sum(explained.hops)} around)"
    if len(set(texts.values())) > 1:
        said = "; ".join(f"order {order}: hops {text}" for order, text in texts.items())
        yield f"  `{name}`, {said}"


def choice_text(choice: SubmeshChoice, partitions: int) -> str:
    """Return how our tile for `auto N` compares with T5X's."""
    ours = f"auto {partitions} takes {shape_text(choice.tile)}"
    if choice.t5x_tile is None:
        return f"{ours}; T5X has no default here"
    theirs = shape_text(choice.t5x_tile)
    if choice.t5x_score is None:
        return f"{ours}; T5X's default {theirs} does not tile this slice"
    if choice.t5x_tile == choice.tile:
        return f"{ours}, as T5X does"
    if choice.t5x_score == choice.score:
        return f"{ours}; T5X's default {theirs} is as good"
    detail = f"{choice.score.links:g} links at work, not {choice.t5x_score.links:g}"
    if choice.score.links == choice.t5x_score.links:
        detail = "the same links, and closer together"
    return f"{ours}, better than T5X's default {theirs}: {detail}"


def drawing(placement: Placement, *, color: bool = False) -> Iterator[str]:
    """Yield the chips of one slice: a letter for each group, a number for the place in it."""
    name = explanations.drawn_axis(placement)
    if name is None:
        return
    placed = explanations.seats(placement)
    yield f"  same letter: one group of `{printable(name)}`; number: index on it"
    if placement.hardware.chip.platform != "tpu":
        yield from _draw_nodes(placement, placed, color=color)
        return
    _, x, y, z, _ = (axis.extent for axis in placement.machine)
    for plane in range(min(z, _PLANES_DRAWN)):
        title = f"z={plane}" if z > 1 else "   "
        yield f"  {title}  y = 0 to {y - 1}, from left to right"
        yield from _draw_plane(placement, placed, plane, (x, y), color=color)
    if z > _PLANES_DRAWN:
        yield f"  ({z - _PLANES_DRAWN} more planes along z)"
    if placement.hardware.slice_count > 1:
        yield f"  (slice 0 of {placement.hardware.slice_count})"


def _draw_plane(
    placement: Placement,
    placed: dict[tuple[int, ...], explanations.Seat],
    plane: int,
    shape: tuple[int, int],
    *,
    color: bool,
) -> Iterator[str]:
    cores = placement.machine[4].extent
    rows = [
        [
            chip_cell([placed[(0, x, y, plane, core)] for core in range(cores)])
            for y in range(shape[1])
        ]
        for x in range(shape[0])
    ]
    yield from _rows(rows, "x=", " rows along x", color=color)


def _draw_nodes(
    placement: Placement, placed: dict[tuple[int, ...], explanations.Seat], *, color: bool
) -> Iterator[str]:
    outer, inner = placement.machine
    rows = [
        [(str(placed[node, at]), placed[node, at].group) for at in range(inner.extent)]
        for node in range(outer.extent)
    ]
    yield from _rows(rows, f"{outer.name} ", "", color=color)


def _rows(
    rows: Sequence[Sequence[tuple[str, int]]], label: str, more: str, *, color: bool
) -> Iterator[str]:
    """Yield rows of cells with their groups, and how many are left out."""
    width = max(len(cell) for row in rows for cell, _ in row)
    for number, row in enumerate(rows[:_ROWS_DRAWN]):
        cells = " ".join(_painted(cell.ljust(width), group, color) for cell, group in row)
        yield f"    {label}{number:<3}{cells}".rstrip()
    if len(rows) > _ROWS_DRAWN:
        yield f"    ({len(rows) - _ROWS_DRAWN} more{more})"


def chip_cell(devices: Sequence[explanations.Seat]) -> tuple[str, int]:
    """Return the text of one chip: `A0`, `A0+1` for two devices of a group, `A0,B0` else."""
    first = devices[0]
    if all(seat.group == first.group for seat in devices):
        return first.letters + "+".join(str(seat.position) for seat in devices), first.group
    return ",".join(map(str, devices)), first.group


def _painted(cell: str, group: int, color: bool) -> str:
    return f"\x1b[38;5;{_COLOURS[group % len(_COLOURS)]}m{cell}\x1b[0m" if color else cell


def compare_lines(
    before: tuple[Target, Placement], after: tuple[Target, Placement]
) -> Iterator[str]:
    """Yield two placements axis by axis: the hops, hosts and speed of each."""
    yield f"A  {target_title(before[0])}   mesh {before[1].mesh}{_asked(before[1])}"
    yield f"B  {target_title(after[0])}   mesh {after[1].mesh}{_asked(after[1])}"
    yield ""
    lines: list[tuple[str, ...]] = [("", *AXIS_HEADINGS)]
    ours = {entry.name: entry for entry in explanations.explain_axes(before[1])}
    theirs = {entry.name: entry for entry in explanations.explain_axes(after[1])}
    for name in dict.fromkeys((*ours, *theirs)):
        for letter, entries in (("A", ours), ("B", theirs)):
            if name in entries:
                lines.append((letter, *axis_cells(entries[name])))
    yield from columns(lines)
    yield ""
    yield from verdict_lines(ours, theirs)


def verdict_lines(
    ours: dict[str, explanations.AxisExplanation], theirs: dict[str, explanations.AxisExplanation]
) -> Iterator[str]:
    """Yield, for each axis both have, which of the two is faster and by how much."""
    for name in ours:
        a, b = ours[name], theirs.get(name)
        if b is None or a.bytes_per_s is None or b.bytes_per_s is None:
            continue
        if a.bytes_per_s == b.bytes_per_s:
            yield f"  {name}: the same speed"
            continue
        ratio = b.bytes_per_s / a.bytes_per_s
        better = "B" if ratio > 1 else "A"
        yield f"  {name}: {better} is {three_figures(max(ratio, 1 / ratio))} times as fast (~)"


#: Keys of a machine and of a mesh axis, as `picked` takes them.
_HARDWARE = (
    "chip=chip.name title=chip.title accelerator_type slices=slice_count topology"
    " chips=chip_count devices=device_count"
)
_AXIS = "name size runs shape wrapped hops hosts slices bytes_per_s bottleneck"


def mesh_json(target: Target, placement: Placement) -> str:
    """Return the placement with its explanation; devices are rows of `physical_axes`."""
    hardware = placement.hardware
    data: Data = {
        "schema": MESH_JSON,
        "target": target.name,
        "hardware": {
            **picked(hardware, _HARDWARE),
            "host_shape": host_shape(hardware),
        },
        "physical_axes": [picked(axis, "name extent link wraps") for axis in placement.machine],
        **picked(placement, "mesh=mesh.sizes order path"),
        "axes": [picked(each, _AXIS) for each in explanations.explain_axes(placement)],
        "devices": list(placement.coordinates()),
    }
    types = {axis.name: axis.axis_type for axis in target.mesh.axes if axis.axis_type != "auto"}
    if types:
        data["axis_types"] = types
    if hardware.chip.platform == "tpu":
        data["core"] = explanations.core_note(hardware)
    return json.dumps(data, sort_keys=True)


# A placement as a picture: the chips of one slice, or the GPUs of all nodes, and their links.
#
# A square is a chip, its letter and colour the group of one mesh axis. Links inside of a group have
# its colour, all others are grey. Planes along z stand side by side, x runs down and y to the
# right; a link along z is a tick at a corner, one around the torus a stub at either end. A node of
# GPUs is a row on its switch.


#: Of a square, of what lies between two, and of what lies between planes; and how wide it gets.
_SIDE, _BETWEEN, _GAP = 28, 8, 30
_STEP = _SIDE + _BETWEEN
_TOP = 58
_WIDEST = 1310
_STYLE = """<style>
text { font: 10px sans-serif; text-anchor: middle; dominant-baseline: central; fill: #1f2328 }
.said { font-size: 12px; text-anchor: start; fill: #1f2328 }
line { stroke-width: 2; stroke: #8c959f }
@media (prefers-color-scheme: dark) { .said { fill: #e6edf3 } }
</style>"""


class _Chip(NamedTuple):
    """A square of the picture.

    Attributes:
      text: the seats of its devices.
      left, top: of the square.
    """

    text: str
    group: int
    left: int
    top: int


class _Picture(NamedTuple):
    """What is drawn, by place: (x, y, z) of a torus, (node, GPU, 0) of GPUs."""

    chips: dict[Coordinate, _Chip]
    extents: Coordinate
    width: int
    height: int


def mesh_svg(target: Target, placement: Placement) -> str:
    """Return an SVG document that a browser shows on light and dark pages."""
    picture, told = _picture(placement), f"{target_title(target)}   mesh {placement.mesh}"
    width, title = max(picture.width, 2 * _GAP + 7 * len(told)), escape(told, quote=False)
    name = explanations.drawn_axis(placement)
    legend = f"same letter: one group of {name}; number: index on it" if name else "one device"
    is_tpu = placement.hardware.chip.platform == "tpu"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}"'
        f' height="{picture.height}" viewBox="0 0 {width} {picture.height}">',
        f"<title>{title}</title>",
        _STYLE,
        f'<text class="said" x="{_GAP}" y="18">{title}</text>',
        f'<text class="said" x="{_GAP}" y="38">{escape(legend, quote=False)}</text>',
        *(_torus_links(placement, picture) if is_tpu else _switches(picture)),
        *map(_square, picture.chips.values()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _picture(placement: Placement) -> _Picture:
    """Return where each chip is drawn; planes go on in another row where there is no room."""
    is_tpu, found = placement.hardware.chip.platform == "tpu", explanations.seats(placement)
    extents = [axis.extent for axis in placement.machine]
    rows, columns, planes = extents[1:4] if is_tpu else (*extents[:2], 1)
    across, down = columns * _STEP + _GAP, rows * _STEP + _GAP
    lines = -(-planes // max(1, _WIDEST // across))
    beside = -(-planes // lines)
    chips: dict[Coordinate, _Chip] = {}
    for x, y, z in product(range(rows), range(columns), range(planes)):
        cores = [(0, x, y, z, core) for core in range(extents[4])] if is_tpu else [(x, y)]
        text, group = chip_cell([found[each] for each in cores])
        line, at = divmod(z, beside)
        left, top = _GAP + at * across + y * _STEP, _TOP + line * down + x * _STEP
        chips[x, y, z] = _Chip(text, group, left, top)
    return _Picture(
        chips, (rows, columns, planes), _GAP + beside * across, _TOP + -(-planes // beside) * down
    )


def _torus_links(placement: Placement, picture: _Picture) -> Iterator[str]:
    """Yield the links along x, y and z, those around the torus as stubs."""
    half, stub = _SIDE // 2, _BETWEEN // 2 + 3
    for dim, axis in enumerate(placement.machine[1:4]):
        if axis.extent == 1:
            continue
        for at, chip in picture.chips.items():
            following = (*at[:dim], (at[dim] + 1) % axis.extent, *at[dim + 1 :])
            goes_around = following[dim] == 0
            other = picture.chips[following]
            color = _color(chip.group) if chip.group == other.group else ""
            x, y = chip.left + half, chip.top + half
            if goes_around and not (axis.wraps and axis.extent > 2):
                continue
            if dim == 2:
                corner = (chip.left + _SIDE - 2, chip.top + 2, stub, -stub)
                yield _line(*corner, color)
            elif goes_around:
                move = (0, half + stub) if dim == 0 else (half + stub, 0)
                yield _line(x, y, *move, color)
                yield _line(other.left + half, other.top + half, -move[0], -move[1], color)
            else:
                yield _line(x, y, other.left - chip.left, other.top - chip.top, color)


def _switches(picture: _Picture) -> Iterator[str]:
    """Yield the switch of each node, and the network between nodes."""
    nodes, gpus, _ = picture.extents
    half = _SIDE // 2
    for node in range(nodes if gpus > 1 else 0):
        first, last = picture.chips[node, 0, 0], picture.chips[node, gpus - 1, 0]
        groups = {picture.chips[node, at, 0].group for at in range(gpus)}
        color = _color(groups.pop()) if len(groups) == 1 else ""
        yield _line(first.left + half, first.top + half, last.left - first.left, 0, color)
    if nodes > 1:
        first, last = picture.chips[0, 0, 0], picture.chips[nodes - 1, 0, 0]
        yield _line(first.left - half, first.top + half, 0, last.top - first.top, "")
        for node in range(nodes):
            chip = picture.chips[node, 0, 0]
            yield _line(chip.left - half, chip.top + half, half, 0, "")


def _line(x: int, y: int, right: int, down: int, color: str) -> str:
    stroke = f' style="stroke: {color}"' if color else ""
    return f'<line x1="{x}" y1="{y}" x2="{x + right}" y2="{y + down}"{stroke}/>'


def _color(group: int, lightness: int = 45) -> str:
    return f"hsl({group * 137 % 360}, {40 if lightness < 60 else 65}%, {lightness}%)"


def _square(chip: _Chip) -> str:
    half, small = _SIDE // 2, ' style="font-size: 7px"' if len(chip.text) > 4 else ""
    return (
        f'<rect x="{chip.left}" y="{chip.top}" width="{_SIDE}" height="{_SIDE}" rx="3"'
        f' fill="{_color(chip.group, 80)}" stroke="{_color(chip.group)}"/>'
        f'<text x="{chip.left + half}" y="{chip.top + half}"{small}>{chip.text}</text>'
    )
