"""Findings as workflow commands, which GitHub Actions shows beside the lines of a pull request.

Source: GitHub's documentation of workflow commands: `%`, CR and LF are escaped everywhere, `:`
and `,` in properties too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.formats.places import end, local_primary, relative


def commands(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Yield one command for each finding: `::error file=spec.yaml,line=8,...::message`."""
    for diagnostic in diagnostics:
        properties = {**_place(diagnostic), "title": diagnostic.code.id}
        listed = ",".join(f"{key}={_property(str(v))}" for key, v in properties.items())
        yield f"::{diagnostic.severity} {listed}::{_data(_text(diagnostic))}"


def _place(diagnostic: Diagnostic) -> dict[str, object]:
    span = local_primary(diagnostic)
    if span is None:
        return {}
    line, column = end(span)
    file = relative(span.source.name)
    start = {"file": file, "line": span.line, "col": span.column}
    return {**start, "endLine": line, "endColumn": column}


def _text(diagnostic: Diagnostic) -> str:
    """Return message, notes and help, and where it stands if no file of the checkout."""
    label = diagnostic.primary
    lines = [diagnostic.message]
    if label is not None and local_primary(diagnostic) != label.span:
        lines.append(f"at {label.span}")
    lines += [f"note: {note}" for note in diagnostic.notes]
    return "\n".join((*lines, f"help: {diagnostic.help}") if diagnostic.help else lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
