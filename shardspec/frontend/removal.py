"""Edits that take one entry out of a list or mapping, and leave all others as they stand.

YAML has two ways to write an entry, on lines of its own or between brackets; the DSL writes it on
a line, or between `;`. Each goes with what parts it from its neighbours, and with the comment
behind it. The only entry of a list has no such edit: what would be left is no list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from shardspec.diagnostics import Edit, SourceFile, Span
from shardspec.frontend.spelling import is_dsl

_Kind = Literal["item", "key"]

#: Inside brackets: text in quotes, a comment, or one other character.
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|(?<=\s)#[^\n]*|.', re.DOTALL)
_DASH = re.compile(r"-[ \t]+")


def without_alternative(span: Span) -> Edit | None:
    """Return the edit that takes `y` out of `a -> x | y`; None where it stands alone."""
    text = span.source.text
    line = text.rfind("\n", 0, span.start) + 1
    before = re.search(r"[ \t]*\|[ \t]*$", text[line : span.start])
    if before is not None:
        return Edit(Span(span.source, line + before.start(), span.end), "")
    after = re.compile(r"[ \t]*\|[ \t]*").match(text, span.end)
    return Edit(Span(span.source, span.start, after.end()), "") if after else None


def is_only_alternative(span: Span) -> bool:
    """Say whether no `|` stands beside an alternative, on its line or the next."""
    text = span.source.text
    return not text[: span.start].rstrip().endswith("|") and not re.compile(r"\s*\|").match(
        text, span.end
    )


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
    inside = [each for each in _brackets(span.source) if each.start < span.start < each.end]
    inside = [each for each in inside if each.text[0] == opening]
    if inside:
        return _from_brackets(span, max(inside, key=lambda each: each.start))
    return _from_lines(span, kind)


@lru_cache(maxsize=8)
def _brackets(source: SourceFile) -> tuple[Span, ...]:
    """Return where `[...]` and `{...}` stand in a YAML text."""
    from shardspec.frontend.yaml_text.reader import read_yaml

    reading, _ = read_yaml(source, with_comments=False)
    values = reading.source_map.values.values() if reading else ()
    return tuple(e.span for e in values if not e.text and e.span.text[:1] in ("[", "{"))


def _from_brackets(span: Span, outer: Span) -> Edit | None:
    pieces = list(_between_commas(outer))
    at = next((n for n, (start, end) in enumerate(pieces) if start <= span.start < end), None)
    if at is None or len(pieces) < 2:
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


def _between_commas(outer: Span) -> Iterator[tuple[int, int]]:
    """Yield start and end of what stands between the commas of one pair of brackets."""
    text, depth = outer.source.text, 0
    start = outer.start + 1
    for found in _PIECE.finditer(text, outer.start, outer.end):
        char = found[0]
        depth += (char in "[{") - (char in "]}")
        if depth == 1 and char == ",":
            yield start, found.start()
            start = found.end()
    if text[start : outer.end - 1].strip():
        yield start, outer.end - 1


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
        return self.source.text.count("\n", 0, offset)

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
        above = next((n for n in range(first - 1, -1, -1) if self._bounds(n, column)), None)
        below = next((n for n in range(last + 1, len(self.texts)) if not self.is_idle(n)), None)
        is_item = bool(_DASH.match(self.rest(first)))
        return any(
            line is not None
            and self.indent(line) == column
            and bool(_DASH.match(self.rest(line))) == is_item
            for line in (above, below)
        )

    def _bounds(self, line: int, column: int) -> bool:
        return not self.is_idle(line) and self.indent(line) <= column

    def cut(self, first: int, last: int) -> Edit:
        """Return the edit that removes whole lines; a text without a last line break stays so."""
        start, end = self.starts[first], self.starts[last + 1]
        if not self.source.text[:end].endswith("\n"):
            start = len(self.source.text[:start].rstrip("\r\n"))
        return Edit(Span(self.source, start, end), "")


@lru_cache(maxsize=8)
def _lines(source: SourceFile) -> _Lines:
    return _Lines(source)


def _from_dsl(span: Span) -> Edit | None:
    from shardspec.frontend.dsl_text.layout import Statement, lay_out

    statements = lay_out(span.source.text).statements
    blocks: list[tuple[Statement, ...]] = [statements]
    blocks += [each.entries for each in statements if each.entries is not None]
    for entries in reversed(blocks):
        for each in entries:
            end = each.block_end if each.entries is not None else each.end
            if each.start <= span.start < end and (len(entries) > 1 or entries is statements):
                return _dsl_edit(span.source, each.start, end)
            if each.start <= span.start < end:
                return None
    return None


def _dsl_edit(source: SourceFile, start: int, end: int) -> Edit:
    text = source.text
    after = re.compile(r"[ \t]*;[ \t]*").match(text, end)
    before = re.compile(r"[ \t]*;[ \t]*$").search(text[text.rfind("\n", 0, start) + 1 : start])
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
