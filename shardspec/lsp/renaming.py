"""Another spelling for a name, in all specs of the project that have it, and in code.

A rename is refused, with the reason, where a name also stands in what cannot be changed or read, or
where a spec would not mean the same. Nothing is sent that leaves a file which cannot be parsed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, Edit, Fix, SourceFile, Span
from shardspec.diagnostics.diagnostic import apply
from shardspec.ir.spec import axis_of
from shardspec.language.files import real_path
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import NamesExpr
from shardspec.lsp import types
from shardspec.lsp.findings import UnparseableError, workspace_edit
from shardspec.lsp.kinds import Kind, RefusedError
from shardspec.lsp.names import Use
from shardspec.lsp.navigation import Family, use_at
from shardspec.lsp.project import in_words
from shardspec.lsp.python_calls import Called
from shardspec.lsp.snapshot import Snapshot

#: What a rename is about; the names of others are files, or say what they are.
RENAMED = frozenset({Kind.LOGICAL_AXIS, Kind.MESH_AXIS, Kind.NUMBER, Kind.TARGET, Kind.PHASE})
#: How codes begin of what keeps a text, or a file that it names, from being read.
_OF_FORM = "SHD0"


def renamed_range(snapshot: Snapshot, offset: int) -> types.PrepareRenamePlaceholder:
    """Return the name that would be changed.

    Raises:
      RefusedError: there is none here, or it cannot be changed.
    """
    use = _to_rename(Family(snapshot, (snapshot,)), offset)
    return types.PrepareRenamePlaceholder(snapshot.lines.range_of(use.span), use.name)


def renamed(family: Family, offset: int, new: str) -> types.WorkspaceEdit:
    """Return the edits that give a name another spelling in all places.

    Raises:
      RefusedError: a spec would not mean the same, or a file has the name that cannot be changed,
        or could have it and cannot be read.
    """
    use = _to_rename(family, offset)
    new = new.strip()
    if new == use.name:
        return types.WorkspaceEdit(changes={})
    _must_be_name(new, use)
    for member in family.members:
        _must_be_free(new, use, member)
    in_code = [*_in_code(use, family)]
    if in_code and set(new) & set("\\'\""):
        place = family.own.said(in_code[0].span.place)
        raise RefusedError(f"{place} has `{use.name}`: there `{new}` would be another text")
    unread = in_words(family.unread, use.name, family.own.said)
    if unread is not None:
        raise RefusedError(f"`{use.name}` could also stand in a file that is not read: {unread}")
    spans = [*(each.span for each in family.alike(use)), *(each.span for each in in_code)]
    edits = [Edit(span, new) for span in spans]
    texts = apply([Fix("rename", tuple(map(_canonical, edits)))]).texts
    for member in family.members:
        _must_read_as_well(texts, member)
    try:
        return workspace_edit(edits, family.own)
    except UnparseableError as fault:
        raise RefusedError(f"{family.own.said(str(fault))} could not be parsed then") from None


def unseen(family: Family, offset: int) -> str | None:
    """Return which calls may hold a name that was not changed there; None for none."""
    use = use_at(family.own, offset)
    name = "" if use is None else use.name
    places = [family.own.said(span.place) for span in family.unseen(name)]
    if not places:
        return None
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"`{name}` is not changed where code works names out: see {', '.join(places[:5])}{more}"


def _to_rename(family: Family, offset: int) -> Use:
    use = use_at(family.own, offset)
    if use is None or use.kind not in RENAMED:
        article = "no name" if use is None else "an" if use.kind[0] in "aeiou" else "a"
        what = article if use is None else f"{article} {use.kind}"
        raise RefusedError(f"this is {what}; axes, names of `let`, targets and phases are renamed")
    for member in family.members:
        unread = next(filter(_is_unread, member.found), None)
        if unread is not None:
            said = family.own.said(unread.message)
            place = unread.primary.span if unread.primary else member.source.whole
            where = "" if member is family.own else f"{family.own.said(place.place)}: "
            mend = "mend this first, for what is not read may hold the name"
            raise RefusedError(f"{mend}: {where}{said}")
        if use.kind is Kind.LOGICAL_AXIS:
            _must_not_be_carried(use, member)
    for each in family.alike(use):
        _must_be_changeable(each, family)
    return use


def _is_unread(found: Diagnostic) -> bool:
    return found.code.is_fault and found.code.id.startswith(_OF_FORM)


def _must_be_changeable(use: Use, family: Family) -> None:
    snapshot = family.own
    name, place = use.span.source.name, snapshot.said(use.span.place)
    also = f"`{use.name}` also stands in {place}"
    if not os.path.isabs(name):
        raise RefusedError(f"{also}, which comes with shardspec")
    is_there = any(real_path(name) in each.texts for each in family.members)
    is_there = is_there or os.path.isfile(name)
    if not (is_there and snapshot.may_show(name)):
        raise RefusedError(f"{also}, outside the project of this file")
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


def _must_be_name(new: str, use: Use) -> None:
    parsed = expressions.parse_names(new)
    is_name = isinstance(parsed, NamesExpr) and [n.text for n in parsed.names if n] == [new]
    if use.kind not in (Kind.TARGET, Kind.PHASE) and (not is_name or axis_of(new) != new):
        help = "letters, digits and `_`, with `-` and `.` inside; `none` is taken"
        raise RefusedError(f"`{new}` is no name for a {use.kind}: {help}")
    if not new or not new.isprintable():
        raise RefusedError(f"`{new}` is no name for a {use.kind}")


def _must_be_free(new: str, use: Use, snapshot: Snapshot) -> None:
    sizes = {Kind.LOGICAL_AXIS, Kind.NUMBER}
    kinds = sizes if use.kind in sizes else {use.kind}
    for each in snapshot.all_uses:
        if each.kind in kinds and each.name == new:
            place = snapshot.said(each.span.place)
            raise RefusedError(f"`{new}` is the name of a {each.kind} already: {place}")


def _in_code(use: Use, family: Family) -> Iterator[Called]:
    """Yield the uses in code that are to change as well."""
    reals = family.reals
    word = re.compile(rf"(?<![\w.-]){re.escape(use.name)}(?![\w-])")
    others = [
        path
        for path, source in family.specs.items()
        if path not in reals and word.search(source.text)
    ]
    for each, is_named in family.alike_in_code(use):
        place = family.own.said(each.span.place)
        if not is_named and others:
            other = family.own.said(others[0])
            doubt = f"{place} has `{use.name}` and names no spec, and {other} has that name too"
            raise RefusedError(f'{doubt}: say in that module which, `Resolver("spec.yaml")`')
        if not each.is_plain:
            plainly = "write it as one text without escapes first"
            raise RefusedError(f"{place} puts `{use.name}` together: {plainly}")
        yield each


def _must_read_as_well(texts: Mapping[str, str], snapshot: Snapshot) -> None:
    """Refuse a new name with which a spec has findings that it has not now."""
    spec, faults = snapshot.load({**snapshot.texts, **texts})
    found = faults if spec is None else pipeline.check(spec, faults, spec.params).shown
    more = Counter(each.code.id for each in found)
    more -= Counter(each.code.id for each in snapshot.found)
    new = next((each for each in found if each.code.id in more), None)
    if new is not None:
        place = new.primary.span.place if new.primary else snapshot.path
        said = snapshot.said(f"{place}: {new.message}")
        raise RefusedError(f"the spec would have a fault then: {said}")


def _canonical(edit: Edit) -> Edit:
    """Return an edit of a file by its real path."""
    source = SourceFile(real_path(edit.span.source.name), edit.span.source.text)
    return Edit(Span(source, edit.span.start, edit.span.end), edit.text)
