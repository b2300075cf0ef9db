"""From a name to where it is stated, and to where else it stands in all that a spec extends."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from shardspec import assets
from shardspec.diagnostics import Span
from shardspec.language import catalogue
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import HardwareExpr
from shardspec.lsp import types
from shardspec.lsp.kinds import Kind
from shardspec.lsp.names import Use
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
