"""The place of a name inside an entry of the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardspec.diagnostics import Span


def first_word(span: Span, word: str) -> Span:
    """Return where `word` first stands as a whole word in `span`; all of it if nowhere."""
    return _at(next(_found(span, word), None), span)


def last_word(span: Span, word: str) -> Span:
    """Return where `word` last stands as a whole word in `span`; all of it if nowhere."""
    found = list(_found(span, word))
    return _at(found[-1] if found else None, span)


def _found(span: Span, word: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"(?<![\w.-]){re.escape(word)}(?!\w|[-.]\w)", span.text)


def _at(found: re.Match[str] | None, span: Span) -> Span:
    if found is None:
        return span
    return Span(span.source, span.start + found.start(), span.start + found.end())
