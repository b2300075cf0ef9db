"""Edits that take one entry out of a list or mapping, and leave all others as they stand.

YAML has two ways to write an entry, on lines of its own or between brackets; the DSL writes it on
a line, or between `;`. Each goes with what parts it from its neighbours, and with the comment
behind it. The only entry of a list has no such edit: what would be left is no list.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from shardspec.diagnostics import Edit, SourceFile, Span
from shardspec.language.reading import is_dsl

if TYPE_CHECKING:
    from shardspec.language.dsl_text.layout import Statement

_Kind = Literal["item", "key"]

#: Inside brackets: text in quotes, a comment, or one other character.
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|(?<=\s)#[^\n]*|.', re.DOTALL)
_DASH = re.compile(r"-[ \t]+")
_BAR = re.compile(r"\s*\|")


def without_alternative(span: Span) -> Edit | None:
    """Return the edit that takes `y` out of `a -> x | y`; None where it stands alone."""
    text = span.source.text
    line = text.rfind("\n", 0, span.start) + 1
    before = re.search(r"(?<![ \t])[ \t]*+\|[ \t]*+$", text[line : span.start])
    if before is not None:
        return Edit(Span(span.source, line + before.start(), span.end), "")
    after = re.compile(r"[ \t]*\|[ \t]*").match(text, span.end)
    return Edit(Span(span.source, span.start, after.end()), "") if after else None


def is_only_alternative(span: Span) -> bool:
    """Say whether no `|` stands beside an alternative, on its line or the next."""
    return is_first_alternative(span) and not _BAR.match(span.source.text, span.end)


def is_first_alternative(span: Span) -> bool:
    """Say whether no `|` stands before an alternative: it begins the right side of a rule."""
    text, at = span.source.text, span.start
    while at and text[at - 1].isspace():
        at -= 1
    return not text.endswith("|", 0, at)


def without_item(span: Span) -> Edit | None:
    """Return the edit that takes out the list item that holds `span`: a rule, an override."""
    return _without(span, "item")


def without_key(span: Span) -> Edit | None:
    """Return the edit that takes out the `key: value` whose key is at `span`."""
    return _without(span, "key")


def _without(span: Span, kind: _Kind) -> Edit | None:
    if is_dsl(span.source):
        return _from_dsl(span)
    opening = "[" if kind == "item" else "{"
    outer = _brackets(span.source).around(span.start, opening)
    return _from_lines(span, kind) if outer is None else _from_brackets(span, outer)


class _Brackets:
    """Where `[...]` and `{...}` stand in a YAML text, and which stands in which."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start, -span.end))
        self.starts = [span.start for span in self.spans]
        self.outer: list[int] = []
        for index, span in enumerate(self.spans):
            above = index - 1
            while above >= 0 and self.spans[above].end <= span.start:
                above = self.outer[above]
            self.outer.append(above)

    def around(self, offset: int, opening: str) -> Span | None:
        """Return the innermost pair that opens with `opening` and holds the offset."""
        at = bisect_left(self.starts, offset) - 1
        while at >= 0:
            span = self.spans[at]
            if offset < span.end and span.source.text[span.start] == opening:
                return span
            at = self.outer[at]
        return None


@lru_cache(maxsize=8)
def _brackets(source: SourceFile) -> _Brackets:
    from shardspec.language.yaml_text.reader import read_yaml

    reading, _ = read_yaml(source, with_comments=False)
    values = reading.source_map.values.values() if reading else ()
    return _Brackets(e.span for e in values if not e.text and e.span.text[:1] in ("[", "{"))


def _from_brackets(span: Span, outer: Span) -> Edit | None:
    pieces = _pieces(outer.source, outer.start, outer.end)
    at = bisect_right(pieces, span.start, key=lambda piece: piece[0]) - 1
    if at < 0 or len(pieces) < 2 or span.start >= pieces[at][1]:
        return None
    text = span.source.text
    start, end = pieces[at]
    if "#" in text[start:end]:
        return None
    first = start + len(text[start:end]) - len(text[start:end].lstrip())
    last = start + len(text[start:end].rstrip())
    if at == len(pieces) - 1:
        return Edit(Span(span.source, start - 1, last), "")
    line = text.rfind("\n", 0, first) + 1
    rest = re.compile(r"[ \t\r]*\n").match(text, end + 1)
    if rest is not None and not text[line:first].strip():
        return Edit(Span(span.source, line, rest.end()), "")
    after = re.compile(r"[ \t]*(?!#)").match(text, end + 1)
    return Edit(Span(span.source, first, after.end() if after else end + 1), "")


@lru_cache(maxsize=64)
def _pieces(source: SourceFile, opening: int, closing: int) -> tuple[tuple[int, int], ...]:
    """Return start and end of what stands between the commas of one pair of brackets."""
    return tuple(_between_commas(source.text, opening, closing))


def _between_commas(text: str, opening: int, closing: int) -> Iterator[tuple[int, int]]:
    depth = 0
    start = opening + 1
    for found in _PIECE.finditer(text, opening, closing):
        char = found[0]
        depth += (char in "[{") - (char in "]}")
        if depth == 1 and char == ",":
            yield start, found.start()
            start = found.end()
    if text[start : closing - 1].strip():
        yield start, closing - 1


def _from_lines(span: Span, kind: _Kind) -> Edit | None:
    lines = _lines(span.source)
    line = lines.number(span.start)
    column = span.start - lines.starts[line]
    first = lines.item_of(line) if kind == "item" else line
    if first is None or (kind == "key" and lines.texts[line][:column].strip()):
        return None
    column = lines.indent(first)
    last = lines.last_of(first, column, has_dashes=kind == "key")
    if not lines.has_neighbour(first, last, column):
        return None
    return lines.cut(first, last)


class _Lines:
    """A text line by line."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.texts: list[str] = re.findall(r"[^\n]*\n|[^\n]+$", source.text)
        self.starts = [0]
        for text in self.texts:
            self.starts.append(self.starts[-1] + len(text))

    def number(self, offset: int) -> int:
        """Return which line, counted from 0, an offset is on."""
        return bisect_right(self.starts, offset, hi=max(len(self.texts), 1)) - 1

    def indent(self, line: int) -> int:
        """Return the number of blanks that a line begins with."""
        return len(self.texts[line]) - len(self.texts[line].lstrip(" "))

    def rest(self, line: int) -> str:
        """Return a line without the blanks that it begins with."""
        return self.texts[line].lstrip(" ")

    def is_idle(self, line: int) -> bool:
        """Say whether a line holds a comment or nothing."""
        return not self.rest(line).strip() or self.rest(line).startswith("#")

    def item_of(self, line: int) -> int | None:
        """Return the line on which the list item begins that a line is part of."""
        inner = self.indent(line) + 1
        for above in range(line, -1, -1):
            if self.is_idle(above) or self.indent(above) >= inner:
                continue
            if found := _DASH.match(self.rest(above)):
                is_nested = _DASH.match(self.rest(above), found.end())
                return None if is_nested else above
            inner = self.indent(above)
        return None

    def last_of(self, first: int, column: int, *, has_dashes: bool) -> int:
        """Return the last line of an entry: those below it that go deeper.

        Args:
          has_dashes: whether list items in its own column belong to it, as they do to a key.
        """
        last = first
        for line in range(first + 1, len(self.texts)):
            if self.is_idle(line):
                continue
            deeper = self.indent(line) > column
            if not deeper and not (
                has_dashes and self.indent(line) == column and _DASH.match(self.rest(line))
            ):
                break
            last = line
        return last

    def has_neighbour(self, first: int, last: int, column: int) -> bool:
        """Say whether an entry is not the only one of its list or mapping."""
        before = (n for n in range(first - 1, -1, -1) if not self.is_idle(n))
        above = next((n for n in before if self.indent(n) <= column), None)
        below = next((n for n in range(last + 1, len(self.texts)) if not self.is_idle(n)), None)
        is_item = bool(_DASH.match(self.rest(first)))
        return any(
            line is not None
            and self.indent(line) == column
            and bool(_DASH.match(self.rest(line))) == is_item
            for line in (above, below)
        )

    def cut(self, first: int, last: int) -> Edit:
        """Return the edit that removes whole lines; a text without a last line break stays so."""
        start, end = self.starts[first], self.starts[last + 1]
        if not self.source.text.endswith("\n", 0, end):
            while start and self.source.text[start - 1] in "\r\n":
                start -= 1
        return Edit(Span(self.source, start, end), "")


@lru_cache(maxsize=8)
def _lines(source: SourceFile) -> _Lines:
    return _Lines(source)


def _from_dsl(span: Span) -> Edit | None:
    statements = _statements(span.source)
    outer = _holding(statements, span.start)
    if outer is None:
        return None
    entries = outer.entries or ()
    entry = _holding(entries, span.start)
    if entry is None:
        return _dsl_edit(span.source, outer.start, outer.stop)
    return _dsl_edit(span.source, entry.start, entry.end) if len(entries) > 1 else None


@lru_cache(maxsize=8)
def _statements(source: SourceFile) -> tuple[Statement, ...]:
    from shardspec.language.dsl_text.layout import lay_out

    return lay_out(source.text).statements


def _holding(statements: tuple[Statement, ...], offset: int) -> Statement | None:
    """Return which of statements in order the offset lies in."""
    at = bisect_right(statements, offset, key=lambda each: each.start) - 1
    return statements[at] if at >= 0 and offset < statements[at].stop else None


def _dsl_edit(source: SourceFile, start: int, end: int) -> Edit:
    text = source.text
    after = re.compile(r"[ \t]*;[ \t]*").match(text, end)
    line = text[text.rfind("\n", 0, start) + 1 : start]
    before = re.search(r"(?<![ \t])[ \t]*+;[ \t]*+$", line)
    if after is not None:
        return Edit(Span(source, start, after.end()), "")
    if before is not None:
        return Edit(Span(source, start - len(before[0]), end), "")
    lines = _lines(source)
    first, last = lines.number(start), lines.number(end)
    ahead = text[lines.starts[first] : start]
    behind = re.sub(r"\s#.*", "", text[end : lines.starts[last + 1]], flags=re.DOTALL)
    if ahead.strip() or behind.strip():
        return Edit(Span(source, start, end), "")
    return lines.cut(first, last)
