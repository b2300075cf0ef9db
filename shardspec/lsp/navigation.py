"""From a name to where it is stated and used, in all that a spec extends; and a text's outline."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shardspec import assets, pipeline
from shardspec.diagnostics import Diagnostic, Edit, Excerpt, Fix, SourceFile, Span
from shardspec.diagnostics.diagnostic import apply
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.spec import axis_of
from shardspec.language import catalogue
from shardspec.language.dsl_text.layout import Statement, lay_out
from shardspec.language.files import real_path
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import HardwareExpr, NamesExpr
from shardspec.language.reading import Reading, Route, inner_route
from shardspec.lsp import types
from shardspec.lsp.findings import UnparseableError, workspace_edit
from shardspec.lsp.python_calls import Called, Calls, Unread, in_words, is_named
from shardspec.lsp.snapshot import Lines, Snapshot
from shardspec.lsp.types import TYPES, TYPES_IN_ORDER, Kind, RefusedError, Use
from shardspec.resolve.match import PathMatcher

#: Places shown of the arrays that a pattern stands for.
_MOST = 50
_FILES: dict[Kind, assets.SpecKind] = {
    Kind.BASE: "presets",
    Kind.MANIFEST: "arrays",
    Kind.STEP: "steps",
}


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
        return located((each.span for each in _arrays_of(use, snapshot)), snapshot)
    alike = _alike(use, snapshot)
    stated = [each for each in alike if each.is_definition]
    if not stated and use.kind is Kind.LOGICAL_AXIS:
        stated = [each for each in alike if "rules" in each.route]
    return located((each.span for each in stated), snapshot)


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


def located(spans: Iterable[Span | None], snapshot: Snapshot) -> list[types.Location]:
    """Return where an editor finds places, each once."""
    places = (snapshot.location(span) for span in dict.fromkeys(spans) if span is not None)
    return [place for place in places if place is not None]


# All that a text belongs to: the specs that it is part of, also closed ones, and the code.
#
# A base has no arrays and no machine: what it means is what the specs mean that extend it. So it is
# hovered over and searched for names through each of them.


class Family(NamedTuple):
    """A text with the specs that it is part of.

    Attributes:
      own: what was asked about.
      tops: the specs that read it, or it alone.
      total: how many read it; of many, `tops` has the first.
      code: the Python that could be about them.
      specs: by real path, all specs of the project.
      unread: what could not be read.
    """

    own: Snapshot
    tops: tuple[Snapshot, ...]
    total: int = 1
    code: tuple[Calls, ...] = ()
    specs: Mapping[str, SourceFile] = {}
    unread: tuple[Unread, ...] = ()

    @property
    def members(self) -> tuple[Snapshot, ...]:
        """Return the specs, and the text itself."""
        return tuple(dict.fromkeys((self.own, *self.tops)))

    @property
    def is_part(self) -> bool:
        """Say whether the text is looked at as a part of other specs."""
        return [*self.tops] != [self.own]

    @property
    def counted(self) -> str:
        """Return how many specs are looked at: `3 specs`, or `64 of 400 specs`."""
        found = counted(len(self.tops), "spec")
        return found if self.total <= len(self.tops) else f"{len(self.tops)} of {self.total} specs"

    def alike(self, use: Use) -> list[Use]:
        """Return the uses of the same name for the same thing, in all specs; each place once."""
        found = {
            (real_path(each.span.source.name), each.span.start): each
            for member in self.members
            for each in member.all_uses
            if (each.kind, each.name) == (use.kind, use.name)
        }
        return [*found.values()]

    @property
    def reals(self) -> frozenset[str]:
        """Return the real paths of all files of the specs."""
        return frozenset(real for member in self.members for real in member.reads)

    def calls(self) -> list[Calls]:
        """Return the code that may be about these specs: it names one of them, or none at all."""
        return [each for each in self.code if not each.specs or self._is_named(each.specs)]

    def _is_named(self, specs: tuple[str, ...]) -> bool:
        return any(is_named(real, specs) for real in self.reals)

    def alike_in_code(self, use: Use) -> Iterator[tuple[Called, bool]]:
        """Yield the uses of the same name in code, and whether a spec is named there."""
        for code in self.calls():
            for each in code.uses:
                is_of = not each.specs or self._is_named(each.specs)
                if is_of and each.is_sure and (each.kind, each.name) == (use.kind, use.name):
                    yield each, bool(code.specs)

    def unseen(self, name: str) -> list[Span]:
        """Return the calls that could hold a name, and whose names code works out."""
        doubtful = [
            each.span
            for code in self.calls()
            for each in code.uses
            if not each.is_sure and each.name == name
        ]
        return [*(span for each in self.calls() for span in each.unknown), *doubtful]


def references(family: Family, offset: int, *, with_stated: bool) -> list[types.Location]:
    """Return where the name at an offset stands, in specs and in code."""
    use = use_at(family.own, offset)
    if use is None:
        return []
    spans = [each.span for each in family.alike(use) if with_stated or not each.is_definition]
    spans += [each.span for each, _ in family.alike_in_code(use)]
    return located(spans, family.own)


# Another spelling for a name, in all specs of the project that have it, and in code.
#
# A rename is refused, with the reason, where a name also stands in what cannot be changed or read,
# or where a spec would not mean the same. Nothing is sent that leaves a file which cannot be
# parsed.


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
    for each, has_spec in family.alike_in_code(use):
        place = family.own.said(each.span.place)
        if not has_spec and others:
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


# The shape of a text: its sections and entries as symbols, and the blocks that fold.
#
# Symbols come of what was read; blocks of the lines alone, so that they fold while one is written.


_KINDS = {
    "axes": types.SymbolKind.Variable,
    "let": types.SymbolKind.Constant,
    "mesh": types.SymbolKind.Field,
    "targets": types.SymbolKind.Class,
    "rules": types.SymbolKind.Operator,
    **dict.fromkeys(("params", "overrides"), types.SymbolKind.Key),
    **dict.fromkeys(("arrays", "caches"), types.SymbolKind.Array),
    "activations": types.SymbolKind.Event,
    "phases": types.SymbolKind.Module,
}
#: Levels below a section: `targets`, a name, `mesh`, an axis.
_DEEPEST = 4
#: Of arrays in a file there may be thousands, of which an outline is no longer one.
MOST_IN_SECTION = 2000


def symbols(snapshot: Snapshot) -> list[types.DocumentSymbol]:
    """Return the sections of a spec with their entries; none where it cannot be read."""
    reading = snapshot.reading
    if reading is None:
        return []
    places = reading.source_map
    items = (route for route in places.values if route and isinstance(route[-1], int))
    below = grouped(dict.fromkeys((*places.keys, *items)), lambda route: route[:-1])
    return [*_symbols((), below, reading, snapshot.lines)]


def _symbols(
    above: Route, below: dict[Route, list[Route]], reading: Reading, lines: Lines
) -> Iterator[types.DocumentSymbol]:
    deepest = _DEEPEST + 2 * (above[:1] == ("phases",))
    if len(above) >= deepest:
        return
    for route in below.get(above, ())[:MOST_IN_SECTION]:
        whole, key = reading.source_map.entry(route), reading.source_map.key(route)
        value = reading.source_map.values.get(route, Excerpt("", whole))
        head = _first_line(key.span)
        end = max(head.end, whole.start + len(whole.text.rstrip()))
        selected = lines.range_of(head)
        yield types.DocumentSymbol(
            name=_name(route, reading) or "(empty)",
            kind=_kind(route),
            detail=None if isinstance(route[-1], int) else value.text or None,
            range=types.Range(
                selected.start if head.start <= whole.start else lines.position(whole.start),
                lines.position(end),
            ),
            selection_range=selected,
            children=[*_symbols(route, below, reading, lines)] or None,
        )


def _first_line(span: Span) -> Span:
    first = span.text.partition("\n")[0].rstrip()
    return Span(span.source, span.start, span.start + len(first))


def _kind(route: Route) -> types.SymbolKind:
    inner = inner_route(route)
    if len(inner) == 1 and len(route) != 2:
        return types.SymbolKind.Namespace
    section = "mesh" if "mesh" in inner[1:-1] else str(inner[0])
    return _KINDS.get(section, types.SymbolKind.Property)


def _name(route: Route, reading: Reading) -> str:
    """Return the key, or of an item of a list what tells it from others."""
    if not isinstance(route[-1], int):
        return str(route[-1])
    values = reading.source_map.values
    for field in ("rule", "path", "match"):
        if (*route, field) in values:
            return values[*route, field].text
    return values[route].text


def folds(snapshot: Snapshot) -> list[types.FoldingRange]:
    """Return the blocks of a text, and its runs of comments."""
    lines = snapshot.lines
    blocks = _braces(lines) if snapshot.is_dsl else _indented(lines)
    found = [types.FoldingRange(first, last) for first, last in blocks if last > first]
    comment = types.FoldingRangeKind.Comment
    return found + [types.FoldingRange(*run, kind=comment) for run in _comments(lines)]


def _braces(lines: Lines) -> Iterator[tuple[int, int]]:
    def walk(statements: Sequence[Statement]) -> Iterator[tuple[int, int]]:
        for each in statements:
            if each.entries is not None:
                last = lines.line_of(each.block_end) - each.is_closed
                yield lines.line_of(each.start), last
                yield from walk(each.entries)

    return walk(lay_out(lines.text).statements)


def _indented(lines: Lines) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each block of YAML, by indentation."""
    open_blocks: list[tuple[int, int]] = []
    last = 0
    for number, line in lines.each():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        # an item of a list may stand as far left as the key that it belongs to
        indent += text.startswith(("- ", "-\t")) or text == "-"
        while open_blocks and open_blocks[-1][0] >= indent:
            yield open_blocks.pop()[1], last
        open_blocks.append((indent, number))
        last = number
    yield from ((first, last) for _, first in open_blocks)


def _comments(lines: Lines) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for number, line in (*lines.each(), (lines.count, "")):
        if line.lstrip().startswith("#"):
            first = number if first is None else first
            continue
        if first is not None and number - first > 1:
            yield first, number - 1
        first = None


# Colours by meaning: which words of a text are names, and what of.
#
# What an editor's grammar knows, keys and comments and strings, it colours itself.


_STATED = 1
#: The colour of each kind, by its place in the legend.
_NUMBERS = {kind: TYPES_IN_ORDER.index(name) for kind, name in TYPES.items()}


def tokens(snapshot: Snapshot) -> types.SemanticTokens:
    """Return the names of a text, each counted from the one before it."""
    data: list[int] = []
    line = column = 0
    for number, start, length, kind, stated in _found(snapshot):
        column = 0 if number != line else column
        data += [number - line, start - column, length, _NUMBERS[kind], stated]
        line, column = number, start
    return types.SemanticTokens(data)


def _found(snapshot: Snapshot) -> Iterator[tuple[int, int, int, Kind, int]]:
    """Yield line, column, length, kind and modifiers of each name, none over another."""
    end = 0
    for use in snapshot.uses:
        span, text = use.span, use.span.text
        if span.start < end or "\n" in text or not text:
            continue
        end = span.end
        at = snapshot.lines.position(span.start)
        length = snapshot.lines.units(text)
        yield at.line, at.character, length, use.kind, use.is_definition * _STATED
