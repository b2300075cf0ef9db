"""Text that came from a file: pieces of it, and what of it is safe to show.

Text that came from a file, and pieces of it.

Everything that can be wrong points at a `Span`. A span holds offsets, and turns them into
lines and columns only when someone asks: a spec has thousands of spans and few are shown.

Text from files, made safe for a terminal.

Paths and names may hold anything, an escape sequence or a NUL too. Shown raw they could move the
cursor or hide what stands before them; here they show as what they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One text with the name to show for it.

    Attributes:
      name: as the user wrote it: a relative path, `-`, or `preset:t5x/2d`.
      text: the decoded text, without a byte order mark.
      included_from: the place that pulled this file in, e.g. an `extends:` entry.
      is_outside: whether it lies outside the project, so that its lines are not shown.
    """

    name: str
    text: str = field(repr=False)
    included_from: Span | None = field(default=None, repr=False)
    is_outside: bool = field(default=False, repr=False)

    @property
    def whole(self) -> Span:
        """Return the span of the first line: for findings about the file itself."""
        end = self.text.find("\n")
        return Span(self, 0, len(self.text) if end < 0 else end)

    def lines(self) -> Iterator[tuple[str, Span]]:
        """Yield each line, without what ends it, and its place."""
        start = 0
        for text in self.text.split("\n"):
            yield text, Span(self, start, start + len(text))
            start += len(text) + 1

    def line_span(self, line: int) -> Span:
        """Return where line number `line` (from 1) stands, without its line break."""
        start = _line_starts(self.text)[line - 1]
        end = self.text.find("\n", start)
        return Span(self, start, len(self.text) if end < 0 else end)

    def line_text(self, line: int) -> str:
        """Return line number `line` (from 1), without its line break."""
        return self.line_span(line).text.rstrip("\r")


@lru_cache(maxsize=32)
def _line_starts(text: str) -> tuple[int, ...]:
    """Return the offset of the first character of every line."""
    starts, at = [0], text.find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    return tuple(starts)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters `[start, end)` of one source.

    Invariants:
      in_bounds: 0 <= start <= end <= len(source.text).
    """

    source: SourceFile
    start: int
    end: int

    @property
    def text(self) -> str:
        """Return the characters under the span."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """Return the line of the first character, counted from 1."""
        return bisect_right(_line_starts(self.source.text), self.start)

    @property
    def column(self) -> int:
        """Return the column of the first character, counted in characters from 1."""
        return self.start - _line_starts(self.source.text)[self.line - 1] + 1

    @property
    def place(self) -> str:
        """Return `name:line`: what reports show beside a fact."""
        return f"{self.source.name}:{self.line}"

    def __contains__(self, other: Span) -> bool:
        """Say whether another span is within this one."""
        return self.source is other.source and self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        """Return `name:line:column`, which terminals turn into a link."""
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A value read from a file, with the way back from its characters to the file's.

    A quoted scalar starts one character after its span; after an escape or a line fold the
    characters of the value no longer line up with those of the file. `start` is the offset
    of the value's first character where they do line up, else None, and then every part of
    the value points at the whole of it.
    """

    text: str
    span: Span = field(compare=False, repr=False)
    start: int | None = field(default=None, compare=False, repr=False)

    def at(self, start: int, end: int) -> Span:
        """Return the span of `text[start:end]`, or of the whole where that is not known."""
        if self.start is None:
            return self.span
        return Span(self.span.source, self.start + start, self.start + end)

    def part(self, start: int, end: int) -> Excerpt:
        """Return `text[start:end]` as an excerpt of its own."""
        inner = None if self.start is None else self.start + start
        return Excerpt(self.text[start:end], self.at(start, end), inner)


def excerpt_of(text: str, name: str = "<string>") -> Excerpt:
    """Return `text` as an excerpt of a source that holds nothing else."""
    return Excerpt(text, Span(SourceFile(name, text), 0, len(text)), 0)


def printable(text: str) -> str:
    r"""Return `text` with each character that does not print as its escape: `\x1b`, `\n`.

    >>> print(printable("a\x1b[31m"), printable("é 層"))
    a\x1b[31m é 層
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def printable_json(text: str) -> str:
    r"""Return JSON with each character that does not print as the escape that JSON has for it.

    >>> print(printable_json('"\u202e\U000e0001"'))
    "\u202e\udb40\udc01"
    """
    lines = text.split("\n")
    if all(line.isprintable() for line in lines):
        return text
    import json

    return "\n".join(
        "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line) for line in lines
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
