"""`check` at work: a file looked at, and fixed round by round until no fix is left to take.

Everything happens on texts in memory; files are written once, at the end. Only files named on
the command line, or extended by those within their folders, are changed: a preset never is.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from shardspec import pipeline
from shardspec.cli.request import Request, has_errors
from shardspec.cli.streams import FAILED, fail, write_file
from shardspec.diagnostics import Diagnostic, Edit, Fix, SourceFile, Span
from shardspec.diagnostics.diagnostic import Edited, apply
from shardspec.ir.spec import Spec

#: Fixes may make room for others, but not for ever.
MOST_ROUNDS = 10
_BOM = "\ufeff"


class Checked(NamedTuple):
    """What was found, in how much.

    Attributes:
      hidden: how many errors the command line alone does not want to hear of.
    """

    diagnostics: tuple[Diagnostic, ...]
    arrays: int = 0
    targets: int = 0
    hidden: int = 0
    activations: int = 0

    @property
    def is_bare(self) -> bool:
        """Say whether there was nothing to lay out, so that only the text was checked."""
        return not self.arrays and not self.activations


def check_file(
    file: str,
    request: Request,
    texts: Mapping[str, str] | None = None,
    step_name: str | None = None,
) -> Checked:
    """Return all findings of one spec.

    Args:
      texts: by real path, edits that are not yet written.
      step_name: of a step that is traced on every target, where the spec has no errors.
    """
    spec, faults = pipeline.load_path(
        file,
        request.settings,
        with_manifests=request.arrays is None,
        texts=texts,
        asked=request.table,
    )
    return Checked(faults) if spec is None else _checked(spec, faults, request, step_name)


def _checked(
    spec: Spec, faults: tuple[Diagnostic, ...], request: Request, step_name: str | None
) -> Checked:
    params = request.params(spec)
    is_whole = request.target is None and request.arrays is None and not request.settings
    told = pipeline.check(spec, faults, params, request.target, is_whole=is_whole)
    if step_name is not None and has_errors(told.shown):
        request.remark(f"no step is traced: {spec.source.name} has errors")
    elif step_name is not None:
        from shardspec.cli.steps import step_costs

        targets = [t for t in spec.targets if request.target in (None, t.name)]
        costs = step_costs(step_name, pipeline.compile_plans(spec, params, targets), request)
        told = pipeline.check(spec, faults, params, request.target, costs=costs, is_whole=is_whole)
    shown = _with_cost(told.shown, spec, request)
    return Checked(shown, len(params), told.targets, told.hidden, len(spec.activations))


def _with_cost(
    shown: tuple[Diagnostic, ...], spec: Spec, request: Request
) -> tuple[Diagnostic, ...]:
    """Return findings with what their lines cost in saved figures, and whether these are stale."""
    saved = request.saved_cost(is_asked=False)
    if saved is None or not saved.is_of(spec):
        return shown
    from shardspec.report.saved_cost import stale_finding, with_cost

    stale = stale_finding(saved, spec)
    told = () if stale is None else pipeline.shown(spec, [stale])
    return (*(with_cost(found, saved, spec) for found in shown), *told)


class Changed(NamedTuple):
    """A file before and after.

    Attributes:
      name: as it was named on the command line or in `extends`.
    """

    name: str
    old: str
    new: str


@dataclass(slots=True)
class Fixing:
    """One run over some files.

    Attributes:
      checked: what is found once the fixes are taken, file by file.
      texts, olds, names: by real path: the new text, the text on disk, what to call it.
      fixed: the titles of the fixes taken.
      refused: the titles of those that would have left a text that cannot be read.
    """

    files: Sequence[str]
    request: Request
    is_unsafe: bool
    checked: tuple[Checked, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    olds: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    has_mark: bool = False

    def run(self) -> None:
        """Check and fix until nothing is left to fix, or for long enough."""
        if "-" in self.files:
            self._take_in_stdin()
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

    def stdin_text(self) -> str:
        """Return what standard input has become, byte order mark included."""
        text = self.texts.get(os.path.realpath("-"), "")
        return _BOM + text if self.has_mark else text

    def _take_in_stdin(self) -> None:
        from shardspec.language.files import decode, read_stdin

        raw = read_stdin()
        source = raw if isinstance(raw, Diagnostic) else decode(raw, "-")
        if isinstance(raw, Diagnostic) or isinstance(source, Diagnostic):
            faults = [each for each in (raw, source) if isinstance(each, Diagnostic)]
            self.request.report(faults[:1])
            raise SystemExit(FAILED)
        self.has_mark = raw.startswith(_BOM.encode())
        real = os.path.realpath("-")
        self.texts[real] = self.olds[real] = source.text

    def _check(self) -> None:
        self.checked = tuple(check_file(file, self.request, self.texts) for file in self.files)

    def _fixes(self) -> Iterator[Fix]:
        """Yield what could be taken, with files by their real paths."""
        found = chain.from_iterable(each.diagnostics for each in self.checked)
        for fix in fixes_within(found, self.files):
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
            _reads_as_well(self.names[real], self.texts, {**self.texts, **edited.texts})
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


def _reads_as_well(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Say whether reading a file finds no fault of form that it did not find before."""
    before, after = _faults_of_form(name, old), _faults_of_form(name, new)
    return not after - before


def _faults_of_form(name: str, texts: Mapping[str, str]) -> Counter[str]:
    _, diagnostics = pipeline.load_path(name, with_manifests=False, texts=texts)
    return Counter(each.code.id for each in diagnostics if each.code.id.startswith("SHD0"))


def write(changed: Iterable[Changed]) -> None:
    """Write the new texts, each file whole or not at all; a byte order mark stays."""
    from pathlib import Path

    from shardspec.language.files import read_source

    for file in changed:
        if file.name == "-":
            continue
        source = read_source(Path(file.name), name=file.name)
        if not isinstance(source, SourceFile) or source.text != file.old:
            fail(f"{file.name} has changed since it was read, and is left as it is", "run it again")
        with open(file.name, "rb") as stream:
            has_mark = stream.read(3) == _BOM.encode()
        write_file(file.name, _BOM + file.new if has_mark else file.new)


def diff_text(changed: Iterable[Changed]) -> str:
    """Return a unified diff that `patch -p0` takes."""
    import difflib

    lines: list[str] = []
    for file in changed:
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (file.old, file.new))
        for line in difflib.unified_diff(old, new, file.name, file.name):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)
