"""A pattern matches arrays, but another entry decides each of them.

Move it above the more general pattern. The first match wins in each section, and entries of a spec
come before those that it extends. An entry of `params:` applies only to arrays without names of
their own. It is also reported if all its arrays have names (in types of `arrays:`, in a manifest or
in the model) and some of these differ from the entry: use `overrides:`, which come before an
array's own names.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/kernel": _ mlp
      "**/wo/kernel": mlp _
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wo/kernel: bf16[128, 64]

Good:
     params:
    +  "**/wo/kernel": mlp _
    -  "**/wo/kernel": mlp _
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at
from shardspec.diagnostics.words import counted, described, grouped, listed
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.spec import LogicalAxes, PathRule
from shardspec.lints.context import Context
from shardspec.lints.evidence.entries import Entry, Section, sections

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


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of the spec itself that decides on no array."""
    overrides, params, _, *others = sections(context)
    for section in (overrides, params, *others):
        if section.own:
            hidden, wins = _hidden(section)
            for at in sorted(hidden):
                yield _finding(section.entries, at, hidden[at], wins)
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


def _finding(entries: Sequence[Entry], at: int, hidden: _Hidden, wins: Counter[int]) -> Diagnostic:
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
