"""Where a finding stands, for tools that know the files of a checkout and nothing else.

A preset is no file of theirs: there the place that pulled it in stands for it. A flag and
standard input have no place at all.
"""

from __future__ import annotations

import os
import re

from shardspec.diagnostics import Diagnostic, Span

_NO_FILE = re.compile(r"(?:preset|arrays|hardware):|(?:--set|-|<.*>)$")


def local(span: Span | None) -> Span | None:
    """Return the span, or the nearest place in a file that pulled its source in."""
    while span is not None and _NO_FILE.match(span.source.name):
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


def end(span: Span) -> tuple[int, int]:
    """Return line and column of the character after a span, counted from 1."""
    after = Span(span.source, span.end, span.end)
    return after.line, after.column
