"""A baseline: the findings that a repository has when it adopts `check`, which are then not shown.

An entry says a finding in words that outlive edits elsewhere: its code, its file as seen from the
folder of the baseline, and its message without line numbers, sizes and counts; and how often that
occurs. Entries stand by spec, so a run over some of the specs rewrites those alone. Beside them
stand the options of the run: only a run with the same ones knows that an entry is fixed.

What was not read, resolved or counted (a fault) is never in a baseline.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, codes
from shardspec.diagnostics.source import printable, printable_json
from shardspec.language.files import is_revision
from shardspec.records import RecordError, data_of, record_of
from shardspec.report.findings_forms import is_file
from shardspec.versions import BASELINE_JSON

#: A place in a file behind its name, and a number that stands alone, with the unit behind it.
_LINE = re.compile(r"(?<=\w)(?::\d+)+(?!\w)")
_NUMBER = re.compile(r"(?<![\w.-])(?<!dim )\d[\d.,]*(?<=\d)(?: ?(?:[KMGT]?i?B|%)(?!\w))?(?![\w-])")
_PLURAL = re.compile(r"(# [a-z]+?)s\b")
_FAULTS = frozenset(code.id for code in codes.ALL if code.is_fault)
_NAMES = {code.id: code.name for code in codes.ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A finding as the file lists it, and how often it occurs."""

    code: str
    name: str = ""
    file: str
    message: str
    count: Annotated[int, 1]


class ListedSpec(NamedTuple):
    """The findings of a spec as the file lists them, with the options of the run."""

    options: tuple[str, ...]
    findings: tuple[Listed, ...]


class BaselineFile(NamedTuple):
    """All that a file says."""

    schema: str
    specs: Mapping[str, ListedSpec]


class Entry(NamedTuple):
    """What a finding is known by."""

    file: str
    code: str
    message: str


class Entries(NamedTuple):
    """The findings of one spec.

    Attributes:
      options: of the run that found them.
    """

    options: tuple[str, ...]
    counts: Mapping[Entry, int]


class Compared(NamedTuple):
    """The findings of a run beside a baseline.

    Attributes:
      new: those that are not in it.
      known: those that are.
      fixed: entries that occur less often now, and by how much.
    """

    new: tuple[Diagnostic, ...]
    known: tuple[Diagnostic, ...] = ()
    fixed: tuple[tuple[Entry, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Baseline:
    """Findings that are known already.

    Attributes:
      path: of its file.
      specs: the findings of each spec, by its name as seen from the folder of the baseline.

    Invariants:
      clean: a run compared with its own baseline has no finding but faults.
      one more: with one finding more, that one alone is new.
    """

    path: str
    specs: Mapping[str, Entries]

    def compared(
        self, spec: str, found: Iterable[Diagnostic], options: tuple[str, ...]
    ) -> Compared:
        """Return which findings of a spec are new, and which entries are fixed."""
        found = tuple(found)
        entries = self.specs.get(self._seen(spec), Entries(options, {}))
        left = Counter(entries.counts)
        new: list[Diagnostic] = []
        known: list[Diagnostic] = []
        for each in found:
            entry = self._entry(each, spec)
            is_known = left[entry] > 0 and not each.code.is_fault
            left[entry] -= is_known
            (known if is_known else new).append(each)
        hides_some = any(each.code.is_fault for each in found)
        fixed = () if hides_some or entries.options != options else tuple(sorted((+left).items()))
        return Compared(tuple(new), tuple(known), fixed)

    def rewritten(
        self, found: Mapping[str, Iterable[Diagnostic]], options: tuple[str, ...]
    ) -> Baseline:
        """Return a baseline with the findings of some specs, and other specs that still exist."""
        specs = {
            name: entries
            for name, entries in self.specs.items()
            if not _is_path(name) or os.path.exists(os.path.join(self._folder, name))
        }
        for spec, diagnostics in found.items():
            known = (each for each in diagnostics if not each.code.is_fault)
            counts = Counter(self._entry(each, spec) for each in known)
            specs[self._seen(spec)] = Entries(options, counts)
        return Baseline(self.path, specs)

    def text(self) -> str:
        """Return the file: sorted, and equal for equal findings."""
        specs = {name: _listed(self.specs[name]) for name in sorted(self.specs)}
        data = data_of(BaselineFile(BASELINE_JSON, specs))
        return printable_json(json.dumps(data, indent=2, ensure_ascii=False)) + "\n"

    @property
    def _folder(self) -> str:
        return os.path.dirname(os.path.abspath(self.path))

    def _seen(self, name: str) -> str:
        """Return the name of a file as seen from the folder of the baseline."""
        if not _is_path(name):
            return name
        return os.path.relpath(os.path.abspath(name), self._folder).replace(os.sep, "/")

    def _entry(self, found: Diagnostic, spec: str) -> Entry:
        file = self._seen(found.primary.span.source.name if found.primary else spec)
        return Entry(file, found.code.id, printable(lasting(found.message)))


def lasting(message: str) -> str:
    """Return a message without what unrelated edits change: lines, sizes, counts.

    >>> lasting("params pattern `l{0..3}/wi` matches none of 771 arrays, see spec.yaml:6:17")
    'params pattern `l{0..3}/wi` matches none of # array, see spec.yaml'
    >>> lasting("`embed` bf16[32128, 4096] is 4.5 % of v5p-256, 1.25 GiB; dim 0 of `x` is half")
    '`embed` bf16[#, #] is # of v5p-256, #; dim 0 of `x` is half'
    """
    parts = _LINE.sub("", message).split("`")
    parts[::2] = (_NUMBER.sub("#", part) for part in parts[::2])
    return _PLURAL.sub(r"\1", "`".join(parts))


def read_baseline(source: SourceFile) -> Baseline | str:
    """Return the baseline in a text, or what is wrong with that."""
    try:
        data: Any = json.loads(source.text)
    except (ValueError, RecursionError):
        return "it is not JSON"
    stated = data.get("schema") if isinstance(data, dict) else None
    if stated != BASELINE_JSON:
        is_other = isinstance(stated, str) and stated.startswith("shardspec.baseline/")
        why = "it is of another version: this shardspec reads" if is_other else "it does not say"
        return f"{why} `{BASELINE_JSON}`"
    try:
        file = record_of(BaselineFile, data)
    except RecordError as fault:
        return str(fault)
    specs = {}
    for name, each in file.specs.items():
        counts: Counter[Entry] = Counter()
        for entry in each.findings:
            if entry.code in _FAULTS:
                return f"{entry.code} is a fault, which no baseline can hide"
            counts[Entry(entry.file, entry.code, entry.message)] += entry.count
        specs[name] = Entries(each.options, counts)
    return Baseline(source.name, specs)


def _listed(entries: Entries) -> ListedSpec:
    found = (
        Listed(name=_NAMES.get(entry.code, ""), count=count, **entry._asdict())
        for entry, count in sorted(entries.counts.items())
    )
    return ListedSpec(entries.options, tuple(found))


def _is_path(name: str) -> bool:
    return is_file(name) and not is_revision(name)
