"""Findings as an editor shows them, and their fixes as it offers them.

A finding in a file that the spec pulls in stands where it is pulled in, and leads to the file. A
fix that is sure is preferred; any other says that it may not be what is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lsprotocol import types

from shardspec import fixing, pipeline
from shardspec.diagnostics import Diagnostic, Edit, Fix, Severity, Span
from shardspec.language.files import real_path
from shardspec.lsp.snapshot import Snapshot

SOURCE = "shardspec"
_UNSURE = "may not be what you mean"
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
}
#: Findings shown; a file broken from end to end has thousands.
MOST_SHOWN = 500


def diagnostics(snapshot: Snapshot) -> list[types.Diagnostic]:
    """Return all findings of a spec, those in files that it pulls in too."""
    return [_diagnostic(found, snapshot) for found in snapshot.found[:MOST_SHOWN]]


def _diagnostic(found: Diagnostic, snapshot: Snapshot) -> types.Diagnostic:
    label = found.primary
    place = None if label is None else snapshot.own_place(label.span)
    remarks = [found.message, *(f"note: {note}" for note in found.notes)]
    remarks += [f"help: {found.help}"] if found.help else []
    return types.Diagnostic(
        range=snapshot.lines.range_of(place or snapshot.source.whole),
        message=snapshot.said("\n".join(remarks)),
        severity=_SEVERITIES[found.severity],
        code=found.code.id,
        source=SOURCE,
        related_information=[*_related(found, place, snapshot)] or None,
    )


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


def actions(snapshot: Snapshot, start: int, end: int) -> list[types.CodeAction]:
    """Return the fixes of the findings that touch a stretch of the text."""
    touched = [each for each in snapshot.found if _touches(each, snapshot, start, end)]
    return [*_fixes(touched, snapshot), *_silences(touched, snapshot)]


def _touches(found: Diagnostic, snapshot: Snapshot, start: int, end: int) -> bool:
    places = (snapshot.own_place(label.span) for label in found.labels if label.primary)
    return any(each is not None and each.start <= end and start <= each.end for each in places)


def _fixes(touched: Iterable[Diagnostic], snapshot: Snapshot) -> Iterator[types.CodeAction]:
    offered = set[Fix]()
    for found in touched:
        for fix in fixing.fixes_within([found], [snapshot.path]):
            if fix in offered:  # by the same line on another target
                continue
            offered.add(fix)
            title = fix.title if fix.is_sure else f"{fix.title} ({_UNSURE})"
            action = _quick_fix(f"{title[:1].upper()}{title[1:]}", found, fix.edits, snapshot)
            action.is_preferred = fix.is_sure
            yield action


def _silences(touched: Iterable[Diagnostic], snapshot: Snapshot) -> Iterator[types.CodeAction]:
    """Yield a comment for each line that a finding stands on, where it has none."""
    offered = set[tuple[int, str]]()
    for found in touched:
        label = found.primary
        if label is None or not snapshot.is_own(label.span) or found.code.is_fault:
            continue
        number = snapshot.lines.line_of(label.span.start)
        line = snapshot.lines.line(number)
        if "#" in line or not line.strip() or (number, found.code.id) in offered:
            continue
        offered.add((number, found.code.id))
        at = snapshot.lines.line_start(number) + len(line.rstrip())
        edit = Edit(Span(label.span.source, at, at), f"  # shardspec: ignore[{found.code.id}]")
        yield _quick_fix(f"Silence {found.code.id} on this line", found, [edit], snapshot)


def _quick_fix(
    title: str, found: Diagnostic, edits: Iterable[Edit], snapshot: Snapshot
) -> types.CodeAction:
    kind, about = types.CodeActionKind.QuickFix, [_diagnostic(found, snapshot)]
    return types.CodeAction(title, kind, about, edit=workspace_edit(edits, snapshot))


class _Fixing(fixing.Fixing):
    """A run over one open text, which takes what is sure."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Start with what the open buffers hold."""
        super().__init__([snapshot.path], is_unsafe=False)
        self.texts = dict(snapshot.texts)
        self.olds = dict(snapshot.texts)

    def look(self, file: str) -> Sequence[Diagnostic]:
        """Return what is found under the texts as they are now."""
        spec, faults = pipeline.load_path(file, texts=self.texts)
        return faults if spec is None else pipeline.check(spec, faults, spec.params).shown


def fix_all(snapshot: Snapshot) -> types.CodeAction | None:
    """Return what `check --fix` would do to this text; None where that is nothing."""
    if not any(found.fix and found.fix.is_sure for found in snapshot.found):
        return None
    run = _Fixing(snapshot)
    run.run()
    edits = snapshot.lines.edits_to(run.texts[real_path(snapshot.path)])
    title, kind = "Fix all that can be fixed beyond doubt", types.CodeActionKind.SourceFixAll
    edit = types.WorkspaceEdit(changes={snapshot.uri: edits})
    return types.CodeAction(title, kind, edit=edit) if edits else None


def workspace_edit(edits: Iterable[Edit], snapshot: Snapshot) -> types.WorkspaceEdit:
    """Return edits of this text and of others as the editor takes them."""
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        location = snapshot.location(edit.span)
        if location is not None:
            text = edit.span.source.text
            new = edit.text.replace("\n", "\r\n") if "\r\n" in text else edit.text
            changes.setdefault(location.uri, []).append(types.TextEdit(location.range, new))
    return types.WorkspaceEdit(changes=changes)
