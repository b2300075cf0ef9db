"""Findings as an editor shows them, and their fixes as it offers them.

A finding stands in the file at fault. One in a file that comes with shardspec, or lies outside the
project, stands where that file is pulled in, and leads there. A fix that is sure is preferred; any
other says that it may not be what is meant. An edit after which a file could not be parsed is not
offered.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

from shardspec import fixing, pipeline
from shardspec.diagnostics import Diagnostic, Edit, Fix, Severity, SourceFile, Span
from shardspec.diagnostics.budget import SpentError, limited
from shardspec.diagnostics.diagnostic import apply
from shardspec.diagnostics.words import by_key, counted, listed
from shardspec.language import loader
from shardspec.language.files import real_path
from shardspec.language.phases import lowered
from shardspec.language.reading import is_dsl
from shardspec.lsp import types
from shardspec.lsp.python_calls import calls
from shardspec.lsp.snapshot import Lines, Snapshot

SOURCE = "shardspec"
_UNSURE = "may not be what you mean"
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
}
#: Findings shown; a file broken from end to end has thousands.
MOST_SHOWN = 500


def diagnostics(snapshot: Snapshot) -> dict[str, list[types.Diagnostic]]:
    """Return all findings of a spec by the real path of the file at fault, its own among them."""
    own = real_path(snapshot.path)
    placed = ((snapshot.place_of(each), each) for each in snapshot.found[:MOST_SHOWN])
    pairs = ((real_path(span.source.name), _diagnostic(each, snapshot)) for span, each in placed)
    return {own: [], **by_key(pairs)}


def merged(
    told: Mapping[str, Iterable[types.Diagnostic]], file: str, unseen: str = ""
) -> list[types.Diagnostic]:
    """Return what several specs find in one file, what they agree on once, and for which it is.

    Args:
      told: by the path of the spec.
      unseen: that not all specs of the file were looked at.
    """
    said = by_key(
        (key, (spec, each)) for spec, found in told.items() for key, each in _numbered(found)
    )
    found = (([spec for spec, _ in group], group[0][1]) for group in said.values())
    return [_for_specs(specs, first, file, unseen) for specs, first in found]


def _numbered(
    found: Iterable[types.Diagnostic],
) -> Iterator[tuple[tuple[object, ...], types.Diagnostic]]:
    """Yield findings of one spec, each with its head and place, and how often they came before."""
    before = Counter[tuple[object, ...]]()
    for each in found:
        head = (each.code, each.message.partition("\n")[0], repr(each.range))
        yield (*head, before[head]), each
        before[head] += 1


def _for_specs(
    specs: Sequence[str], found: types.Diagnostic, file: str, unseen: str
) -> types.Diagnostic:
    if file in specs:
        return found
    folder = os.path.dirname(file)
    shown = listed((os.path.relpath(each, folder) for each in specs), limit=6)
    for_specs = f"for {counted(len(specs), 'spec')}: {shown}{unseen}"
    return replace(found, message=f"{found.message}\n{for_specs}")


def _diagnostic(found: Diagnostic, snapshot: Snapshot) -> types.Diagnostic:
    place = snapshot.place_of(found)
    shown = _shown(found, snapshot.lines_of(place.source).range_of(place))
    related = tuple(_related(found, place, snapshot)) or None
    return replace(shown, message=snapshot.said(shown.message), related_information=related)


def _shown(found: Diagnostic, place: types.Range) -> types.Diagnostic:
    remarks = [found.message, *(f"note: {note}" for note in found.notes)]
    remarks += [f"help: {found.help}"] if found.help else []
    severity, code = _SEVERITIES[found.severity], found.code.id
    return types.Diagnostic(place, "\n".join(remarks), severity, code, source=SOURCE)


def while_typing(
    known: Iterable[types.Diagnostic], old: str, new: Lines, path: str
) -> list[types.Diagnostic]:
    """Return what is to be shown of a text that is typed: a large one is looked at when that rests.

    Args:
      known: what is shown of the text before.
    """
    in_dsl = is_dsl(SourceFile(path, new.text))
    before = {block.text for block in blocks(old, is_dsl=in_dsl)}
    found = blocks(new.text, is_dsl=in_dsl)
    changed = [block for block in found if block.text not in before]
    fresh = []
    for block in changed:
        source, of_form = faults(block, path, is_dsl=in_dsl)
        lines = Lines(source.text, new.encoding)
        for each in of_form:
            place = lines.range_of(each.primary.span if each.primary else source.whole)
            ends = (place.start, place.end)
            place = types.Range(*(replace(end, line=block.line_of(end.line)) for end in ends))
            fresh.append(_shown(each.spelt(is_dsl=in_dsl), place))
    stretches = ((each.line, each.line_of(each.text.count("\n"))) for each in changed)
    return [*moved(known, old, new.text, stretches), *fresh][:MOST_SHOWN]


def _related(
    found: Diagnostic, place: Span | None, snapshot: Snapshot
) -> Iterator[types.DiagnosticRelatedInformation]:
    """Yield the other places of a finding, first its own where that is in another file."""
    for label in found.labels:
        if label.span == place and not label.text:
            continue
        location = snapshot.location(label.span)
        if location is not None:
            said = label.text or (found.message if label.primary else "see also")
            yield types.DiagnosticRelatedInformation(location, snapshot.said(said))


def actions(
    snapshot: Snapshot, start: int, end: int, tops: Sequence[Snapshot] = ()
) -> list[types.CodeAction]:
    """Return the fixes of the findings that touch a stretch of the text.

    Args:
      tops: the specs that it is part of.
    """
    offered: dict[str, types.CodeAction] = {}
    for top in tops or [snapshot]:
        touched = [each for each in top.found if _touches(each, top, snapshot.path, start, end)]
        for action in (*_fixes(touched, top), *_silences(touched, top, snapshot.path)):
            offered.setdefault(f"{action.title} {action.edit}", action)
    return [*offered.values()]


def _touches(found: Diagnostic, top: Snapshot, path: str, start: int, end: int) -> bool:
    place = top.place_of(found)
    return place.source.name == path and place.start <= end and start <= place.end


def _fixes(touched: Iterable[Diagnostic], snapshot: Snapshot) -> Iterator[types.CodeAction]:
    offered = set[Fix]()
    for found in touched:
        for fix in fixing.fixes_within([found], [snapshot.path]):
            if fix in offered:  # by the same line on another target
                continue
            offered.add(fix)
            title = fix.title if fix.is_sure else f"{fix.title} ({_UNSURE})"
            for action in _quick_fix(f"{title[:1].upper()}{title[1:]}", found, fix.edits, snapshot):
                yield replace(action, is_preferred=fix.is_sure)


def _silences(
    touched: Iterable[Diagnostic], snapshot: Snapshot, path: str
) -> Iterator[types.CodeAction]:
    """Yield a comment for each line that a finding stands on, where it has none."""
    offered = set[tuple[int, str]]()
    for found in touched:
        label = found.primary
        if label is None or label.span.source.name != path or found.code.is_fault:
            continue
        lines = snapshot.lines_of(label.span.source)
        number = lines.line_of(label.span.start)
        line = lines.line(number)
        if "#" in line or not line.strip() or (number, found.code.id) in offered:
            continue
        offered.add((number, found.code.id))
        at = lines.line_start(number) + len(line.rstrip())
        edit = Edit(Span(label.span.source, at, at), f"  # shardspec: ignore[{found.code.id}]")
        yield from _quick_fix(f"Silence {found.code.id} on this line", found, [edit], snapshot)


def _quick_fix(
    title: str, found: Diagnostic, edits: Iterable[Edit], snapshot: Snapshot
) -> Iterator[types.CodeAction]:
    """Yield a fix, unless a text could not be read after it."""
    kind, about = types.CodeActionKind.QuickFix, (_diagnostic(found, snapshot),)
    try:
        yield types.CodeAction(title, kind, about, edit=workspace_edit(edits, snapshot))
    except UnparseableError:
        return


class _Fixing(fixing.Fixing):
    """A run over one open text, which takes what is sure."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Start with what the open buffers hold."""
        super().__init__([snapshot.path], is_unsafe=False)
        self.snapshot, self.texts = snapshot, dict(snapshot.texts)
        self.olds = dict(snapshot.texts)

    def look(self, file: str) -> Sequence[Diagnostic]:
        """Return what is found under the texts as they are now."""
        spec, faults = self.snapshot.load(self.texts)
        return faults if spec is None else pipeline.check(spec, faults, spec.params).shown


def fix_all(snapshot: Snapshot) -> types.CodeAction | None:
    """Return what `check --fix` would do to this text; None where that is nothing."""
    if not any(found.fix and found.fix.is_sure for found in snapshot.found):
        return None
    run = _Fixing(snapshot)
    run.run()
    text = run.texts[real_path(snapshot.path)]
    edits = snapshot.lines.edits_to(text) if parses_as_well(snapshot.source, text) else []
    title, kind = "Fix all that can be fixed beyond doubt", types.CodeActionKind.SourceFixAll
    edit = types.WorkspaceEdit(changes={snapshot.uri: edits})
    return types.CodeAction(title, kind, edit=edit) if edits else None


class UnparseableError(Exception):
    """The name of a file that could not be read after an edit."""


def workspace_edit(edits: Iterable[Edit], snapshot: Snapshot) -> types.WorkspaceEdit:
    """Return edits of this text and of others as the editor takes them.

    Raises:
      UnparseableError: a file could not be parsed after them.
    """
    edits = tuple(edits)
    for name, text in apply([Fix("edits", edits)]).texts.items():
        old = next(edit.span.source for edit in edits if edit.span.source.name == name)
        if not parses_as_well(old, text):
            raise UnparseableError(name)
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        location = snapshot.location(edit.span)
        if location is not None:
            text = edit.span.source.text
            new = edit.text.replace("\n", "\r\n") if "\r\n" in text else edit.text
            changes.setdefault(location.uri, []).append(types.TextEdit(location.range, new))
    return types.WorkspaceEdit(changes=changes)


def parses_as_well(old: SourceFile, new: str) -> bool:
    """Say whether a text of a file can be parsed, as far as the one before it can be."""
    if old.name.endswith(".py"):
        return not isinstance(calls(SourceFile(old.name, new)), Diagnostic)
    return not _faults(SourceFile(old.name, new)) - _faults(old)


def _faults(source: SourceFile) -> Counter[str]:
    """Return what is wrong with the form of a spec."""
    _, found = loader.read(loader.File(source, "", source.name, is_dsl(source)))
    return Counter(each.code.id for each in found)


# What is wrong with the form of a text, block by block: an edit reads the blocks that it changes.
#
# A block is a section, or some entries of a long one under the section's head. Where a long section
# is cut depends on the lines themselves, so that a line more or less moves no other cut. What only
# the whole spec can tell is kept from the last look at it, moved along with its line, until the
# next.


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
    at = _column(old, first)
    stretches = [*changed]

    def along(place: types.Position) -> types.Position:
        if (place.line, place.character) < (last, column):
            return place
        beside = (now - column) * (place.line == last)
        return types.Position(place.line + more, place.character + beside)

    for each in known:
        start, end = along(each.range.start), along(each.range.end)
        if end == each.range.end and start.line < line and (line, at) < (end.line, end.character):
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
