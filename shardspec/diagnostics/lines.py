"""Lines of text: columns, and how both lie within the width of a terminal.

A pipe and a file get every line whole. A terminal gets lines that end at its edge: a table that is
too wide has the middle of its paths left out, or where that is not enough each of its rows on
several lines; sentences go on below. Numbers, and what stands in backticks, are never cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from shardspec.diagnostics.diagnostic import printable

#: Of narrower terminals each line would hold a word or two.
NARROW = 40

_LEAST_PATH = 24
#: Between a line and that of the helper it calls.
_INSIDE = " (in "
_FURTHER = 4
#: What begins a line and is no longer, with the gap behind it, keeps its text beside it.
_LABEL = 10

#: A word with what is before it; what stands in backticks is one word.
_UNBROKEN = r"(?<!\s)\s*+(?:`[^`]*`|\S)+(?: %)?"
_CELL = r"(^ *+|(?<! )  ++)(\S++(?: \S++)*+)"
_COLOR = r"\x1b\[[0-9;]*m"


def wrapped(text: str, width: int | None, start: int, below: int) -> list[str]:
    """Return a sentence in lines that end before `width`, None for no end.

    Args:
      start: the column of the first line.
      below: that of the others.
    """
    if width is None or start + len(text) < width or width < NARROW:
        return [text]
    lines: list[str] = []
    for found in re.finditer(_UNBROKEN, text):
        word = found[0]
        room = width - 1 - (below if len(lines) > 1 else start)
        if lines and len(lines[-1]) + len(word) <= room:
            lines[-1] += word
        else:
            lines.append(word.lstrip() if lines else word)
    return lines or [text]


#: What a cell says, in a colour: an array that lies whole or is split, a finding, a yes or a no.
Tone = Literal["whole", "split", "error", "warning", "yes", "no"]
_TONES: dict[Tone, str] = {
    "whole": "\x1b[33m",
    "split": "\x1b[36m",
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "yes": "\x1b[32m",
    "no": "\x1b[1;31m",
}
#: Of some cells of a row, by column.
Tones = Mapping[int, Tone]


#: Verdicts, as all verbs write them: behind a comma or a number, or as a cell of their own.
_VERDICT = re.compile(
    r"(?<=, |  |\d )(?:fits|may fit|does not fit|bound by [\w+]++|times as (?:fast|slow))(?![\w-])",
    re.IGNORECASE,
)


def verdicts_painted(line: str) -> str:
    r"""Return a line with its verdicts in their colours, where it has no colours yet.

    >>> verdicts_painted("memory  ~ 9 GiB, DOES NOT FIT").replace("\x1b", "^")
    'memory  ~ 9 GiB, ^[1;31mDOES NOT FIT^[0m'
    """
    return line if "\x1b" in line else _VERDICT.sub(_painted, line)


def _painted(found: re.Match[str]) -> str:
    said = found[0].lower()
    tone: Tone = "yes" if said.endswith(("fits", "fast")) else "no"
    tone = "warning" if said.startswith(("may", "bound")) else tone
    return f"{_TONES[tone]}{found[0]}\x1b[0m"


class Table(NamedTuple):
    """Rows of cells, each column as wide as its widest cell.

    Attributes:
      right: the columns whose cells stand at their right end.
      paths: the column whose cells may lose their middle.
      is_prose: whether the last column is sentences, which go on below their beginning.
      tones: of each row, or of none: what a reader of colours sees at once.
    """

    rows: tuple[tuple[str, ...], ...]
    right: Container[int]
    indent: int
    paths: int | None
    is_prose: bool
    tones: tuple[Tones, ...] = ()

    def lines(self, width: int | None = None, *, color: bool = False) -> list[list[str]]:
        """Return the lines of each row; one each where the width, None for no end, allows it."""
        rows, widths = self.rows, _widths(self.rows)
        start = self._size((*widths[:-1], 0))
        if width is not None and self.is_prose and start <= width * 2 // 3:
            return [list(self._prose(row, widths, start, width)) for row in rows]
        if width is not None and self.paths is not None:
            rows = self._fitting(self.paths, width - self._size(widths) + widths[self.paths], width)
            widths = _widths(rows)
        parts = tuple(self._parts(widths, width))
        tones = self.tones if color and self.tones else ({},) * len(rows)
        return [
            [
                self._line(row, widths, part, self.indent + _FURTHER * (part.start > 0), painted)
                for part in parts
                if not part.start or any(row[part.start : part.stop])
            ]
            for row, painted in zip(rows, tones, strict=True)
        ]

    def _prose(
        self, row: Sequence[str], widths: Sequence[int], start: int, width: int
    ) -> Iterator[str]:
        """Yield a row whose last cell goes on below itself."""
        first, *rest = wrapped(row[-1], width + 1, start, start)
        yield self._line((*row[:-1], first), (*widths[:-1], 0), range(len(row)), self.indent)
        yield from (f"{' ' * start}{line}" for line in rest)

    def _size(self, widths: Sequence[int]) -> int:
        return self.indent + sum(widths) + 2 * (len(widths) - 1)

    def _fitting(self, at: int, room: int, width: int) -> tuple[tuple[str, ...], ...]:
        """Return the rows with shorter paths: beside the rest while they differ, else alone."""
        beside = self._with_paths(at, room)
        if room >= _LEAST_PATH and len({row[at] for row in beside}) == len(
            {row[at] for row in self.rows}
        ):
            return beside
        return self._with_paths(at, width - self.indent)

    def _with_paths(self, at: int, room: int) -> tuple[tuple[str, ...], ...]:
        return tuple((*row[:at], shortened(row[at], room), *row[at + 1 :]) for row in self.rows)

    def _parts(self, widths: Sequence[int], width: int | None) -> Iterator[range]:
        """Yield the columns of each line of a row."""
        first, end = 0, self.indent - 2
        for at, size in enumerate(widths):
            if width is not None and at > first and end + 2 + size > width:
                yield range(first, at)
                first, end = at, self.indent + _FURTHER - 2
            end += 2 + size
        yield range(first, len(widths))

    def _line(
        self,
        row: Sequence[str],
        widths: Sequence[int],
        part: range,
        indent: int,
        tones: Tones = MappingProxyType({}),
    ) -> str:
        cells = []
        for at in part:
            room = " " * (widths[at] - size_of(row[at]))
            cell = f"{_TONES[tones[at]]}{row[at]}\x1b[0m" if at in tones and row[at] else row[at]
            cells.append(room + cell if at in self.right else cell + room)
        return f"{' ' * indent}{'  '.join(cells)}".rstrip()


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(size_of, column)) for column in zip(*rows, strict=True)]


class TableLine(str):
    """A line of a table, whole, that knows its row: a terminal may show it otherwise."""

    __slots__ = ("row", "table")

    table: Table
    row: int


def columns(
    rows: Iterable[Sequence[str]],
    right: Container[int] = (),
    *,
    indent: int = 2,
    paths: int | None = None,
    is_prose: bool = False,
    tones: Iterable[Tones] = (),
) -> Iterator[TableLine]:
    """Yield rows of cells as lines, each column as wide as its widest cell; see `Table`."""
    shown = tuple(tuple(map(printable, row)) for row in rows)
    table = Table(shown, right, indent, paths, is_prose, tuple(tones))
    for number, (line,) in enumerate(table.lines()):
        found = TableLine(line)
        found.table, found.row = table, number
        yield found


def fitted(lines: Iterable[str], width: int | None, *, color: bool = False) -> Iterator[str]:
    """Yield lines as a terminal of this width shows them; None for no end."""
    width = None if width is None or width < NARROW else width
    if width is None and not color:
        yield from lines
        return
    table, laid_out = None, [[""]]
    for line in lines:
        parts = [line]
        if isinstance(line, TableLine):
            if line.table is not table:
                table, laid_out = line.table, line.table.lines(width, color=color)
            parts = laid_out[line.row]
        for part in parts:
            yield from (part,) if width is None else folded(part, width)


def folded(line: str, width: int) -> Iterator[str]:
    """Yield one line in lines of a width: cells go below whole, the words of a long one as well.

    A comment of a file goes on as a comment.

    >>> list(folded("names   embed heads kv mlp vocab   " + "from " * 9, 40))
    ['names   embed heads kv mlp vocab', '    from from from from from from from', '    from from']
    >>> list(folded("note  one device of two is missing in this capture", 40))
    ['note  one device of two is missing in', '      this capture']
    """
    if size_of(line) <= width:
        yield line
        return
    indent = line[: len(line) - len(line.lstrip())]
    done, below = "", indent + ("# " if line.startswith("# ", len(indent)) else " " * _FURTHER)
    for gap, text in re.findall(_CELL, line):
        if size_of(done + gap + text) <= width:
            done += gap + text
            continue
        is_label = len(done + gap) <= _LABEL and "  " not in done.strip()
        if (
            done
            and not is_label
            and (size_of(below + text) <= width or size_of(done + gap) > width // 2)
        ):
            yield done
            done, gap = "", below
        start = size_of(done + gap)
        first, *rest = wrapped(text, width + 1, start, start if done else len(below))
        done += gap + first
        for part in rest:
            yield done
            done = (" " * start if start > len(below) else below) + part
    yield done


def joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page with those of each paragraph as one; code stands further right."""
    text = re.sub(r"(?<!\n)\n(?=\S)", " ", "\n".join(lines))
    yield from text.split("\n")


def size_of(text: str) -> int:
    """Return how many columns of a terminal a text takes, colours left out.

    >>> size_of("kernel"), size_of("層"), size_of("e\u0301")
    (6, 2, 1)
    """
    text = re.sub(_COLOR, "", text) if "\x1b" in text else text
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def shortened(path: str, room: int) -> str:
    """Return a path with as much of its middle left out as must be; its last two parts stay.

    >>> shortened("decoder/layers_{0..23}/self_attention/key/kernel x24", 45)
    'decoder/.../self_attention/key/kernel x24'

    Of a line and that of its helper, each is cut by itself:

    >>> shortened("project/models/model.py:7 (in project/models/layers/mlp.py:5)", 50)
    '.../model.py:7 (in project/.../layers/mlp.py:5)'
    """
    if len(path) <= room:
        return path
    line, inside, helper = path.partition(_INSIDE)
    if inside and helper.endswith(")"):
        left = room - len(inside) - len(os.path.basename(line)) - len(".../")
        helper = f"{shortened(helper[:-1], max(left - 1, _LEAST_PATH))})"
        return f"{shortened(line, max(room - len(inside + helper), _LEAST_PATH))}{inside}{helper}"
    parts = path.split("/")
    ways = [
        "/".join((*parts[:start], "...", *parts[end:]))
        for end in range(2, max(len(parts) - 1, 3))
        for start in range(1, end)
    ]
    fitting = [way for way in ways if len(way) <= room]
    if fitting:
        return max(fitting, key=len)
    head = max(room - 3, 2) // 2
    return f"{path[:head]}...{path[len(path) - max(room - 3 - head, 1) :]}"
