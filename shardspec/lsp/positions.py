"""Offsets of a text and the positions of an editor, which counts lines, and code units in them.

An editor ends a line at LF, CRLF or CR, and nowhere else, and counts UTF-16 units unless it and the
server agree on others; Python counts characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from shardspec.diagnostics import Span
from shardspec.lsp import types

_LINE_END = re.compile(r"\r\n|\n|\r")
_UTF16 = types.PositionEncodingKind.Utf16


class Lines:
    """A text as an editor counts it.

    Attributes:
      encoding: the units that columns are counted in.

    Invariants:
      round trip: the offset of the position of an offset is that offset, but between the two
        characters of a CRLF.
    """

    def __init__(self, text: str, encoding: types.PositionEncodingKind | str = _UTF16) -> None:
        """Start with a text; its lines are looked for when they are asked for."""
        self.text = text
        self.encoding = encoding

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *(found.end() for found in _LINE_END.finditer(self.text)))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Return where each line ends, without its line end."""
        return (*(found.start() for found in _LINE_END.finditer(self.text)), len(self.text))

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    @property
    def count(self) -> int:
        """Return the number of lines; one that ends the text without a line end is one."""
        return len(self._starts)

    def line(self, number: int) -> str:
        """Return the text of a line, counted from 0, without its line end."""
        return self.text[self._starts[number] : self._ends[number]]

    def line_start(self, number: int) -> int:
        """Return the offset of the first character of a line, counted from 0."""
        return self._starts[number]

    def line_of(self, offset: int) -> int:
        """Return the line of an offset, counted from 0."""
        return bisect_right(self._starts, offset) - 1 if offset > 0 else 0

    def position(self, offset: int) -> types.Position:
        """Return the position of an offset; one within a line end is at the end of its line."""
        number = self.line_of(offset)
        start, end = self._starts[number], self._ends[number]
        if offset < end:
            end = max(offset, 0)
        length = end - start if self._is_ascii else self.units(self.text[start:end])
        return types.Position(number, length)

    def offset(self, position: types.Position) -> int:
        """Return the offset of a position; one beyond a line, or the text, is at its end."""
        if position.line >= self.count:
            return len(self.text)
        number = max(position.line, 0)
        line = self.line(number)
        if line.isascii():
            return self._starts[number] + min(max(position.character, 0), len(line))
        left = position.character
        for at, char in enumerate(line):
            if left <= 0:
                return self._starts[number] + at
            left -= self.units(char)
        return self._ends[number]

    def units(self, text: str) -> int:
        """Return how long a piece of a line is for the editor."""
        if text.isascii() or self.encoding == types.PositionEncodingKind.Utf32:
            return len(text)
        if self.encoding == types.PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text) + sum(ord(char) > 0xFFFF for char in text)

    def range(self, start: int, end: int) -> types.Range:
        """Return the range of a half-open stretch of characters."""
        first = self.position(start)
        return types.Range(first, first if end == start else self.position(end))

    def range_of(self, span: Span) -> types.Range:
        """Return the range of a span of this text."""
        return self.range(span.start, span.end)

    def offsets(self, range_: types.Range) -> tuple[int, int]:
        """Return start and end of a range, in this order."""
        start, end = sorted((self.offset(range_.start), self.offset(range_.end)))
        return start, end

    def edits_to(self, new: str) -> list[types.TextEdit]:
        """Return the edit that makes another text of this one, and leaves both ends alone."""
        old = self.text
        if old == new:
            return []
        pairs = enumerate(zip(old, new, strict=False))
        start = next((at for at, (a, b) in pairs if a != b), min(len(old), len(new)))
        most = min(len(old), len(new)) - start
        tail = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
        start, tail = self._apart(start, len(old) - tail)
        end = len(new) - (len(old) - tail)
        return [types.TextEdit(self.range(start, tail), new[start:end])]

    def _apart(self, start: int, end: int) -> tuple[int, int]:
        """Return a stretch that does not begin or end within a CRLF."""
        if self.text[start - 1 : start + 1] == "\r\n":
            start -= 1
        if self.text[end - 1 : end + 1] == "\r\n":
            end += 1
        return start, end

    def each(self) -> Iterator[tuple[int, str]]:
        """Yield the lines, each with its number, counted from 0."""
        return ((number, self.line(number)) for number in range(self.count))
