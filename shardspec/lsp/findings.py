"""Findings as an editor shows them, and their fixes as it offers them.

A finding stands in the file at fault. One in a file that comes with shardspec, or lies outside the
project, stands where that file is pulled in, and leads there. A fix that is sure is preferred; any
other says that it may not be what is meant. An edit after which a file could not be parsed is not
offered.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shardspec import fixing, pipeline
from shardspec.diagnostics import Diagnostic, Edit, Fix, Severity, SourceFile, Span
from shardspec.diagnostics.diagnostic import apply
from shardspec.diagnostics.words import by_key, counted, listed
from shardspec.language import loader
from shardspec.language.files import real_path
from shardspec.language.reading import is_dsl
from shardspec.lsp import blocks, types
from shardspec.lsp.positions import Lines
from shardspec.lsp.python_calls import calls
from shardspec.lsp.snapshot import Snapshot

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
        ((each.code, each.message.partition("\n")[0], repr(each.range)), (spec, each))
        for spec, found in told.items()
        for each in found
    )
    found = (([spec for spec, _ in group], group[0][1]) for group in said.values())
    return [_for_specs(specs, first, file, unseen) for specs, first in found]


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
    before = {block.text for block in blocks.blocks(old, is_dsl=in_dsl)}
    found = blocks.blocks(new.text, is_dsl=in_dsl)
    changed = [block for block in found if block.text not in before]
    fresh = []
    for block in changed:
        source, of_form = blocks.faults(block, path, is_dsl=in_dsl)
        lines = Lines(source.text, new.encoding)
        for each in of_form:
            place = lines.range_of(each.primary.span if each.primary else source.whole)
            ends = (place.start, place.end)
            place = types.Range(*(replace(end, line=block.line_of(end.line)) for end in ends))
            fresh.append(_shown(each.spelt(is_dsl=in_dsl), place))
    stretches = ((each.line, each.line_of(each.text.count("\n"))) for each in changed)
    return [*blocks.moved(known, old, new.text, stretches), *fresh][:MOST_SHOWN]


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
