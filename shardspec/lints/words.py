"""The place of a name inside an entry of the source.

A file may be one line, and each of its entries may have a finding: nothing here copies the text
of a span, and the search goes from the end that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardspec.diagnostics import Span

_JOINS = "-."


def first_word(span: Span, word: str) -> Span:
    """Return where `word` first stands as a whole word in `span`; all of it if nowhere."""
    text, at = span.source.text, span.start
    found = _places(lambda after: text.find(word, after, span.end), lambda hit: hit + 1, at)
    return _whole(found, span, word)


def last_word(span: Span, word: str) -> Span:
    """Return where `word` last stands as a whole word in `span`; all of it if nowhere."""
    text, at = span.source.text, span.end
    longer = len(word) - 1
    found = _places(
        lambda before: text.rfind(word, span.start, before), lambda hit: hit + longer, at
    )
    return _whole(found, span, word)


def _places(
    search: Callable[[int], int], onward: Callable[[int], int], limit: int
) -> Iterator[int]:
    """Yield each place that a search finds, the next one within what the last one leaves."""
    hit = search(limit)
    while hit >= 0:
        yield hit
        hit = search(onward(hit))


def _whole(places: Iterator[int], span: Span, word: str) -> Span:
    """Return the first of some places where `word` is no part of a longer one; else all."""
    for start in places if word else ():
        if _stands_alone(span, start, start + len(word)):
            return Span(span.source, start, start + len(word))
    return span


def _stands_alone(span: Span, start: int, end: int) -> bool:
    text = span.source.text
    before = text[start - 1] if start > span.start else ""
    after, second = text[end : min(end + 1, span.end)], text[end + 1 : min(end + 2, span.end)]
    if before and (_is_letter(before) or before in _JOINS):
        return False
    return not _is_letter(after) and not (after and after in _JOINS and _is_letter(second))


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"
