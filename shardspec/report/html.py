"""HTML that is put together from elements: whatever is no element is text, and escaped.

What comes from a spec is a stranger's. It can reach a page as text and as the value of an
attribute, and in no other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from shardspec.diagnostics.diagnostic import printable


class Html(str):
    """Text that is HTML already, to `tag` and to jinja2."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it as it is."""
        return self


def tag(name: str, *inner: str, **attributes: object) -> Html:
    """Return an element; None and False leave an attribute out, True has it without a value.

    >>> tag("b", "a < b", class_="x", data_of=3)
    '<b class="x" data-of="3">a &lt; b</b>'
    >>> tag("i", open=True, hidden=False, title=None, at=0)
    '<i open at="0"></i>'
    """
    said = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{said}>{joined(inner)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Return parts as one, those that are text escaped.

    >>> joined(["<", tag("i", "x")])
    '&lt;<i>x</i>'
    """
    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in parts))


def escaped(text: str) -> str:
    """Return text that is safe as text; what would turn a line around stands as its escape."""
    return escape("\n".join(map(printable, text.split("\n"))), quote=False)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(printable(str(value)))}"'


def table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = (), **more: str
) -> Html:
    """Return a table in a box that scrolls; the first cell of a row heads it.

    On a screen too narrow for them, cells of the class `stack` stand below each other, each with
    its heading.

    Args:
      numbers: the columns that stand to the right.
    """
    right = frozenset(numbers)

    def cell(text: str, at: int, *, is_head: bool) -> Html:
        kind = "th" if is_head or at == 0 else "td"
        scope = None if kind == "td" else "col" if is_head else "row"
        label = headings[at] if kind == "td" and "stack" in more.get("class_", "") else None
        right_ = "number" if at in right else None
        return tag(kind, text, class_=right_, scope=scope, data_label=label)

    head = (cell(text, at, is_head=True) for at, text in enumerate(headings))
    body = (
        tag("tr", *(cell(text, at, is_head=False) for at, text in enumerate(row))) for row in rows
    )
    inner = tag("thead", tag("tr", *head)), tag("tbody", *body)
    return tag("div", tag("table", *inner, **more), class_="scroll", tabindex=0)


# Charts as SVG of any width: places are percents, so text keeps its size, without scripts.


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis of a chart, in percent of its length, so that text keeps its size at any width."""

    low: float
    high: float
    is_log: bool = True

    @classmethod
    def decades(cls, values: Sequence[float]) -> Scale:
        """Return the axis of whole powers of ten that has some values."""
        least, most = min(values), max(values)
        return cls(10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(most * 1.3)))

    @classmethod
    def around(cls, values: Sequence[float]) -> Scale:
        """Return the axis that has some values, with room around them; of far ones by powers."""
        least, most = min(values), max(values)
        if least > 0 and most > _FAR * least:
            return cls(least / 1.15, most * 1.15)
        room = (most - least or most or 1.0) * 0.08 or 1.0  # of the least there is, nothing
        return cls(max(0.0, least - room), most + room, is_log=False)

    def share(self, value: float) -> float:
        """Return where a value is, from 0 to 1."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def at(self, value: float) -> str:
        """Return where a value is to the right; there is room for figures before it."""
        return f"{9 + 90 * self.share(value):.3f}%"

    def down(self, value: float) -> str:
        """Return where a value is from the top."""
        return f"{91 - 88 * self.share(value):.3f}%"

    @property
    def ticks(self) -> list[float]:
        """Return the values that a chart names: powers of ten, or five at even distances."""
        if not self.is_log:
            return [self.low + (self.high - self.low) * at / 4 for at in range(5)]
        first, last = math.log10(self.low), math.log10(self.high)
        if first % 1 or last % 1:
            return [10 ** (first + (last - first) * at / 4) for at in range(5)]
        every = max(1, round(last - first) // 5)
        return [10.0**at for at in range(round(first), round(last) + 1, every)]


#: Values are far apart from where the largest is this many times the least.
_FAR = 5
Text = Callable[[float], str]


def straight(
    x: Scale, y: Scale, one: tuple[float, float], other: tuple[float, float], kind: str
) -> Html:
    """Return a line between two values."""
    ends = {"x1": x.at(one[0]), "y1": y.down(one[1]), "x2": x.at(other[0]), "y2": y.down(other[1])}
    return tag("line", class_=kind, stroke="currentColor", stroke_width=1.5, **ends)


def chart(
    drawn: Iterable[Html],
    scales: tuple[Scale, Scale],
    high: int,
    kind: str,
    texts: tuple[Text, Text] | None = None,
) -> Html:
    """Return a chart with its grid and the figures of its axes.

    Args:
      texts: how values of each axis are written; None for powers of ten.
    """
    (x, y), (x_text, y_text) = scales, texts or (_tick, _tick)
    grid: list[Html] = []
    for value in x.ticks:
        where = {"x": x.at(value), "y": "97.5%", "text_anchor": "middle"}
        line = straight(x, y, (value, y.low), (value, y.high), "grid")
        grid += [line, tag("text", x_text(value), **where)]
    for value in y.ticks:
        where = {"x": "8.5%", "y": y.down(value), "dy": "4", "text_anchor": "end"}
        line = straight(x, y, (x.low, value), (x.high, value), "grid")
        grid += [line, tag("text", y_text(value), **where)]
    return tag(
        "svg", *grid, *drawn, class_=f"chart {kind}", width="100%", height=high, aria_hidden="true"
    )


def _tick(value: float) -> str:
    """Return `1`, `100`, `10 T`."""
    at = min(max(math.floor(math.log10(value) / 3 + 1e-9), 0), 6)
    return f"{value / 1000**at:.6g}{('', ' k', ' M', ' G', ' T', ' P', ' E')[at]}"
