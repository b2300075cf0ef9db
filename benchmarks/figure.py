"""Predicted beside measured for all public rows, as a picture: `docs/images/predicted.svg`.

    python benchmarks/figure.py

A point is a training step that somebody published: of `measured_steps.py`, `t5_submeshes.py` and
`layouts.py`. Along x it is what was measured, along y what `cost` predicts, both by logarithms; on
the line they agree, and in the band they are within 15 %.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import layouts, measured_steps, t5_submeshes  # noqa: E402

FILE = ROOT / "docs" / "images" / "predicted.svg"
_SIDE, _LEFT, _TOP = 420, 60, 20
_BAND = 0.15
#: By the colour-blind palette of Okabe and Ito.
_COLORS = {
    "TPU": "#0072b2",
    "GPU": "#d55e00",
    "TPU v4, submeshes": "#009e73",
    "GPU, layouts": "#cc79a7",
}
_STYLE = """<style>
text { font: 12px sans-serif; fill: #1f2328 }
.axis { stroke: #8c959f } .band { fill: #8c959f; opacity: 0.2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""


class Point(NamedTuple):
    """A published step.

    Attributes:
      kind: a key of the legend.
      measured, predicted: seconds.
    """

    kind: str
    measured: float
    predicted: float


def points() -> Iterator[Point]:
    """Yield every row that says how long its step took."""
    for row in map(measured_steps.compiled, measured_steps.load()):
        if row is not None and row.seconds:
            yield Point(row.chip.platform.upper(), row.seconds, measured_steps.predicted(row))
    for told in json.loads(t5_submeshes.DATA.read_text(encoding="utf-8"))["rows"]:
        if told["model"] == "11b" and told["tokens_per_s"]:
            tokens = told["gbs"] * told["length"]
            found = t5_submeshes.predicted(told).tokens_per_s
            yield Point("TPU v4, submeshes", tokens / told["tokens_per_s"], tokens / found)
    data = json.loads(layouts.DATA.read_text(encoding="utf-8"))
    for sheet in (each for each in data["sheets"] if each.get("transcribed") != "recalled"):
        for each in layouts.rows_of(sheet, data["models"]):
            if each.seconds:
                yield Point("GPU, layouts", each.seconds, each.predicted)


class _Scale(NamedTuple):
    """Seconds on both axes, by powers of ten."""

    low: int
    high: int

    def at(self, seconds: float) -> float:
        """Return how far from the corner a time lies."""
        return (math.log10(seconds) - self.low) / (self.high - self.low) * _SIDE


def picture(found: Sequence[Point]) -> str:
    """Return the points as an SVG document."""
    values = [value for each in found for value in each[1:]]
    powers = [math.log10(value) for value in values]
    scale = _Scale(math.floor(min(powers)), math.ceil(max(powers)))
    size = f"{_LEFT + _SIDE + 210} {_TOP + _SIDE + 50}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {size}">',
        "<title>Seconds of a training step, measured and predicted</title>",
        _STYLE,
        *_axes(scale),
    ]
    for number, kind in enumerate(_COLORS):
        lines += _kind(kind, [each for each in found if each.kind == kind], number, scale)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _axes(scale: _Scale) -> Iterator[str]:
    """Yield the axes with their powers of ten, and the band around the line of agreement."""

    def place(x: float, y: float) -> str:
        return f"{_LEFT + x:.1f},{_TOP + _SIDE - y:.1f}"

    wide = scale.at(10**scale.low * (1 + _BAND))
    band = (place(0, -wide), place(_SIDE, _SIDE - wide), place(_SIDE, _SIDE + wide), place(0, wide))
    square = f'x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"'
    yield f'<clipPath id="inside"><rect {square}/></clipPath>'
    yield f'<polygon class="band" clip-path="url(#inside)" points="{" ".join(band)}"/>'
    for corners in ((0, 0), (_SIDE, _SIDE)), ((0, _SIDE), (0, 0), (_SIDE, 0)):
        points = " ".join(place(*each) for each in corners)
        yield f'<polyline class="axis" fill="none" points="{points}"/>'
    for power in range(scale.low, scale.high + 1):
        text, way = f"{10.0**power:g} s", scale.at(10.0**power)
        yield _text(_LEFT + way, _TOP + _SIDE + 18, text, "middle")
        yield _text(_LEFT - 6, _TOP + _SIDE - way + 4, text, "end")
    yield _text(_LEFT + _SIDE / 2, _TOP + _SIDE + 40, "measured", "middle")
    yield _text(_LEFT + 8, _TOP + 12, "predicted", "start")


def _kind(kind: str, own: Sequence[Point], number: int, scale: _Scale) -> Iterator[str]:
    """Yield the points of one kind, and its entry of the legend."""
    for each in own:
        x, y = _LEFT + scale.at(each.measured), _TOP + _SIDE - scale.at(each.predicted)
        circle = f'cx="{x:.1f}" cy="{y:.1f}" r="3.5"'
        yield f'<circle {circle} fill="{_COLORS[kind]}" fill-opacity="0.75"/>'
    inside = sum(abs(each.predicted / each.measured - 1) <= _BAND for each in own)
    x, y = _LEFT + _SIDE + 20, _TOP + 16 + 40 * number
    yield f'<rect x="{x - 5}" y="{y - 9}" width="10" height="10" fill="{_COLORS[kind]}"/>'
    yield _text(x + 12, y, kind, "start")
    yield _text(x + 12, y + 16, f"{inside} of {len(own)} within {_BAND:.0%}", "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    FILE.write_text(picture([*points()]), encoding="utf-8")
