"""From a name to where it is stated, to where else it stands, and to another name for it.

All that a spec extends is looked at. A rename changes files of the project alone, and is refused,
with the reason, where a name also stands in what cannot be changed, or where the spec would not
mean the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lsprotocol import types

from shardspec import assets, fixing, pipeline
from shardspec.diagnostics import Edit, Fix, Span
from shardspec.diagnostics.diagnostic import apply
from shardspec.ir.spec import axis_of
from shardspec.language import catalogue
from shardspec.language.files import real_path
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import HardwareExpr, NamesExpr
from shardspec.lsp.findings import workspace_edit
from shardspec.lsp.names import Kind, Use
from shardspec.lsp.snapshot import Snapshot
from shardspec.resolve.match import PathMatcher

#: Places shown of the arrays that a pattern stands for.
_MOST = 50
#: What a rename is about; the names of others stand in code, or are files.
RENAMED = frozenset({Kind.LOGICAL_AXIS, Kind.MESH_AXIS, Kind.NUMBER, Kind.TARGET, Kind.PHASE})
#: How codes begin of what keeps a text, or a file that it names, from being read.
_OF_FORM = "SHD00"
_FILES: dict[Kind, assets.SpecKind] = {
    Kind.BASE: "presets",
    Kind.MANIFEST: "arrays",
    Kind.STEP: "steps",
}


class RefusedError(Exception):
    """Why a name cannot be changed, for the person who asked."""


def use_at(snapshot: Snapshot, offset: int) -> Use | None:
    """Return the name at an offset, the shortest of several; None where there is none."""
    found = (use for use in snapshot.uses if use.span.start <= offset <= use.span.end)
    return min(found, key=lambda use: (len(use.span.text), use.kind is Kind.WORD), default=None)


def definitions(snapshot: Snapshot, offset: int) -> list[types.Location]:
    """Return where the name at an offset is stated, or the file that it stands for."""
    use = use_at(snapshot, offset)
    if use is None:
        return []
    if use.kind in _FILES or use.kind is Kind.HARDWARE:
        path = _hardware_file(use) if use.kind is Kind.HARDWARE else file_of(use, snapshot)
        location = None if path is None else snapshot.file_location(str(path))
        return [] if location is None else [location]
    if use.kind is Kind.PATTERN:
        return _located((each.span for each in _arrays_of(use, snapshot)), snapshot)
    alike = _alike(use, snapshot)
    stated = [each for each in alike if each.is_definition]
    if not stated and use.kind is Kind.LOGICAL_AXIS:
        stated = [each for each in alike if "rules" in each.route]
    return _located((each.span for each in stated), snapshot)


def file_of(use: Use, snapshot: Snapshot) -> str | None:
    """Return the path of the file that `extends:`, `manifest:` or a step names."""
    kind = _FILES[use.kind]
    bundled = assets.spec_path(kind, use.name)
    if bundled is not None:
        return str(bundled)
    folder = os.path.dirname(use.span.source.name)
    return os.path.normpath(os.path.join(folder, use.name))


def _hardware_file(use: Use) -> Path | None:
    """Return the file of the catalogue that describes a machine, with its sources."""
    parsed = expressions.parse_hardware(use.name)
    name = parsed.chip.text.lower() if isinstance(parsed, HardwareExpr) else ""
    names = catalogue.hardware_names()
    file = names.get(name) or names.get(name.partition("-")[0])
    return assets.spec_path("hardware", file) if file else None


def _arrays_of(use: Use, snapshot: Snapshot) -> Iterator[Use]:
    """Yield the entries of `arrays:` that some array of a pattern comes from."""
    matcher = PathMatcher((use.pattern,))
    params = snapshot.spec.params if snapshot.spec else ()
    spans = {p.span: None for p in params if p.span and matcher.first_match(p.path) is not None}
    for span in [*spans][:_MOST]:
        yield use._replace(span=span)


def references(snapshot: Snapshot, offset: int, *, with_stated: bool) -> list[types.Location]:
    """Return where the name at an offset stands."""
    use = use_at(snapshot, offset)
    if use is None:
        return []
    alike = (each for each in _alike(use, snapshot) if with_stated or not each.is_definition)
    return _located((each.span for each in alike), snapshot)


def own_references(snapshot: Snapshot, offset: int) -> list[types.DocumentHighlight]:
    """Return where the name at an offset stands in this text."""
    use = use_at(snapshot, offset)
    if use is None or use.kind is Kind.WORD:
        return []
    alike = (each for each in _alike(use, snapshot) if snapshot.is_own(each.span))
    write, read = types.DocumentHighlightKind.Write, types.DocumentHighlightKind.Read
    return [
        types.DocumentHighlight(
            snapshot.lines.range_of(each.span), write if each.is_definition else read
        )
        for each in alike
    ]


def _alike(use: Use, snapshot: Snapshot) -> list[Use]:
    """Return the uses of the same name for the same thing, in all that the spec is made of."""
    return [each for each in snapshot.all_uses if (each.kind, each.name) == (use.kind, use.name)]


def _located(spans: Iterable[Span | None], snapshot: Snapshot) -> list[types.Location]:
    places = (snapshot.location(span) for span in dict.fromkeys(spans) if span is not None)
    return [place for place in places if place is not None]


# renaming


def renamed_range(snapshot: Snapshot, offset: int) -> types.PrepareRenamePlaceholder:
    """Return the name that would be changed.

    Raises:
      RefusedError: there is none here, or it cannot be changed.
    """
    use = _to_rename(snapshot, offset)
    return types.PrepareRenamePlaceholder(snapshot.lines.range_of(use.span), use.name)


def renamed(snapshot: Snapshot, offset: int, new: str) -> types.WorkspaceEdit:
    """Return the edits that give a name another spelling in all places.

    Raises:
      RefusedError: the spec would not mean the same, or files that are not to be changed have it.
    """
    use = _to_rename(snapshot, offset)
    new = new.strip()
    if new == use.name:
        return types.WorkspaceEdit(changes={})
    _must_be_free(new, use, snapshot)
    edits = [Edit(each.span, new) for each in _alike(use, snapshot)]
    _must_read_as_well(edits, snapshot)
    return workspace_edit(edits, snapshot)


def renamed_everywhere(
    snapshot: Snapshot, children: Iterable[Snapshot], offset: int, new: str
) -> types.WorkspaceEdit:
    """Return the edits of a rename, in the open specs that extend this one as well.

    Raises:
      RefusedError: as `renamed`, of any of them.
    """
    use = _to_rename(snapshot, offset)
    edits = [renamed(snapshot, offset, new)]
    for child in children:
        alike = [each for each in child.uses if (each.kind, each.name) == (use.kind, use.name)]
        if alike:
            edits.append(renamed(child, alike[0].span.start, new))
    changes: dict[str, list[types.TextEdit]] = {}
    for uri, found in ((uri, found) for e in edits for uri, found in (e.changes or {}).items()):
        known = changes.setdefault(uri, [])
        known += [each for each in found if each not in known]
    return types.WorkspaceEdit(changes=changes)


def _to_rename(snapshot: Snapshot, offset: int) -> Use:
    use = use_at(snapshot, offset)
    if use is None or use.kind not in RENAMED:
        what = f"a {use.kind}" if use is not None else "no name"
        raise RefusedError(f"this is {what}; axes, names of `let`, targets and phases are renamed")
    unread = next((each for each in snapshot.found if each.code.id.startswith(_OF_FORM)), None)
    if unread is not None:
        said = snapshot.said(unread.message)
        raise RefusedError(f"mend this first, for what is not read may hold the name: {said}")
    for each in _alike(use, snapshot):
        _must_be_changeable(each, snapshot)
    if use.kind is Kind.LOGICAL_AXIS:
        _must_not_be_carried(use, snapshot)
    return use


def _must_be_changeable(use: Use, snapshot: Snapshot) -> None:
    name, place = use.span.source.name, snapshot.said(use.span.place)
    also = f"`{use.name}` also stands in {place}"
    if not os.path.isabs(name):
        raise RefusedError(f"{also}, which comes with shardspec")
    if not fixing.may_change(name, [snapshot.path]):
        raise RefusedError(f"{also}, outside the folder of this file")
    if use.span.text != use.name:
        raise RefusedError(f"{place} spells `{use.name}` with escapes: write it plainly first")


def _must_not_be_carried(use: Use, snapshot: Snapshot) -> None:
    """Refuse where arrays of a manifest carry the name: the text of the spec does not hold it."""
    known = {each.span.source.name for each in snapshot.all_uses}
    for param in snapshot.spec.params if snapshot.spec else ():
        names = map(axis_of, filter(None, param.logical_axes or ()))
        if use.name in names and (param.span is None or param.span.source.name not in known):
            place = snapshot.said(param.span.place) if param.span else "its manifest"
            raise RefusedError(f"the array `{param.path}` of {place} carries the name `{use.name}`")


def _must_be_free(new: str, use: Use, snapshot: Snapshot) -> None:
    parsed = expressions.parse_names(new)
    is_name = isinstance(parsed, NamesExpr) and [n.text for n in parsed.names if n] == [new]
    if use.kind not in (Kind.TARGET, Kind.PHASE) and (not is_name or axis_of(new) != new):
        help = "letters, digits and `_`, with `-` and `.` inside; `none` is taken"
        raise RefusedError(f"`{new}` is no name for a {use.kind}: {help}")
    if not new or not new.isprintable():
        raise RefusedError(f"`{new}` is no name for a {use.kind}")
    sizes = {Kind.LOGICAL_AXIS, Kind.NUMBER}
    kinds = sizes if use.kind in sizes else {use.kind}
    for each in snapshot.all_uses:
        if each.kind in kinds and each.name == new:
            place = snapshot.said(each.span.place)
            raise RefusedError(f"`{new}` is the name of a {each.kind} already: {place}")


def _must_read_as_well(edits: Sequence[Edit], snapshot: Snapshot) -> None:
    """Refuse a new name with which the spec has findings that it has not now."""
    edited = apply([Fix("rename", tuple(_canonical(edit) for edit in edits))])
    texts = {**snapshot.texts, **edited.texts}
    spec, faults = pipeline.load_path(snapshot.path, texts=texts)
    found = faults if spec is None else pipeline.check(spec, faults, spec.params).shown
    more = Counter(each.code.id for each in found)
    more -= Counter(each.code.id for each in snapshot.found)
    new = next((each for each in found if each.code.id in more), None)
    if new is not None:
        raise RefusedError(f"the spec would have a fault then: {snapshot.said(new.message)}")


def _canonical(edit: Edit) -> Edit:
    """Return an edit of a file by its real path."""
    span = edit.span
    source = replace(span.source, name=real_path(span.source.name))
    return Edit(Span(source, span.start, span.end), edit.text)
