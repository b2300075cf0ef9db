"""One report of libyaml, and the text around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span
from shardspec.diagnostics.codes import SYNTAX


@dataclass(frozen=True, slots=True)
class Trouble:
    """One report of libyaml.

    Attributes:
      at: offset of the character where it gave up.
      opened_at: offset where what it was reading began, or None.
    """

    source: SourceFile
    problem: str
    context: str
    at: int
    opened_at: int | None

    @property
    def text(self) -> str:
        """Return the whole text."""
        return self.source.text

    @property
    def char(self) -> str:
        """Return the character where libyaml gave up, or "" at the end."""
        return self.text[self.at : self.at + 1]

    def span(self, start: int, end: int | None = None) -> Span:
        """Return a span kept inside the text; one character long where `end` is None."""
        size = len(self.text)
        return Span(self.source, min(start, size), min(start + 1 if end is None else end, size))

    def line_start(self, offset: int) -> int:
        """Return where the line of `offset` starts."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Return the end of what stands on the line of `offset`, its comment left out."""
        end = self.text.find("\n", offset)
        line = self.text[offset : len(self.text) if end < 0 else end]
        return offset + len(re.split(r"\s#", line, maxsplit=1)[0].rstrip())

    def word_end(self, offset: int) -> int:
        """Return the end of the key or value that starts at `offset`."""
        end = self.line_end(offset)
        found = re.search(r":(?=\s|$)", self.text[offset:end])
        return offset + found.start() if found else end

    def is_line_start(self, offset: int) -> bool:
        """Say whether only blanks stand before `offset` on its line."""
        return not self.text[self.line_start(offset) : offset].strip()

    def report(
        self, message: str, span: Span, label: str, way_out: str | None, *others: Label
    ) -> Diagnostic:
        """Return the finding with its culprit at `span`."""
        return Diagnostic(SYNTAX, message, (Label(span, label), *others), help=way_out)


def advise_quotes(trouble: Trouble, start: int, end: int) -> str:
    """Return the advice to quote what stands there."""
    text = trouble.text[start:end]
    quote = "'" if '"' in text or "\\" in text else '"'
    return "quote it" if quote in text else f"quote it: {quote}{shorten(text)}{quote}"


def shorten(text: str) -> str:
    """Return text cut to what fits a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def indent_of(text: str, start: int) -> int:
    """Return the number of spaces at `start`."""
    rest = text[start : start + 4096]
    return len(rest) - len(rest.lstrip(" "))


def line_above(trouble: Trouble, start: int) -> Span | None:
    """Return what stands on the nearest line above that holds more than a comment."""
    while start > 0:
        start = trouble.line_start(start - 1)
        begin = start + indent_of(trouble.text, start)
        end = trouble.line_end(begin)
        if end > begin and trouble.text[begin] != "#":
            return trouble.span(begin, end)
    return None
