r"""A glob looks like a regex, or a regex like a glob, and would match more if read so.

In a glob `(wi|wo)`, `[0-9]+` and `\d` are these very characters; in a regex `layers_*` is any
number of underscores, and `wi_{0,1}` a `wi` with one underscore or none. Reported if the other
reading matches arrays that this pattern misses and that no other entry matches. A pattern that
matches nothing is SHD204, with the same suggestions.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "re:decoder/mlp/wi_{0,1}/kernel": _ mlp
      "**": _ _
    arrays:
      "decoder/mlp/{wi,wi_0,wi_1}/kernel": bf16[64, 128]
      decoder/relative/bias: bf16[8, 32]

Good:
    -  "re:decoder/mlp/wi_{0,1}/kernel": _ mlp
    +  "decoder/mlp/{wi,wi_{0,1}}/kernel": _ mlp
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import counted, described
from shardspec.lints.context import Context
from shardspec.lints.evidence.entries import Entry, Section, Spelling, fix_for, readings, sections
from shardspec.resolve.match import path_matcher


@dataclass(slots=True)
class _Reading:
    """A pattern read in another way.

    Attributes:
      missed: what it would match, and the pattern does not.
    """

    at: int
    spelling: Spelling
    missed: list[str] = field(default_factory=list)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pattern of the spec itself that another reading suits better."""
    for section in sections(context):
        tried = [
            _Reading(at, spelling)
            for at in sorted(section.own)
            for spelling in readings(section.entries[at].pattern)
        ]
        if tried:
            yield from _missing(section, tried)


def _missing(section: Section, tried: Sequence[_Reading]) -> Iterator[Diagnostic]:
    entries, matcher = section.entries, section.matcher
    others = path_matcher(tuple(reading.spelling.pattern for reading in tried))
    matched: dict[int, list[str]] = {reading.at: [] for reading in tried}
    beside: dict[int, set[int]] = {reading.at: set() for reading in tried}
    for path, matches in zip(section.paths, section.matches, strict=True):
        for at in matched.keys() & set(matches):
            matched[at].append(path)
            beside[at].update(matches)
        for index in others.all_matches(path):
            if tried[index].at not in matches:
                tried[index].missed.append(path)
    reported: set[int] = set()
    for reading in tried:  # what is left to nobody, or to a general entry behind this one
        at = reading.at
        general = {
            other
            for other in beside[at]
            if other > at and entries[other].answer != entries[at].answer
        }
        missed = [p for p in reading.missed if matcher.first_match(p) in {None, *general}]
        if matched[at] and missed and at not in reported:
            reported.add(at)
            yield _finding(entries[at], reading.spelling, matched[at], missed)


def _finding(
    entry: Entry, spelling: Spelling, matched: Sequence[str], missed: Sequence[str]
) -> Diagnostic:
    pattern = entry.pattern
    kind, other = ("regex", "glob") if pattern.dialect == "regex" else ("glob", "regex")
    how = f": {spelling.how}" if spelling.how else ""
    verb = "matches" if len(missed) == 1 else "match"
    return point(
        codes.REGEX_LIKE_GLOB,
        f"{entry.section} {kind} `{pattern.text}` looks like a {other}: it matches"
        f" {counted(len(matched), 'array')}, and misses {len(missed)} that {verb} otherwise",
        pattern.span,
        f"read as a {kind}",
        notes=(f"missed: {described(missed)}",),
        help=f"{spelling.name} matches these{how}",
        fix=fix_for(pattern, spelling),
    )
