"""Findings as SARIF 2.1.0, which code hosts and editors read.

URIs are relative to the folder of the run. A finding in a preset stands at the place that pulled
the preset in, with the preset as its logical location. Fingerprints are made of the finding, the
file and the text of the line, so they outlive edits elsewhere in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardspec.diagnostics import Code, Diagnostic, Fix, Label, Span
from shardspec.diagnostics.printable import printable_json
from shardspec.formats.places import end, local, local_primary, relative

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_FINGERPRINT = "shardspec/v1"

Json = dict[str, Any]


def sarif_text(diagnostics: Iterable[Diagnostic], scope: Mapping[str, int] | None = None) -> str:
    """Return findings as a SARIF log with one run.

    Args:
      scope: how much was checked: files, arrays, activations, targets.
    """
    import json

    log = sarif(tuple(diagnostics), scope)
    return printable_json(json.dumps(log, indent=2, ensure_ascii=False))


def sarif(diagnostics: Sequence[Diagnostic], scope: Mapping[str, int] | None = None) -> Json:
    """Return findings as the data of a SARIF log."""
    codes = sorted({diagnostic.code for diagnostic in diagnostics}, key=lambda code: code.id)
    index = {code: at for at, code in enumerate(codes)}
    prints = _fingerprints(diagnostics)
    results = [_result(each, index[each.code], next(prints)) for each in diagnostics]
    run: Json = {
        "tool": {"driver": {**_driver(), "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": results,
    }
    if scope is not None:
        run["properties"] = dict(scope)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _driver() -> Json:
    from shardspec import __version__

    return {"name": "shardspec", "version": __version__, "semanticVersion": __version__}


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
        "message": {"text": _message(diagnostic)},
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
    fix = None if diagnostic.fix is None else _fix(diagnostic.fix)
    if fix is not None:
        result["fixes"] = [fix]
    return result


def _message(diagnostic: Diagnostic) -> str:
    helps = [f"help: {diagnostic.help}"] if diagnostic.help else []
    notes = [f"note: {note}" for note in diagnostic.notes]
    return "\n".join((diagnostic.message, *notes, *helps))


def _location(label: Label, *, said: bool = False) -> Json | None:
    """Return where a label stands; None where no file has it."""
    span = local(label.span)
    location: Json = {}
    if span is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri(span.source.name)},
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

    path = relative(name)
    return f"file://{quote(path)}" if path.startswith("/") else quote(path)


def _fix(fix: Fix) -> Json | None:
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
        {"artifactLocation": {"uri": name}, "replacements": replacements}
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
        file = "" if span is None else relative(span.source.name)
        is_shown = label is not None and not label.span.source.is_outside
        line = label.span.source.line_text(label.span.line).strip() if label and is_shown else ""
        key = (diagnostic.code.id, file, line)
        seen[key] += 1
        yield sha256("\0".join((*key, str(seen[key]))).encode()).hexdigest()
