"""Globs and regexes: slow ones, hidden ones, and ranges with gaps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span, codes, labels_at, point
from shardspec.diagnostics.words import counted, described, grouped, listed, template
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.spec import LogicalAxes, PathRule, Pattern
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.backtracking import fallback_reason, ran_out, unanswered
from shardspec.language.patterns.regex import compile_regex
from shardspec.lints.context import Context
from shardspec.lints.evidence.entries import Entry, Section, sections
from shardspec.lints.evidence.spellings import (
    Spelling,
    fix_for,
    is_linear,
    least_widened,
    readings,
    single_digits,
    widened,
)
from shardspec.resolve.match import PathMatcher, path_matcher

# slow-regex


def slow_regex(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex that RE2 cannot express, or had no room for."""
    yield from slow(context.spec.patterns)


def slow(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each of `patterns` that RE2 cannot express, or had no room for."""
    for pattern in patterns:
        if pattern.dialect != "regex" or pattern.text in ran_out():
            continue
        compiled = compile_regex(pattern.text)
        if isinstance(compiled, SyntaxFault):
            continue
        reason = compiled.reason or fallback_reason(pattern.text)
        if reason:
            yield point(
                codes.SLOW_REGEX,
                f"regex `{pattern.text}` may backtrack without end: {reason}",
                pattern.span,
                "runs under Python's `re`",
                help="write it without, or as a glob with `*`, `**`, `{a,b}` and `{0..23}`",
            )


# hidden-pattern


#: Entries in the way that are pointed at; more are named or counted.
_SHOWN = 4


@dataclass(slots=True)
class _Hidden:
    """What stands in the way of an entry.

    Attributes:
      takers: position of an entry before it -> how many of its arrays that one takes.
      first: the first array that it matches.
    """

    first: str
    takers: Counter[int] = field(default_factory=Counter)


def hidden_pattern(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of the spec itself that decides on no array."""
    overrides, params, _, *others = sections(context)
    for section in (overrides, params, *others):
        if section.own:
            hidden, wins = _hidden(section)
            for at in sorted(hidden):
                yield _hidden_pattern_finding(section.entries, at, hidden[at], wins)
    yield from outvoted(context)


def _hidden(section: Section) -> tuple[dict[int, _Hidden], Counter[int]]:
    """Return the own entries that match and never come first, and how often each other does.

    Invariants:
      hidden: those that match something, and of no path are the first that does.
    """
    wins = Counter(matches[0] for matches in section.matches if matches)
    waiting = section.own - wins.keys()
    hidden: dict[int, _Hidden] = {}
    for path, matches in zip(section.paths, section.matches, strict=True) if waiting else ():
        for at in waiting.intersection(matches[1:]):
            hidden.setdefault(at, _Hidden(path)).takers[matches[0]] += 1
    return hidden, wins


def _hidden_pattern_finding(
    entries: Sequence[Entry], at: int, hidden: _Hidden, wins: Counter[int]
) -> Diagnostic:
    entry, takers = entries[at], sorted(hidden.takers)
    count = hidden.takers.total()
    before = listed((str(entries[taker].pattern) for taker in takers), limit=2)
    taken = "it" if count == 1 else f"all {count}"
    verb = "takes" if len(takers) == 1 else "take"
    return Diagnostic(
        codes.HIDDEN_PATTERN,
        f"{entry.section} pattern `{entry.pattern}` matches {counted(count, 'array')},"
        f" and {before} before it {verb} {taken}",
        labels_at(*_places(entries, at, hidden)),
        notes=(f"the first is {hidden.first}",),
        help=_help(entries, at, hidden, wins),
    )


def _places(entries: Sequence[Entry], at: int, hidden: _Hidden) -> Iterator[tuple[Span, str]]:
    span = entries[at].pattern.span
    if span is None:
        return
    yield span, "has no effect"
    for taker in sorted(hidden.takers)[:_SHOWN]:
        before = entries[taker].pattern.span
        if before is not None:
            yield before, f"takes {hidden.takers[taker]}"


def _help(entries: Sequence[Entry], at: int, hidden: _Hidden, wins: Counter[int]) -> str:
    takers = sorted(hidden.takers)
    if all(entries[taker].answer == entries[at].answer for taker in takers):
        if entries[at].section == "replicate":
            return "remove it: these arrays have a reason already"
        return "remove it: the arrays get the same answer already"
    swallowed = [taker for taker in takers if hidden.takers[taker] == wins[taker]]
    if swallowed:  # put first, it would leave nothing to them
        others = listed((str(entries[taker].pattern) for taker in swallowed), limit=2)
        return f"remove it, or put it in place of {others}"
    return f"put it before `{entries[takers[0]].pattern}`, or remove it"


def outvoted(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each own entry of `params:` whose arrays name themselves otherwise."""
    named = [each for each in context.first if each.origin is Origin.ARRAY]
    rules = context.spec.path_rules if named else ()
    matcher = sections(context)[1].matcher
    claims = grouped(named, lambda each: matcher.first_match(each.param.path))
    used = {each.matched for each in context.first} if named else ()
    for at, rule in enumerate(rules):
        if at in claims and rule not in used and context.is_own(rule.pattern.span):
            others = [each for each in claims[at] if _differs(rule, each)]
            if others:
                yield _names_finding(rule, claims[at], others)


def _differs(rule: PathRule, sharding: ParamSharding) -> bool:
    """Say whether an array's names are others; more of them may be stacked axes."""
    names = iter(sharding.param.logical_axes or ())
    return not all(name in names for name in rule.logical_axes)


def _names_finding(
    rule: PathRule, named: Sequence[ParamSharding], others: Sequence[ParamSharding]
) -> Diagnostic:
    asked, first = _names_text(rule.logical_axes), others[0].param
    said = _names_text(first.logical_axes or ())
    both = (f"`{first.path}` says `{said}`, and this `{asked}`",) if first.span is None else ()
    return Diagnostic(
        codes.HIDDEN_PATTERN,
        f"params pattern `{rule.pattern}` has no effect: {_who(len(named), len(others))}",
        labels_at((rule.pattern.span, f"would say `{asked}`"), (first.span, f"says `{said}`")),
        notes=(*both, described(each.param.path for each in others)),
        help="remove it, or make it an override, which comes before an array's own names",
    )


def _who(named: int, others: int) -> str:
    """Return whose names count, and how many of them are others."""
    if named == 1:
        return "the only array that it matches has other names of its own"
    share = "" if named == others else f" in {others}"
    return f"all {named} arrays it matches carry names of their own, different ones{share}"


def _names_text(names: LogicalAxes) -> str:
    return " ".join(name or "_" for name in names)


# single-digit


@dataclass(slots=True)
class _Reach:
    """What a regex matches, and what it would match with room for more digits."""

    matched: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def single_digit(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex of the spec itself that misses the higher numbers."""
    for section in sections(context):
        entries = section.entries
        linear = (at for at in sorted(section.own) if is_linear(entries[at].pattern))
        found = {at: single_digits(entries[at].pattern.text) for at in linear}
        places = {at: ends for at, ends in found.items() if ends}
        if not places:
            continue
        for at, reach in _reaches(entries, places, context.paths).items():
            missed = tuple(_by_mistake(entries, at, reach, section.matcher))
            if missed:
                yield _single_digit_finding(entries[at], places[at], reach.matched, missed)


def _reaches(
    entries: Sequence[Entry], places: Mapping[int, tuple[int, ...]], paths: Sequence[str]
) -> dict[int, _Reach]:
    """Return the reach of each regex with single digits, in one walk over the paths."""
    positions = tuple(places)
    texts = [entries[at].pattern.text for at in positions]
    narrow = path_matcher(tuple(Pattern(text, "regex") for text in texts))
    wide = path_matcher(
        tuple(
            Pattern(widened(text, places[at]), "regex")
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
    entries: Sequence[Entry], at: int, reach: _Reach, matcher: PathMatcher
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


def _single_digit_finding(
    entry: Entry, ends: tuple[int, ...], matched: Sequence[str], missed: Sequence[str]
) -> Diagnostic:
    text = entry.pattern.text
    right = least_widened(text, ends, missed)
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


# regex-like-glob


@dataclass(slots=True)
class _Reading:
    """A pattern read in another way.

    Attributes:
      missed: what it would match, and the pattern does not.
    """

    at: int
    spelling: Spelling
    missed: list[str] = field(default_factory=list)


def regex_like_glob(context: Context) -> Iterator[Diagnostic]:
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
            yield _regex_like_glob_finding(entries[at], reading.spelling, matched[at], missed)


def _regex_like_glob_finding(
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


# short-range


_NUMBER = re.compile(r"(?<![0-9])(?<!\.\.)\{?([0-9]{1,9})")
_RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")


class _Entry(NamedTuple):
    """One entry with a range.

    Attributes:
      last: of the range.
      place: of the range, in the source.
    """

    first: int
    last: int
    place: Span


class _Family(NamedTuple):
    """Entries that begin alike.

    Attributes:
      entries: those with a range.
      begun: the numbers at which a range or a single layer begins.
    """

    entries: list[_Entry]
    begun: set[int]


def short_range(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each range that ends elsewhere than most beside it."""
    for stem, family in _families(context).items():
        firsts = dict.fromkeys(entry.first for entry in family.entries)
        for first in firsts:
            entries = [
                entry
                for entry in family.entries
                if entry.first == first and (len(firsts) == 1 or entry.last + 1 not in family.begun)
            ]
            if len(entries) > 1:
                yield from _odd_ones(stem[1], entries)


def _families(context: Context) -> dict[tuple[str, str], _Family]:
    """Return the entries that begin alike, by their file and the text up to the number."""
    families: dict[tuple[str, str], _Family] = {}
    sources = {param.span.source.name: param.span.source for param in context.params if param.span}
    if not any(_RANGE.search(source.text) for source in sources.values()):
        return families
    spans = dict.fromkeys(param.span for param in context.params if param.span is not None)
    ranged = {span.source.name for span in spans if _RANGE.search(span.text)}
    for span in spans:
        if span.source.name not in ranged:
            continue
        for number in _NUMBER.finditer(span.text):
            stem = span.text[: number.start()].lstrip("\"'")
            family = families.setdefault((span.source.name, stem), _Family([], set()))
            family.begun.add(int(number[1]))
            found = _RANGE.match(span.text, number.start())
            if found is not None and "{" not in stem:
                place = Span(span.source, span.start + found.start(), span.start + found.end())
                family.entries.append(_Entry(int(found[1]), int(found[2]), place))
    return families


def _odd_ones(stem: str, entries: Sequence[_Entry]) -> Iterator[Diagnostic]:
    ends = Counter(entry.last for entry in entries)
    usual, often = max(ends.items(), key=lambda item: (item[1], item[0]))
    example = next(entry for entry in entries if entry.last == usual)
    for entry in entries:
        if entry.last != usual:
            yield Diagnostic(
                codes.SHORT_RANGE,
                f"`{stem}{entry.place.text}` ends at {entry.last}, and {often} other"
                f" {'entry' if often == 1 else 'entries'} of `{stem}` at {usual}",
                (
                    Label(entry.place, counted(entry.last - entry.first + 1, "layer")),
                    Label(example.place, counted(usual - entry.first + 1, "layer"), primary=False),
                ),
                help=f"write `{example.place.text}`; if the layers differ, give the others an"
                " entry of their own",
            )


# regex-budget


def regex_budget(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex of the spec that ran out of its budget."""
    yield from spent(context.spec.patterns)


def spent(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each of `patterns` that ran out of its budget."""
    found = ran_out()
    for pattern in patterns:
        if pattern.dialect == "regex" and pattern.text in found:
            yield _regex_budget_finding(pattern.text, found[pattern.text], pattern.span)


def spent_elsewhere(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each regex that ran out and is none of `patterns`: another tool's."""
    known = {pattern.text for pattern in patterns}
    for text, path in unanswered().items():
        if text not in known:
            yield _regex_budget_finding(text, path, None)


def _regex_budget_finding(text: str, path: str, span: Span | None) -> Diagnostic:
    message = f"regex `{text}` ran out of its time on `{path}`, and is left out"
    help = "write it without what may match in two ways, or as a glob: `*`, `**`, `{a,b}`"
    return point(codes.REGEX_BUDGET, message, span, "matches nothing here", help=help)
