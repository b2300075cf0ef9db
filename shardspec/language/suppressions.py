"""Comments that silence a finding where it stands: `# shardspec: ignore[SHD302] reason`.

Behind an entry such a comment is about that line, alone on a line about the next line below that
is no comment; the line of a finding is that of its primary label. `ignore-file[...]` above the
first entry is about the whole file. What is a comment, the reader of the file says: a `#` in
quotes is none. Files without such a comment are not looked at twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span
from shardspec.diagnostics.levels import UNDENIABLE
from shardspec.language.reading import is_dsl

_MARK = re.compile(r"#[ \t]*shardspec[ \t]*:[ \t]*(?=[A-Za-z])")
_SUPPRESSION = re.compile(r"(ignore|ignore-file)\[[ \t]*([\w-]+(?:[ \t]*,[ \t]*[\w-]+)*)[ \t]*\]")
_WORD = re.compile(r"[\w-]+")


class Suppression(NamedTuple):
    """One comment that silences findings.

    Attributes:
      findings: ids and names, each with its place; unknown ones too.
      line: the line that it is about; None for the whole file.
      span: from its `#` to its `]`.
      comment: all of the comment that it is part of.
    """

    findings: tuple[Excerpt, ...]
    line: int | None
    span: Span
    comment: Span

    def silences(self, diagnostic: Diagnostic) -> Iterator[Excerpt]:
        """Yield the names in it that silence a finding of the same file."""
        label = diagnostic.primary
        if label is None or self.line not in (None, label.span.line):
            return
        code = diagnostic.code
        yield from (each for each in self.findings if each.text in (code.id, code.name))


class Marked(NamedTuple):
    """The comments of a file that speak to shardspec.

    Attributes:
      nearly: comments that look like one, as (span from `shardspec:` on, whether it is a whole
        one in the wrong place).
    """

    suppressions: tuple[Suppression, ...] = ()
    nearly: tuple[tuple[Span, bool], ...] = ()


def suppressed(
    diagnostics: Iterable[Diagnostic],
) -> tuple[tuple[Diagnostic, ...], frozenset[Span]]:
    """Return the findings that no comment silences, and where names stand that silenced others."""
    kept: list[Diagnostic] = []
    used: set[Span] = set()
    for diagnostic in diagnostics:
        names = tuple(_silencers(diagnostic))
        used.update(name.span for name in names)
        if not names:
            kept.append(diagnostic)
    return tuple(kept), frozenset(used)


def _silencers(diagnostic: Diagnostic) -> Iterator[Excerpt]:
    label = diagnostic.primary
    if label is None or diagnostic.code.id in UNDENIABLE:
        return
    for suppression in marked(label.span.source).suppressions:
        yield from suppression.silences(diagnostic)


@lru_cache(maxsize=16)
def marked(source: SourceFile) -> Marked:
    """Return the suppressions of a file, and the comments that are nearly one."""
    if not _MARK.search(source.text):
        return Marked()
    comments, first_entry = _comments(source)
    own = frozenset(comment.line for comment in comments if _is_own_line(comment))
    suppressions: list[Suppression] = []
    nearly: list[tuple[Span, bool]] = []
    for comment in comments:
        for span in _directives(comment):
            found = _SUPPRESSION.match(source.text, _after_mark(span), span.end)
            if found is None:
                if is_nearly(span):
                    nearly.append((span, False))
            elif found[1] == "ignore":
                line = _line_below(comment, own) if comment.line in own else comment.line
                suppressions.append(_suppression(found, span, comment, line))
            elif comment.line in own and comment.start < first_entry:
                suppressions.append(_suppression(found, span, comment, None))
            else:
                nearly.append((Span(source, span.start, found.end()), True))
    return Marked(tuple(suppressions), tuple(nearly))


def _comments(source: SourceFile) -> tuple[tuple[Span, ...], int]:
    """Return the comments of a file, and where its first entry starts; none if unreadable."""
    text, end = source.text, len(source.text)
    if is_dsl(source):
        from shardspec.language.dsl_text.layout import lay_out

        layout = lay_out(text)
        spans = tuple((comment.start, comment.end) for comment in layout.comments)
        first = layout.statements[0].start if layout.statements else end
    else:
        from shardspec.language.yaml_text.comments import comment_spans
        from shardspec.language.yaml_text.reader import read_yaml

        reading, _ = read_yaml(source, with_comments=False)
        if reading is None:
            return (), 0
        spans = tuple(comment_spans(reading.source_map))
        first = min((key.span.start for key in reading.source_map.keys.values()), default=end)
    stops = ((start, start + len(text[start:stop].rstrip())) for start, stop in spans)
    return tuple(Span(source, start, stop) for start, stop in stops), first


def _is_own_line(comment: Span) -> bool:
    text = comment.source.text
    return not text[text.rfind("\n", 0, comment.start) + 1 : comment.start].strip()


def _line_below(comment: Span, own: frozenset[int]) -> int:
    """Return the first line below a comment that holds no comment alone."""
    line = comment.line + 1
    while line in own:
        line += 1
    return line


def _directives(comment: Span) -> Iterator[Span]:
    """Yield each part of a comment that begins with `# shardspec:`."""
    text = comment.source.text
    starts = [found.start() for found in _MARK.finditer(text, comment.start, comment.end)]
    for start, end in pairwise((*starts, comment.end)):
        yield Span(comment.source, start, start + len(text[start:end].rstrip()))


def _after_mark(span: Span) -> int:
    found = _MARK.match(span.source.text, span.start, span.end)
    return found.end() if found else span.end


def _suppression(found: re.Match[str], span: Span, comment: Span, line: int | None) -> Suppression:
    source = span.source
    words = _WORD.finditer(source.text, found.start(2), found.end(2))
    findings = tuple(
        Excerpt(word[0], Span(source, word.start(), word.end()), word.start()) for word in words
    )
    return Suppression(findings, line, Span(source, span.start, found.end()), comment)


#: What other tools call it.
_VERBS = frozenset(
    {"allow", "disable", "expect", "ignore", "ignore-file", "ignore-line", "ignore-next-line"}
    | {"noqa", "nolint", "off", "skip", "suppress"}
)


def is_nearly(span: Span) -> bool:
    """Say whether what stands behind `# shardspec:` was meant to silence something."""
    rest = span.source.text[_after_mark(span) : span.end]
    word = _WORD.match(rest)
    return word is not None and (word[0].lower() in _VERBS or rest[word.end() :][:1] in ("[", "("))
