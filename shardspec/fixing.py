"""Findings -> texts in which what can be mended is mended, round by round, until nothing is left.

That happens on texts in memory, for the command line and for editors alike: only files that are
named, or lie within their folders, are changed: a preset never is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, Edit, Fix, SourceFile, Span
from shardspec.diagnostics.diagnostic import Edited, apply

#: Fixes may make room for others, but not for ever.
MOST_ROUNDS = 10


class Changed(NamedTuple):
    """A file before and after.

    Attributes:
      name: as it was named on the command line or in `extends`.
    """

    name: str
    old: str
    new: str


class Fixing:
    """One run over some files.

    Attributes:
      found: what is found once the fixes are taken, file by file.
      texts, olds, names: by real path: the new text, the text on disk, what to call it.
      fixed: the titles of the fixes taken.
      refused: the titles of those that would have left a text that cannot be read.
    """

    def __init__(self, files: Sequence[str], *, is_unsafe: bool) -> None:
        """Start with the files as they are on disk."""
        self.files = files
        self.is_unsafe = is_unsafe
        self.found: tuple[Sequence[Diagnostic], ...] = ()
        self.texts: dict[str, str] = {}
        self.olds: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.fixed: list[str] = []
        self.refused: list[str] = []

    def look(self, file: str) -> Sequence[Diagnostic]:
        """Return what is found in a file under the texts as they are now."""
        raise NotImplementedError

    def run(self) -> None:
        """Check and fix until nothing is left to fix, or for long enough."""
        for _ in range(MOST_ROUNDS):
            self._check()
            fixes = [each for each in self._fixes() if self.is_unsafe or each.is_sure]
            if not fixes:
                return
            self._take(self._readable(fixes))
        self._check()

    @property
    def changed(self) -> tuple[Changed, ...]:
        """Return the files whose text is another now, in order of name."""
        pairs = sorted((self.names[real], real) for real in self.texts if real in self.names)
        return tuple(
            Changed(name, self.olds[real], self.texts[real])
            for name, real in pairs
            if self.olds[real] != self.texts[real]
        )

    @property
    def unsure(self) -> int:
        """Return how many fixes are left that only `--unsafe-fixes` takes."""
        return sum(not each.is_sure for each in self._fixes())

    def _check(self) -> None:
        self.found = tuple(map(self.look, self.files))

    def _fixes(self) -> Iterator[Fix]:
        """Yield what could be taken, with files by their real paths."""
        for fix in fixes_within(chain.from_iterable(self.found), self.files):
            if fix.title not in self.refused:
                yield self._canonical(fix)

    def _canonical(self, fix: Fix) -> Fix:
        edits = []
        for edit in fix.edits:
            source = edit.span.source
            real = os.path.realpath(source.name)
            self.names.setdefault(real, source.name)
            self.olds.setdefault(real, source.text)
            span = Span(SourceFile(real, source.text), edit.span.start, edit.span.end)
            edits.append(Edit(span, edit.text))
        return fix._replace(edits=tuple(edits))

    def _readable(self, fixes: list[Fix]) -> Edited:
        """Return as many fixes taken together as leave texts that can be read."""
        together = apply(fixes)
        if self._can_be_read(together):
            return together
        good = [fix for fix in fixes if self._can_be_read(apply([fix]))]
        self.refused += [fix.title for fix in fixes if fix not in good]
        together = apply(good)
        return together if self._can_be_read(together) else apply(good[:1])

    def _can_be_read(self, edited: Edited) -> bool:
        return all(
            reads_as_well(self.names[real], self.texts, {**self.texts, **edited.texts})
            for real in edited.texts
        )

    def _take(self, edited: Edited) -> None:
        self.texts.update(edited.texts)
        self.fixed += [fix.title for fix in edited.taken]


def fixes_within(diagnostics: Iterable[Diagnostic], files: Iterable[str]) -> Iterator[Fix]:
    """Yield the fixes that change only `files`, and what lies in their folders."""
    named = {os.path.realpath(file) for file in files}
    folders = {os.path.dirname(file) for file in named}
    allowed: dict[str, bool] = {}
    for diagnostic in diagnostics:
        fix = diagnostic.fix
        if fix is None or not fix.edits:
            continue
        for edit in fix.edits:
            name = edit.span.source.name
            if name not in allowed:
                allowed[name] = _may_change(name, named, folders)
        if all(allowed[edit.span.source.name] for edit in fix.edits):
            yield fix


def _may_change(name: str, named: set[str], folders: set[str]) -> bool:
    real = os.path.realpath(name)
    if real in named:
        return True
    return os.path.isfile(real) and any(_is_below(real, folder) for folder in folders)


def _is_below(path: str, folder: str) -> bool:
    try:
        return os.path.commonpath((path, folder)) == folder
    except ValueError:
        return False


def reads_as_well(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Say whether reading a file finds no fault of form that it did not find before."""
    before, after = _faults_of_form(name, old), _faults_of_form(name, new)
    return not after - before


def _faults_of_form(name: str, texts: Mapping[str, str]) -> Counter[str]:
    _, diagnostics = pipeline.load_path(name, with_manifests=False, texts=texts)
    return Counter(each.code.id for each in diagnostics if each.code.id.startswith("SHD0"))
