r"""A regex matches one digit, and the model has more than 10 layers.

`layer_\d` matches layers 0 to 9 and silently not layer 10, which then keeps other names or none.
Reported if other arrays differ from the matched ones only in the number. Not reported: `layer_\d\d`
and `layer_1\d`, and a `layer_\d` with another entry for the other layers.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
      - embed -> none
    overrides:
      - match: 'encoder/layer_\d/mlp/kernel'
        axes: embed mlp
    arrays:
      "encoder/layer_{0..23}/mlp/kernel": bf16[_=64 mlp=128]

Good:
    -  - match: 'encoder/layer_\d/mlp/kernel'
    +  - match: 'encoder/layer_\d+/mlp/kernel'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Edit, Fix, Span, codes, point
from shardspec.diagnostics.words import counted, described, template
from shardspec.ir.spec import Pattern
from shardspec.lints.context import Context
from shardspec.lints.evidence import entries as section_entries
from shardspec.resolve.match import PathMatcher, path_matcher


@dataclass(slots=True)
class _Reach:
    """What a regex matches, and what it would match with room for more digits."""

    matched: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex of the spec itself that misses the higher numbers."""
    for section in section_entries.sections(context):
        entries = section.entries
        linear = (
            at for at in sorted(section.own) if section_entries.is_linear(entries[at].pattern)
        )
        found = {at: section_entries.single_digits(entries[at].pattern.text) for at in linear}
        places = {at: ends for at, ends in found.items() if ends}
        if not places:
            continue
        for at, reach in _reaches(entries, places, context.paths).items():
            missed = tuple(_by_mistake(entries, at, reach, section.matcher))
            if missed:
                yield _finding(entries[at], places[at], reach.matched, missed)


def _reaches(
    entries: Sequence[section_entries.Entry],
    places: Mapping[int, tuple[int, ...]],
    paths: Sequence[str],
) -> dict[int, _Reach]:
    """Return the reach of each regex with single digits, in one walk over the paths."""
    positions = tuple(places)
    texts = [entries[at].pattern.text for at in positions]
    narrow = path_matcher(tuple(Pattern(text, "regex") for text in texts))
    wide = path_matcher(
        tuple(
            Pattern(section_entries.widened(text, places[at]), "regex")
            for at, text in zip(positions, texts, strict=True)
        )
    )
    reaches = {at: _Reach() for at in positions}
    for path in paths:
        reached = wide.all_matches(path)
        matched = narrow.all_matches(path) if reached else ()
        for index in reached:
            reach = reaches[positions[index]]
            (reach.matched if index in matched else reach.missed).append(path)
    return reaches


def _by_mistake(
    entries: Sequence[section_entries.Entry], at: int, reach: _Reach, matcher: PathMatcher
) -> Iterator[str]:
    """Yield what is missed though only its number differs, and no entry is meant for it alone."""
    templates = {template(path) for path in reach.matched}
    missed = [path for path in reach.missed if template(path) in templates]
    if not missed:
        return
    beside = {other for path in reach.matched for other in matcher.all_matches(path)}
    for path in missed:
        taker = matcher.first_match(path)
        if taker is None or (taker in beside and entries[taker].answer != entries[at].answer):
            yield path


def _finding(
    entry: section_entries.Entry,
    ends: tuple[int, ...],
    matched: Sequence[str],
    missed: Sequence[str],
) -> Diagnostic:
    text = entry.pattern.text
    right = section_entries.least_widened(text, ends, missed)
    end = next(end for end in ends if right[end : end + 1] == "+")
    start = text.rfind("[" if text[end - 1] == "]" else "\\", 0, end)
    return point(
        codes.SINGLE_DIGIT,
        f"{entry.section} pattern `{entry.pattern}` matches {counted(len(matched), 'array')},"
        f" and misses {len(missed)} whose number has more digits",
        _part(entry.pattern, start, end),
        "one digit",
        notes=(f"missed: {described(missed)}",),
        help=f"`{right}` matches them all; or if one digit is intended, write a glob: `{{0..9}}`",
        fix=_fix(entry.pattern, right),
    )


def _fix(pattern: Pattern, right: str) -> Fix | None:
    """Return the fix that writes `right`; it moves arrays, so it is the author's to take."""
    place = _part(pattern, 0, len(pattern.text))
    if place is None or place.text != pattern.text:
        return None
    return Fix(f"replace `{pattern.text}` by `{right}`", (Edit(place, right),))


def _part(pattern: Pattern, start: int, end: int) -> Span | None:
    """Return where a part of a pattern stands; all of it where escapes hide the place."""
    span = pattern.span
    offset = -1 if span is None else span.text.find(pattern.text)
    if span is None or offset < 0:
        return span
    return Span(span.source, span.start + offset + start, span.start + offset + end)
