"""A placement as a picture: the chips of one slice, or the GPUs of all nodes, and their links.

A square is a chip, its letter and colour the group of one mesh axis. Links inside of a group have
its colour, all others are grey. Planes along z stand side by side, x runs down and y to the right;
a link along z is a tick at a corner, one around the torus a stub at either end. A node of GPUs is a
row on its switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import product
from typing import NamedTuple

from shardspec.ir.spec import Target
from shardspec.report.mesh import chip_cell
from shardspec.report.table import target_title
from shardspec.topology.explanation import drawn_axis, seats
from shardspec.topology.machine import Coordinate
from shardspec.topology.placement import Placement

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
    name = drawn_axis(placement)
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
    is_tpu, found = placement.hardware.chip.platform == "tpu", seats(placement)
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
        for place, chip in picture.chips.items():
            following = (*place[:dim], (place[dim] + 1) % axis.extent, *place[dim + 1 :])
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
