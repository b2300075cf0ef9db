"""Findings as JSON for other tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardspec.diagnostics import Diagnostic, Fix, Label, Span
from shardspec.diagnostics.printable import printable_json

SCHEMA = "shardspec.check/1"


def findings_text(diagnostics: Iterable[Diagnostic], scope: Mapping[str, int] | None = None) -> str:
    """Return findings as JSON text, in the order given.

    Args:
      scope: how much was checked: files, arrays, activations, targets.
    """
    import json

    document: dict[str, Any] = {"schema": SCHEMA}
    if scope is not None:
        document["checked"] = dict(scope)
    document["findings"] = [_finding(each) for each in diagnostics]
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False))


def _finding(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        "code": diagnostic.code.id,
        "name": diagnostic.code.name,
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "labels": [_label(label) for label in diagnostic.labels],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "target": diagnostic.target,
        "bytes": diagnostic.bytes,
        "fix": None if diagnostic.fix is None else _fix(diagnostic.fix),
    }


def _fix(fix: Fix) -> dict[str, Any]:
    edits = [{**_place(edit.span), "replacement": edit.text} for edit in fix.edits]
    return {"title": fix.title, "sure": fix.is_sure, "edits": edits}


def _label(label: Label) -> dict[str, Any]:
    return {**_place(label.span), "text": label.text, "primary": label.primary}


def _place(span: Span) -> dict[str, Any]:
    return {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "length": span.end - span.start,
    }
