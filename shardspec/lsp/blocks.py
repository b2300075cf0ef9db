"""What is wrong with the form of a text, block by block: an edit reads the blocks that it changes.

A block is a section, or some entries of a long one under the section's head. Where a long section
is cut depends on the lines themselves, so that a line more or less moves no other cut. What only
the whole spec can tell is kept from the last look at it, moved along with its line, until the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.budget import SpentError, limited
from shardspec.language import loader
from shardspec.language.phases import lowered
from shardspec.lsp import types

#: Lines of a section that is read whole, and of how many entries one begins a block.
LONGEST, _EACH = 96, 32
#: Codes of faults that reading one block finds.
_OF_FORM = "SHD0"
_SECTION = re.compile(r"^[^\s#}\])-]", re.MULTILINE)
_ENTRY = re.compile(r"\n([ \t]+|(?=- ))(?=[^\s#])")


class Block(NamedTuple):
    """A piece of a text that can be read by itself.

    Attributes:
      text: what is read; `head` lines of it are the head of the section.
      line: the line of the text that the first line behind those is.
    """

    text: str
    line: int
    head: int = 0
    head_line: int = 0

    def line_of(self, number: int) -> int:
        """Return the line of the whole text that a line of the block is."""
        behind = number - self.head
        return self.line + behind if behind >= 0 else self.head_line + number


def blocks(text: str, *, is_dsl: bool) -> Iterator[Block]:
    """Yield the blocks of a text, in order."""
    starts = [0, *(found.start() for found in _SECTION.finditer(text) if found.start())]
    line = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        section = text[start:end]
        count = section.count("\n")
        if count > LONGEST:
            yield from _cut(section, line, is_dsl=is_dsl)
        else:
            yield Block(section, line)
        line += count


def _cut(section: str, line: int, *, is_dsl: bool) -> Iterator[Block]:
    """Yield the blocks of a long section: its head, with some of its entries each."""
    first = _ENTRY.search(section)
    if first is None or "\n" in section[: first.start()].strip():
        yield Block(section, line)
        return
    head, rest = section[: first.start() + 1], section[first.start() + 1 :]
    lines = rest.split("\n")
    indent = first[1]
    begin = line + head.count("\n")
    end = "}\n" if is_dsl else ""
    held: list[str] = []
    for number, each in enumerate(lines):
        is_entry = each.startswith(indent) and each[len(indent) : len(indent) + 1].strip("# }")
        if held and is_entry and crc32(each.encode("utf-8", "replace")) % _EACH == 0:
            yield _block(head, held, end, begin + number - len(held), line)
            held = []
        held.append(each)
    is_closed = any(each.startswith("}") for each in held)
    yield _block(head, held, "" if is_closed else end, begin + len(lines) - len(held), line)


def _block(head: str, lines: list[str], end: str, line: int, head_line: int) -> Block:
    return Block(f"{head}{chr(10).join(lines)}\n{end}", line, head.count("\n"), head_line)


def faults(block: Block, path: str, *, is_dsl: bool) -> tuple[SourceFile, list[Diagnostic]]:
    """Return what is wrong with the form of a block."""
    source = SourceFile(path, block.text)
    found: list[Diagnostic] = []
    try:
        with limited():
            reading, of_form = loader.read(loader.File(source, "", path, is_dsl))
            found += of_form
            if reading is not None:
                made = lowered(reading)
                found += (*made.shape, *made.lost)
    except SpentError:
        return source, []
    return source, found if block.text.strip() else []


def moved(
    known: Iterable[types.Diagnostic], old: str, new: str, changed: Iterable[tuple[int, int]]
) -> Iterator[types.Diagnostic]:
    """Yield findings of an older text where they stand now.

    Args:
      changed: the first and the last line of each block that is read anew, whose faults of form
        are not taken over.
    """
    first = _common(old, new)
    tail = min(_common(old[::-1], new[::-1]), min(len(old), len(new)) - first)
    line, last = old.count("\n", 0, first), old.count("\n", 0, len(old) - tail)
    more = new.count("\n") - old.count("\n")
    column, now = _column(old, len(old) - tail), _column(new, len(new) - tail)
    stretches = [*changed]

    def along(place: types.Position) -> types.Position:
        if (place.line, place.character) < (last, column):
            return place
        beside = (now - column) * (place.line == last)
        return types.Position(place.line + more, place.character + beside)

    for each in known:
        start, end = along(each.range.start), along(each.range.end)
        if end == each.range.end and start.line < line <= end.line:
            end = replace(end, line=max(start.line, end.line + more))
        start = min(start, end, key=lambda place: (place.line, place.character))
        is_form = str(each.code).startswith(_OF_FORM)
        if not (is_form and any(a <= start.line <= b for a, b in stretches)):
            yield replace(each, range=types.Range(start, end))


def _column(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
