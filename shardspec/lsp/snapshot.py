"""A spec as it stands in an editor, and what is worked out of it: read once, asked many times.

What other buffers hold counts in place of their files, as it does for `--fix`. The rest is worked
out when it is asked for: an edit needs the findings, and only a hover the plans.
"""

from __future__ import annotations

import copy
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from shardspec import assets, pipeline
from shardspec.analysis.spec_step import stated_cost
from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes
from shardspec.diagnostics.budget import SpentError, limited
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.language import loader
from shardspec.language.files import Boundary, boundary_of, leads_out, real_path
from shardspec.language.reading import Reading, is_dsl
from shardspec.lsp import types
from shardspec.lsp.types import Use, uses
from shardspec.lsp.wire import uri_of
from shardspec.report.cost_json import cost_record
from shardspec.report.saved_cost import SavedCost

#: What stands before the name of a bundled file, and the folder that it is in.
_BUNDLED: dict[str, assets.SpecKind] = {"preset": "presets", "step": "steps", "arrays": "arrays"}


class Opened(NamedTuple):
    """What an editor has open: texts by real path, and folders, without links and as it says."""

    uris: Mapping[str, str] = {}
    folders: tuple[tuple[str, str], ...] = ()

    @property
    def tops(self) -> tuple[str, ...]:
        """Return the folders without links."""
        return tuple(top for top, _ in self.folders)

    def uri(self, path: str) -> str | None:
        """Return what the editor calls a file."""
        real = real_path(path)
        for top, spelt in self.folders:
            if real not in self.uris and real.startswith(top + os.sep):
                path = spelt + real[len(top) :]
        return self.uris.get(real) or uri_of(path)


_NOTHING = Opened()


class Snapshot:
    """One version of one text.

    Attributes:
      uri, version: what the editor calls it.
      path: the file, which need not be there; a name alone for a text that has none.
      texts: by real path, what the open buffers hold, this one's too.
      stamp: how many changes of any text came before it.
      spec: None where nothing can be made of the text.
      found: all findings, as `check` says them.
      reads: the real paths of the files that the findings depend on.
      misses: whether a file that it names is not there, so that any file may change them.
    """

    def __init__(
        self,
        uri: str,
        version: int,
        path: str,
        texts: Mapping[str, str],
        *,
        opened: Opened = _NOTHING,
        stamp: int = 0,
        encoding: types.PositionEncodingKind | str = types.PositionEncodingKind.Utf16,
    ) -> None:
        """Read the text, and find what is wrong with it."""
        self.uri, self.version, self.path, self.stamp = uri, version, path, stamp
        self.texts, self.encoding, self._opened = texts, encoding, opened
        self.text = texts[real_path(path)]
        self._costs: dict[str, SavedCost | None] = {}
        self._lines_of: dict[str, Lines] = {}
        self._readings: list[Reading] = []
        self.spec: Spec | None = None
        self.found: tuple[Diagnostic, ...] = ()
        faults: tuple[Diagnostic, ...] = ()
        try:
            with limited():
                self.spec, faults = self.load(texts, self._readings)
                self.found = faults
                if self.spec is not None:
                    self.found = pipeline.check(self.spec, faults, self.spec.params).shown
        except SpentError as spent:
            self.spec, self.found = None, (*faults, spent.finding(path))
        sources = (self.source, *(self.spec.sources if self.spec else ()))
        self.reads = frozenset(real_path(source.name) for source in sources)
        self.misses = self.spec is None or any(f.code is codes.UNKNOWN_PRESET for f in faults)

    def load(
        self, texts: Mapping[str, str], readings: list[Reading] | None = None
    ) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
        """Return the spec as texts have it, and its faults; add what is read to `readings`."""
        tops = self._opened.tops
        return pipeline.load_path(self.path, texts=texts, folders=tops, readings=readings)

    def typed(self, version: int, text: str) -> Snapshot:
        """Return the same look with a text that was typed on since: for what may be written."""
        later = copy.copy(self)
        vars(later).update(all_uses=self.all_uses, plans=self.plans)
        for name in ("source", "is_dsl", "lines", "reading", "uses"):
            vars(later).pop(name, None)
        later.version, later.text = version, text
        vars(later)["source"] = SourceFile(self.path, text)
        return later

    @cached_property
    def source(self) -> SourceFile:
        """Return the text as the findings name it."""
        return SourceFile(self.path, self.text) if self.spec is None else self.spec.source

    @cached_property
    def is_dsl(self) -> bool:
        """Say whether it is in the DSL."""
        return is_dsl(self.source)

    @cached_property
    def lines(self) -> Lines:
        """Return the text as the editor counts it."""
        return Lines(self.text, self.encoding)

    @cached_property
    def reading(self) -> Reading | None:
        """Return its data, and where every piece stands; None where nothing can be read."""
        return self.read(self.source)

    def read(self, source: SourceFile) -> Reading | None:
        """Return the data of this text or of one that it extends; the spec was made of most."""
        known = next((each for each in self._readings if each.source is source), None)
        if known is not None:
            return known
        return loader.read(loader.File(source, "", source.name, is_dsl(source)))[0]

    @cached_property
    def plans(self) -> tuple[ShardingPlan, ...]:
        """Return the plans on all targets whose mesh is known, those of phases too."""
        if self.spec is None or not self.spec.is_whole:
            return ()
        plans = pipeline.plans_of_phases(self.spec, self.spec.params)
        return tuple(plan for plan in plans if plan.target.is_sound)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Return the names in this text."""
        return () if self.reading is None else uses(self.reading)

    @cached_property
    def all_uses(self) -> tuple[Use, ...]:
        """Return the names in this text and in all that it extends, as far as that is shown."""
        found = [*self.uses]
        for source in self.spec.sources if self.spec else ():
            is_other = source.name != self.path and not source.is_outside
            reading = self.read(source) if is_other else None
            found += uses(reading) if reading is not None else ()
        return tuple(found)

    def cost(self, plan: ShardingPlan) -> SavedCost | None:
        """Return what the step that the spec states costs; None where it states none, or is wrong.

        It is as a saved cost, so that lines and axes are asked about in one way.
        """
        if plan.name not in self._costs:
            self._costs[plan.name] = self._cost(plan)
        return self._costs[plan.name]

    def _cost(self, plan: ShardingPlan) -> SavedCost | None:
        is_sound = plan.spec.step is not None and not any(each.is_error for each in self.found)
        cost = stated_cost(plan) if is_sound else None
        if cost is None or cost.step is None:
            return None
        return SavedCost("`step`", cost_record(cost))

    def is_own(self, span: Span) -> bool:
        """Say whether a span lies in this text."""
        return span.source.name == self.path

    def place_of(self, found: Diagnostic) -> Span:
        """Return where a finding is shown: in the file at fault, where that may be opened.

        A file that comes along, or lies outside the project, stands where it was pulled in.
        """
        label = found.primary
        span = None if label is None else label.span
        while span is not None and not self.is_own(span):
            source = span.source
            if os.path.isabs(source.name) and not source.is_outside and self.may_show(source.name):
                return span
            span = source.included_from
        return span or self.source.whole

    def location(self, span: Span) -> types.Location | None:
        """Return where an editor finds a span; None for a file outside the project."""
        name = span.source.name
        if self.is_own(span):
            return types.Location(self.uri, self.lines.range_of(span))
        path = _bundled_path(name) or name
        if span.source.is_outside or not os.path.isabs(path):
            return None
        uri = self._opened.uri(path)
        return types.Location(uri, self.lines_of(span.source).range_of(span)) if uri else None

    def lines_of(self, source: SourceFile) -> Lines:
        """Return a text that this one reads, as the editor counts it."""
        if source.name not in self._lines_of:
            own = source.name == self.path
            self._lines_of[source.name] = self.lines if own else Lines(source.text, self.encoding)
        return self._lines_of[source.name]

    def file_location(self, path: str) -> types.Location | None:
        """Return the beginning of a file of the project, or of one that comes along."""
        is_bundled = Path(path).is_relative_to(assets.data_folder())
        if not os.path.isfile(path) or not (is_bundled or self.may_show(path)):
            return None
        uri = self._opened.uri(path)
        start = types.Position(0, 0)
        return types.Location(uri, types.Range(start, start)) if uri else None

    def may_show(self, path: str) -> bool:
        """Say whether a file lies in the project of this one, links followed."""
        return self._boundary.holds(path) and not leads_out(self.path)

    @cached_property
    def _boundary(self) -> Boundary:
        return boundary_of(self.path)._replace(others=self._opened.tops)

    def said(self, text: str) -> str:
        """Return a message, files of the project named as seen from the folder of this one."""
        folder = os.path.dirname(self.path)
        top = self._boundary.folder
        text = text.replace(folder + os.sep, "")
        return text.replace(top + os.sep, os.path.relpath(top, folder) + os.sep)

    def at(self, offset: int) -> Iterator[Diagnostic]:
        """Yield the findings whose place in this text holds an offset."""
        for finding in self.found:
            place = self.place_of(finding)
            if finding.primary and self.is_own(place) and place.start <= offset <= place.end:
                yield finding


def _bundled_path(name: str) -> str | None:
    """Return the file of `preset:t5x/2d`; None for what is no bundled name."""
    kind, colon, inner = name.partition(":")
    if not colon or kind not in _BUNDLED:
        return None
    path = assets.spec_path(_BUNDLED[kind], inner)
    return None if path is None else str(path)


# Offsets of a text and the positions of an editor, which counts lines, and code units in them.
#
# An editor ends a line at LF, CRLF or CR, and nowhere else, and counts UTF-16 units unless it and
# the server agree on others; Python counts characters.


_LINE_END = re.compile(r"\r\n|\n|\r")
_UTF16 = types.PositionEncodingKind.Utf16


class Lines:
    """A text as an editor counts it.

    Attributes:
      encoding: the units that columns are counted in.

    Invariants:
      round trip: the offset of the position of an offset is that offset, but between the two
        characters of a CRLF.
    """

    def __init__(self, text: str, encoding: types.PositionEncodingKind | str = _UTF16) -> None:
        """Start with a text; its lines are looked for when they are asked for."""
        self.text = text
        self.encoding = encoding

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *(found.end() for found in _LINE_END.finditer(self.text)))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Return where each line ends, without its line end."""
        return (*(found.start() for found in _LINE_END.finditer(self.text)), len(self.text))

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    @property
    def count(self) -> int:
        """Return the number of lines; one that ends the text without a line end is one."""
        return len(self._starts)

    def line(self, number: int) -> str:
        """Return the text of a line, counted from 0, without its line end."""
        return self.text[self._starts[number] : self._ends[number]]

    def line_start(self, number: int) -> int:
        """Return the offset of the first character of a line, counted from 0."""
        return self._starts[number]

    def line_of(self, offset: int) -> int:
        """Return the line of an offset, counted from 0."""
        return bisect_right(self._starts, offset) - 1 if offset > 0 else 0

    def position(self, offset: int) -> types.Position:
        """Return the position of an offset; one within a line end is at the end of its line."""
        number = self.line_of(offset)
        start, end = self._starts[number], self._ends[number]
        if offset < end:
            end = max(offset, 0)
        length = end - start if self._is_ascii else self.units(self.text[start:end])
        return types.Position(number, length)

    def offset(self, position: types.Position) -> int:
        """Return the offset of a position; one beyond a line, or the text, is at its end."""
        if position.line >= self.count:
            return len(self.text)
        number = max(position.line, 0)
        line = self.line(number)
        if line.isascii():
            return self._starts[number] + min(max(position.character, 0), len(line))
        left = position.character
        for at, char in enumerate(line):
            if left <= 0:
                return self._starts[number] + at
            left -= self.units(char)
        return self._ends[number]

    def units(self, text: str) -> int:
        """Return how long a piece of a line is for the editor."""
        if text.isascii() or self.encoding == types.PositionEncodingKind.Utf32:
            return len(text)
        if self.encoding == types.PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text) + sum(ord(char) > 0xFFFF for char in text)

    def range(self, start: int, end: int) -> types.Range:
        """Return the range of a half-open stretch of characters."""
        first = self.position(start)
        return types.Range(first, first if end == start else self.position(end))

    def range_of(self, span: Span) -> types.Range:
        """Return the range of a span of this text."""
        return self.range(span.start, span.end)

    def offsets(self, range_: types.Range) -> tuple[int, int]:
        """Return start and end of a range, in this order."""
        start, end = sorted((self.offset(range_.start), self.offset(range_.end)))
        return start, end

    def edits_to(self, new: str) -> list[types.TextEdit]:
        """Return the edit that makes another text of this one, and leaves both ends alone."""
        old = self.text
        if old == new:
            return []
        pairs = enumerate(zip(old, new, strict=False))
        start = next((at for at, (a, b) in pairs if a != b), min(len(old), len(new)))
        most = min(len(old), len(new)) - start
        tail = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
        start, tail = self._apart(start, len(old) - tail)
        end = len(new) - (len(old) - tail)
        return [types.TextEdit(self.range(start, tail), new[start:end])]

    def _apart(self, start: int, end: int) -> tuple[int, int]:
        """Return a stretch that does not begin or end within a CRLF."""
        if self.text[start - 1 : start + 1] == "\r\n":
            start -= 1
        if self.text[end - 1 : end + 1] == "\r\n":
            end += 1
        return start, end

    def each(self) -> Iterator[tuple[int, str]]:
        """Yield the lines, each with its number, counted from 0."""
        return ((number, self.line(number)) for number in range(self.count))
