"""Findings for other tools: as JSON, as GitHub's workflow commands, as SARIF 2.1.0.

These tools know the files of a checkout and nothing else. A preset is no file of theirs: there the
place that pulled it in stands for it. A flag and standard input have no place at all.

Workflow commands are shown by GitHub Actions beside the lines of a pull request.
Source: GitHub's documentation of workflow commands: `%`, CR and LF are escaped everywhere, `:`
and `,` in properties too.

SARIF is read by code hosts and editors. URIs are relative to the top of the repository, as GitHub
reads them, wherever the run was started; outside of a repository, to the folder of the run. So are
the files of workflow commands. A finding in a preset stands at the place that pulled the preset in,
with the preset as its logical location.
Fingerprints are made of the finding, the file and the text of the line, so they outlive edits
elsewhere in the file.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from shardspec.diagnostics import Code, Diagnostic, Fix, Label, SourceFile, Span, codes
from shardspec.diagnostics.diagnostic import printable, printable_json
from shardspec.diagnostics.words import globs
from shardspec.language.files import is_revision
from shardspec.records import RecordError, data_of, picked, record_of
from shardspec.versions import BASELINE_JSON, CHECK_JSON, PACKAGE

_NO_FILE = re.compile(r"(?:preset|arrays|hardware):|(?:--set|-|<[^<]*>)$")


def is_file(name: str) -> bool:
    """Say whether a source of this name is a file, and not a preset, a flag or a text."""
    return _NO_FILE.match(name) is None


def local(span: Span | None) -> Span | None:
    """Return the span, or the nearest place in a file that pulled its source in."""
    while span is not None and not is_file(span.source.name):
        span = span.source.included_from
    return span


def local_primary(diagnostic: Diagnostic) -> Span | None:
    """Return where a finding stands in a file, or None."""
    label = diagnostic.primary
    return None if label is None else local(label.span)


def relative(name: str) -> str:
    """Return the path of a file with forward slashes, from this folder where it lies below."""
    path = os.path.normpath(name)
    if os.path.isabs(path):
        inside = os.path.relpath(path)
        path = path if inside.startswith("..") else inside
    return path.replace(os.sep, "/")


def in_repository(name: str) -> str:
    """Return the path of a file from the top of the repository of this folder; absolute outside."""
    here = os.path.realpath(os.curdir)
    top = _repository_of(here)
    path = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
    inside = os.path.relpath(path, top)
    return (path if inside.split(os.sep)[0] == ".." else inside).replace(os.sep, "/")


@lru_cache(maxsize=64)
def _repository_of(folder: str) -> str:
    """Return the nearest folder above with a `.git`; where there is none, the folder."""
    above = (folder, *map(str, Path(folder).parents))
    return next((each for each in above if os.path.exists(os.path.join(each, ".git"))), folder)


def end(span: Span) -> tuple[int, int]:
    """Return line and column of the character after a span, counted from 1."""
    after = Span(span.source, span.end, span.end)
    return after.line, after.column


def findings_text(diagnostics: Iterable[Diagnostic], scope: Mapping[str, int] | None = None) -> str:
    """Return findings as JSON text, in the order given.

    Args:
      scope: how much was checked: files, arrays, activations, targets.
    """
    document: dict[str, Any] = {"schema": CHECK_JSON}
    if scope is not None:
        document["checked"] = dict(scope)
    document["findings"] = [_finding(each) for each in diagnostics]
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False))


def _finding(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        **picked(diagnostic, "code=code.id name=code.name"),
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "labels": [_label(label) for label in diagnostic.labels],
        **picked(diagnostic, "notes help target bytes"),
        "arrays": list(globs(diagnostic.arrays)),
        "fix": diagnostic.fix and _fix(diagnostic.fix),
    }


def _fix(fix: Fix) -> dict[str, Any]:
    edits = [{**_place(edit.span), "replacement": edit.text} for edit in fix.edits]
    return {"title": fix.title, "sure": fix.is_sure, "edits": edits}


def _label(label: Label) -> dict[str, Any]:
    return {**_place(label.span), "text": label.text, "primary": label.primary}


def _place(span: Span) -> dict[str, Any]:
    return {**picked(span, "file=source.name line column"), "length": span.end - span.start}


def commands(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Yield one command for each finding: `::error file=spec.yaml,line=8,...::message`."""
    for diagnostic in diagnostics:
        properties = {**_github_place(diagnostic), "title": diagnostic.code.id}
        listed = ",".join(f"{key}={_property(str(v))}" for key, v in properties.items())
        yield f"::{diagnostic.severity} {listed}::{_data(_placed_text(diagnostic))}"


def _github_place(diagnostic: Diagnostic) -> dict[str, object]:
    span = local_primary(diagnostic)
    if span is None:
        return {}
    line, column = end(span)
    file = in_repository(span.source.name)
    start = {"file": file, "line": span.line, "col": span.column}
    return {**start, "endLine": line, "endColumn": column}


def _placed_text(diagnostic: Diagnostic) -> str:
    """Return message, notes and help, and where it stands if no file of the checkout."""
    label = diagnostic.primary
    is_elsewhere = label is not None and local_primary(diagnostic) != label.span
    return _text(diagnostic, *([f"at {label.span}"] if label and is_elsewhere else []))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
_FINGERPRINT = "shardspec/v1"

Json = dict[str, Any]


def sarif_text(diagnostics: Iterable[Diagnostic], scope: Mapping[str, int] | None = None) -> str:
    """Return findings as a SARIF log with one run.

    Args:
      scope: how much was checked: files, arrays, activations, targets.
    """
    log = sarif(tuple(diagnostics), scope)
    return printable_json(json.dumps(log, indent=2, ensure_ascii=False))


def sarif(diagnostics: Sequence[Diagnostic], scope: Mapping[str, int] | None = None) -> Json:
    """Return findings as the data of a SARIF log."""
    codes = sorted({diagnostic.code for diagnostic in diagnostics}, key=lambda code: code.id)
    index = {code: at for at, code in enumerate(codes)}
    prints = _fingerprints(diagnostics)
    results = [_result(each, index[each.code], next(prints)) for each in diagnostics]
    driver = {"name": "shardspec", "version": PACKAGE, "semanticVersion": PACKAGE}
    run: Json = {
        "tool": {"driver": {**driver, "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The top of the repository."}}},
        "results": results,
    }
    if scope is not None:
        run["properties"] = dict(scope)
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: Code) -> Json:
    from shardspec.lints.registry import page

    text = page(code)
    summary = f"{code.summary[0].upper()}{code.summary[1:]}."
    name = "".join(word.capitalize() for word in code.name.split("-"))
    return {
        "id": code.id,
        "name": name,
        "shortDescription": {"text": summary},
        "fullDescription": {"text": text.partition("\nBad:\n")[0].strip()},
        "help": {"text": text},
        "defaultConfiguration": {"level": str(code.severity)},
    }


def _result(diagnostic: Diagnostic, rule: int, fingerprint: str) -> Json:
    result: Json = {
        "ruleId": diagnostic.code.id,
        "ruleIndex": rule,
        "level": str(diagnostic.severity),
        "message": {"text": _text(diagnostic)},
        "partialFingerprints": {_FINGERPRINT: fingerprint},
    }
    label = diagnostic.primary
    if label is not None:
        location = _location(label)
        result["locations"] = [location] if location else []
    others = (_location(each, said=True) for each in diagnostic.labels if not each.primary)
    related = [{"id": at, **each} for at, each in enumerate(filter(None, others), start=1)]
    if related:
        result["relatedLocations"] = related
    fix = None if diagnostic.fix is None else _sarif_fix(diagnostic.fix)
    if fix is not None:
        result["fixes"] = [fix]
    return result


def _text(diagnostic: Diagnostic, *more: str) -> str:
    helps = [f"help: {diagnostic.help}"] if diagnostic.help else []
    notes = [f"note: {note}" for note in diagnostic.notes]
    return "\n".join((diagnostic.message, *more, *notes, *helps))


def _location(label: Label, *, said: bool = False) -> Json | None:
    """Return where a label stands; None where no file has it."""
    span = local(label.span)
    location: Json = {}
    if span is not None:
        location["physicalLocation"] = {
            "artifactLocation": _artifact(uri(span.source.name)),
            "region": _region(span),
        }
    if span != label.span:
        place = {"fullyQualifiedName": str(label.span), "kind": "resource"}
        location["logicalLocations"] = [place]
    if said and label.text:
        location["message"] = {"text": label.text}
    return location or None


def _region(span: Span) -> Json:
    line, column = end(span)
    start = {"startLine": span.line, "startColumn": span.column}
    return {**start, "endLine": line, "endColumn": column}


def uri(name: str) -> str:
    """Return the URI of a file: relative, or `file:` where it lies elsewhere on the machine.

    >>> uri("specs/näh 1.yaml")
    'specs/n%C3%A4h%201.yaml'
    """
    from urllib.parse import quote

    path = in_repository(name)
    return f"file://{quote(path)}" if path.startswith("/") else quote(path)


def _artifact(uri: str) -> Json:
    return {"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": _ROOT}


def _sarif_fix(fix: Fix) -> Json | None:
    """Return a fix by file; None where it edits what is no file."""
    changes: dict[str, list[Json]] = {}
    for edit in fix.edits:
        if local(edit.span) != edit.span:
            return None
        replacement: Json = {"deletedRegion": _region(edit.span)}
        if edit.text:
            replacement["insertedContent"] = {"text": edit.text}
        changes.setdefault(uri(edit.span.source.name), []).append(replacement)
    listed = [
        {"artifactLocation": _artifact(name), "replacements": replacements}
        for name, replacements in changes.items()
    ]
    return {"description": {"text": fix.title}, "artifactChanges": listed} if listed else None


def _fingerprints(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Yield for each finding what tells it from the others, wherever its line goes."""
    from hashlib import sha256

    seen: Counter[tuple[str, ...]] = Counter()
    for diagnostic in diagnostics:
        span = local_primary(diagnostic)
        label = diagnostic.primary
        file = "" if span is None else in_repository(span.source.name)
        is_shown = label is not None and not label.span.source.is_outside
        line = label.span.source.line_text(label.span.line).strip() if label and is_shown else ""
        key = (diagnostic.code.id, file, line)
        seen[key] += 1
        text = "\0".join((*key, str(seen[key])))
        yield sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


# A baseline: the findings that a repository has when it adopts `check`, which are then not shown.
#
# An entry says a finding in words that outlive edits elsewhere: its code, its file as seen from the
# folder of the baseline, and its message without line numbers, sizes and counts; and how often that
# occurs. Entries stand by spec, so a run over some of the specs rewrites those alone. Beside them
# stand the options of the run: only a run with the same ones knows that an entry is fixed.
#
# What was not read, resolved or counted (a fault) is never in a baseline.


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
