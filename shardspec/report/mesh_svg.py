"""A placement as a picture: every chip of one slice, coloured by its group."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.ir.spec import Target
from shardspec.report.table import target_title
from shardspec.topology.explanation import Seat, drawn_axis, seats
from shardspec.topology.placement import Placement

_CELL = 30
_GAP = 18
_TOP = 44
_STYLE = "font: 10px sans-serif; text-anchor: middle; dominant-baseline: central"


def mesh_svg(target: Target, placement: Placement) -> str:
    """Return an SVG document; planes along z stand side by side, x runs down, y to the right."""
    rows, columns, planes = _shape(placement)
    width = _GAP + planes * (columns * _CELL + _GAP)
    height = _TOP + rows * _CELL + _GAP
    title = f"{target_title(target)}   mesh {placement.mesh}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 420)}" height="{height}">',
        f"<title>{_escaped(title)}</title>",
        f'<text x="{_GAP}" y="16" style="font: 12px sans-serif">{_escaped(title)}</text>',
        f'<text x="{_GAP}" y="34" style="font: 10px sans-serif">{_legend(placement)}</text>',
        *_chips(placement, (rows, columns, planes)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _legend(placement: Placement) -> str:
    name = drawn_axis(placement)
    return (
        "one device" if name is None else f"same letter: one group of {name}; number: index on it"
    )


def _shape(placement: Placement) -> tuple[int, int, int]:
    """Return rows, columns and planes of the picture."""
    extents = [axis.extent for axis in placement.machine]
    if placement.hardware.chip.platform == "tpu":
        return extents[1], extents[2], extents[3]
    return extents[0], extents[1], 1


def _chips(placement: Placement, shape: tuple[int, int, int]) -> Iterator[str]:
    placed = seats(placement)
    is_tpu = placement.hardware.chip.platform == "tpu"
    rows, columns, planes = shape
    for plane in range(planes):
        for row in range(rows):
            for column in range(columns):
                place = (0, row, column, plane, 0) if is_tpu else (row, column)
                left = _GAP + plane * (columns * _CELL + _GAP) + column * _CELL
                yield from _chip(left, _TOP + row * _CELL, placed[place])


def _chip(left: int, top: int, seat: Seat) -> Iterator[str]:
    hue = seat.group * 137 % 360
    yield (
        f'<rect x="{left}" y="{top}" width="{_CELL - 2}" height="{_CELL - 2}" rx="3" '
        f'fill="hsl({hue}, 65%, 80%)" stroke="hsl({hue}, 40%, 45%)"/>'
    )
    middle = _CELL // 2 - 1
    yield f'<text x="{left + middle}" y="{top + middle}" style="{_STYLE}">{seat}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
