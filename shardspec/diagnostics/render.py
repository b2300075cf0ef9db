"""Diagnostics as text with carets under the offending characters.

Two labels are shown where there are two sides: `^^^` marks the culprit, `---` the cause. A
finding in a preset points into the preset, and says who pulled it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from shardspec.diagnostics.diagnostic import (
    Diagnostic,
    Label,
    Severity,
    SourceFile,
    Span,
    printable,
)
from shardspec.diagnostics.lines import NARROW, size_of, wrapped

#: Where a message goes on below its first line.
_BELOW = 4

#: Longer lines are cut around the label, so that a minified file does not flood the terminal.
_WIDTH = 160

#: Room for the words below a label that stands far right.
_LEAST_LABEL = 30

_COLORS = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "allow": "\x1b[2m",
    "frame": "\x1b[1;34m",
    "help": "\x1b[1;32m",
    "bold": "\x1b[1m",
}
_RESET = "\x1b[0m"


class ShardspecError(Exception):
    """Raised at the public edge with every fault that was found.

    Attributes:
      diagnostics: all findings, errors and warnings, in reading order.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keep the findings; the rendered text is made when it is asked for."""
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        """Return the findings as the command line would print them, without colour."""
        return "\n" + render_all(self.diagnostics)


def render_all(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """Return all diagnostics in full form, an empty line between two."""
    return "\n\n".join(render(diagnostic, color=color) for diagnostic in diagnostics)


def render(diagnostic: Diagnostic, *, color: bool = False, width: int | None = None) -> str:
    """Return one diagnostic in full form: header, source with carets, notes, help.

    Args:
      width: columns of the terminal, at which sentences go on below; None for no end. What stands
        in backticks is replicated, so that it can be copied.
    """
    return "\n".join(_lines(diagnostic, color, width))


def render_concise(diagnostic: Diagnostic) -> str:
    """Return one diagnostic on one line: `spec.yaml:8:10: error[SHD201]: message`."""
    label = diagnostic.primary
    place = f"{label.span}: " if label else ""
    return printable(f"{place}{diagnostic.severity}[{diagnostic.code.id}]: {diagnostic.message}")


def render_plain(
    kind: str, message: str, help: str, *, color: bool = False, width: int | None = None
) -> str:
    """Return what no finding is for, such as a wrong flag, in the form of one without a place.

    >>> print(render_plain("error", "no verb is called `chekc`", "did you mean `check`?"))
    error: no verb is called `chekc`
      = help: did you mean `check`?
    """
    head = _headline(kind, kind, message, color, width)
    return "\n".join((*head, *_remark("help", help, 1, color, width)))


def _lines(diagnostic: Diagnostic, color: bool, width: int | None) -> Iterator[str]:
    severity = diagnostic.severity
    name = f"{severity}[{diagnostic.code.id}]"
    yield from _headline(name, severity, diagnostic.message, color, width)
    margin = max((len(str(label.span.line)) for label in diagnostic.labels), default=0) + 1
    bar = _paint("|", "frame", color)
    remarks = [("note", note) for note in diagnostic.notes]
    if diagnostic.help:
        remarks.append(("help", diagnostic.help))
    groups = _by_source(diagnostic.labels)
    for source, labels in groups:
        first = next((label for label in labels if label.primary), labels[0])
        arrow = "-->" if first.primary else ":::"
        yield f"{' ' * margin}{_paint(arrow, 'frame', color)} {printable(str(first.span))}"
        if not source.is_outside:
            yield f"{' ' * margin} {bar}"
            yield from _snippet(source, labels, margin, severity, color, width)
        pulled_in = [("note", line) for line in _inclusion(source, diagnostic.labels)]
        if pulled_in or remarks or labels is not groups[-1][1]:
            yield f"{' ' * margin} {bar}"
        for kind, text in pulled_in:
            yield from _remark(kind, text, margin, color, width)
    for kind, text in remarks:
        yield from _remark(kind, text, margin, color, width)


def _headline(name: str, style: str, message: str, color: bool, width: int | None) -> Iterator[str]:
    first, *rest = wrapped(printable(message), width, len(name) + 2, _BELOW)
    yield f"{_paint(name, style, color)}: {_paint(first, 'bold', color)}"
    yield from (f"{' ' * _BELOW}{_paint(line, 'bold', color)}" for line in rest)


def _by_source(labels: Sequence[Label]) -> list[tuple[SourceFile, list[Label]]]:
    """Group labels by file, the file of the culprit first."""
    groups: list[tuple[SourceFile, list[Label]]] = []
    for label in sorted(labels, key=lambda label: not label.primary):
        for source, members in groups:
            if source == label.span.source:
                members.append(label)
                break
        else:
            groups.append((label.span.source, [label]))
    return groups


def _snippet(
    source: SourceFile,
    labels: Sequence[Label],
    margin: int,
    severity: Severity,
    color: bool,
    width: int | None,
) -> Iterator[str]:
    """Yield the labelled lines of one file, each followed by its carets."""
    previous, left = 0, margin + 3
    room = _WIDTH if width is None or width < NARROW else min(_WIDTH, width - left)
    for label in sorted(labels, key=lambda label: (label.span.start, label.span.end)):
        line = label.span.line
        if previous and line > previous + 1:
            yield "..."
        text = source.line_text(line)
        shown, shift = _window(text, label.span.column - 1, room)
        if line != previous:
            number = _paint(f"{line:>{margin - 1}} |", "frame", color)
            yield f" {number} {shown}".rstrip()
        indent = " " * size_of(_plain(text[shift : label.span.column - 1]))
        mark = ("^" if label.primary else "-") * min(
            _caret_width(label.span, text), max(room - len(indent), 1)
        )
        style, bar = severity if label.primary else "frame", _paint("|", "frame", color)
        below = " " * min(len(indent), max(room - _LEAST_LABEL, 0))
        start = left + len(indent) + len(mark) + 1
        lines = wrapped(printable(label.text), width, start, left + len(below))
        if width is not None and start + len(lines[0]) >= width >= NARROW:
            lines = [
                "",
                *wrapped(printable(label.text), width, left + len(below), left + len(below)),
            ]
        lines[0] = f"{indent}{_paint(f'{mark} {lines[0]}'.rstrip(), style, color)}"
        lines[1:] = [f"{below}{_paint(more, style, color)}" for more in lines[1:]]
        yield from (f"{' ' * (margin + 1)}{bar} {line}" for line in lines)
        previous = line


def _window(text: str, column: int, room: int) -> tuple[str, int]:
    """Return the part of a long line around `column`, and where it starts."""
    if len(text) <= room:
        return _plain(text), 0
    shift = max(0, min(column - room // 2, len(text) - room))
    return _plain(text[shift : shift + room]), shift


def _plain(text: str) -> str:
    """Return `text` with what would upset a terminal or the alignment made harmless."""
    return "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in text)


def _caret_width(span: Span, line: str) -> int:
    rest = line[span.column - 1 : span.column - 1 + (span.end - span.start)][:_WIDTH]
    return max(1, size_of(_plain(rest.rstrip())))


def _inclusion(source: SourceFile, labels: Sequence[Label]) -> Iterator[str]:
    """Yield who pulled this file in, from the inside out, unless a label shows it."""
    shown = {label.span for label in labels}
    while source.included_from is not None and source.included_from not in shown:
        yield f"{source.name} is pulled in by {source.included_from}"
        source = source.included_from.source


def _remark(
    kind: str, text: str, margin: int, color: bool, width: int | None = None
) -> Iterator[str]:
    indent = margin + 3 + len(kind) + 2
    lines = map(printable, text.split("\n"))
    first, *rest = chain.from_iterable(wrapped(line, width, indent, indent) for line in lines)
    yield f"{' ' * margin} = {_paint(kind, kind if kind == 'help' else 'bold', color)}: {first}"
    yield from (f"{' ' * indent}{line}" for line in rest)


def _paint(text: str, style: str, color: bool) -> str:
    return f"{_COLORS[str(style)]}{text}{_RESET}" if color else text
