"""From a name to where it is stated, and to where else it stands in all that a spec extends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from shardspec import assets
from shardspec.diagnostics import SourceFile, Span
from shardspec.diagnostics.words import counted
from shardspec.language import catalogue
from shardspec.language.files import real_path
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import HardwareExpr
from shardspec.lsp import types
from shardspec.lsp.kinds import Kind
from shardspec.lsp.names import Use
from shardspec.lsp.project import Unread
from shardspec.lsp.python_calls import Called, Calls, is_named
from shardspec.lsp.snapshot import Snapshot
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
