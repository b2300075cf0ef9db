"""A pattern or override matches no array.

It has no effect: the arrays it was written for keep other names or none. Patterns match whole
paths: `wo/kernel` is not `mlp/wo/kernel`; and `.*` belongs in a regex (`re:`), `**` in a glob.
Patterns in what a spec extends may be for other models, and are not looked at; entries of `derive:`
without `from` are about optimizer state alone.

Patterns that match nothing for one reason, such as a prefix that all paths have, are one finding.
A pattern for some of the models that a spec serves is `optional` (a key `"optional:**/experts/wi"`,
`optional: true` in an entry, the word before it in the DSL): it may match nothing, and is a warning
only where a spelling near it matches.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "wi/kernel": _ mlp
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]

Good:
    -  "wi/kernel": _ mlp
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Fix, Severity, codes, labels_at, point, quote
from shardspec.diagnostics.words import by_key, counted, grouped, is_slip, listed, nearest, template
from shardspec.ir.spec import Pattern, Spec
from shardspec.language.regex import ran_out
from shardspec.language.silencing import suppressed
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.lints.evidence.entries import Entry, fix_for, is_linear, looks, sections, working
from shardspec.resolve.match import path_matcher

#: Patterns from which on all of them are one finding where none matches.
_MANY = 8
#: Places that are shown of patterns that match nothing for one reason.
_MOST_SHOWN = 8
_WHOLE_PATH = "must match the full path"
_MEANT = "perhaps for these: "


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for the patterns of the spec itself that match no array.

    Patterns that share a reason are one finding, but for those that a comment silences.
    """
    paths = context.paths
    if all(each.param.is_cache for each in context.first):
        return  # code has the arrays; caches beside them say nothing of their paths
    dead: list[Entry] = []
    has_match = False
    for section in sections(context):
        matched = frozenset(chain(*set(section.matches)))
        has_match = has_match or not matched.isdisjoint(section.own)
        dead += [section.entries[at] for at in sorted(section.own - matched)]
    dead = [
        entry
        for entry in dead
        if entry.pattern.text not in ran_out()  # these have a finding of their own
        and (entry.section != "derive" or entry.answer[0])  # without a parent, of state
    ]
    needed = [entry for entry in dead if not entry.pattern.is_optional]
    optional = [entry for entry in dead if entry.pattern.is_optional]
    found = _one_by_one(needed, context)
    open_ones = [each.entry for each in found if suppressed([each.finding])[0]]
    of_others = None if has_match else _of_other_arrays(open_ones, paths)
    if of_others is not None:
        yield from (each.finding for each in found if each.entry not in open_ones)
        yield of_others
        return
    yield from _told(found, context)
    yield from _optional(optional, context, has_match=has_match)


def _of_other_arrays(dead: Sequence[Entry], paths: Sequence[str]) -> Diagnostic | None:
    """Return one finding if many patterns match nothing; None for few, or for a slip.

    A step may be given the arrays of a second model, of which the spec says nothing.
    """
    if len(dead) < _MANY or any(
        each and each.is_moved for each in reasons([entry.pattern for entry in dead], paths)
    ):
        return None
    return Diagnostic(
        codes.UNMATCHED_PATTERN,
        f"none of the {len(dead)} patterns matches an array ({counted(len(paths), 'array')})",
        labels_at((dead[0].pattern.span, "the first of these patterns")),
        notes=(f"the first array is `{paths[0]}`; the patterns may be for another model",),
        help="add patterns for these arrays, or mark the old ones `optional`",
    )


def _told(
    found: Sequence[_Dead], context: Context, *, is_needed: bool = True
) -> Iterator[Diagnostic]:
    """Yield findings, those with a reason in common as one.

    Args:
      is_needed: False for optional patterns, which may match nothing: only that all of them are
        misplaced alike is worth a word.
    """
    why = reasons([each.entry.pattern for each in found], context.paths)
    shared = by_key(
        (reason, at)
        for at, reason in enumerate(why)
        if reason is not None
        and (is_needed or reason.is_moved)
        and suppressed([found[at].finding])[0]
    )
    families = {reason: ats for reason, ats in shared.items() if len(ats) > 1}
    told = {at for ats in families.values() for at in ats}
    for at, each in enumerate(found):
        if at not in told and is_needed:
            yield with_cost(each.finding, context, each.whole, _MEANT)
    for reason, ats in families.items():
        group = [found[at] for at in ats]
        whole = dict.fromkeys(path for each in group for path in each.whole)
        family = _family(reason, group, len(context.paths))
        level = None if is_needed else Severity.WARNING
        yield with_cost(replace(family, level=level), context, whole, _MEANT)


def _optional(
    entries: Sequence[Entry], context: Context, *, has_match: bool
) -> Iterator[Diagnostic]:
    """Yield warnings for optional patterns that are for arrays which are there after all.

    Args:
      has_match: whether any pattern of the spec matches, so that it is for this model at all.
    """
    paths = context.paths
    misplaced = (
        () if has_match else tuple(_told(_one_by_one(entries, context), context, is_needed=False))
    )
    if misplaced:
        yield from misplaced
        return
    patterns = [entry.pattern for entry in entries]
    offers, meant = working(patterns, paths), slips(patterns, paths)
    decided = _decided(context) if any(offers) else frozenset()
    for entry, offer, slip in zip(entries, offers, meant, strict=True):
        if offer and decided.issuperset(offer.paths):
            continue  # other entries are about what it would be about
        help = f"did you mean `{slip}`?" if slip else offer.text if offer else None
        if help is not None:
            yield point(
                codes.UNMATCHED_PATTERN,
                f"optional {entry.section} pattern `{entry.pattern}` matches none of"
                f" {counted(len(paths), 'array')}, and a spelling near it does",
                entry.pattern.span,
                "optional: matches no array here",
                help=help,
                fix=fix_for(entry.pattern, offer.spelling) if offer and not slip else None,
            ).with_level(Severity.WARNING)


def _decided(context: Context) -> frozenset[str]:
    """Return the arrays that some entry matches."""
    entries = [entry.pattern for section in sections(context) for entry in section.entries]
    matcher = path_matcher(tuple(entries))
    return frozenset(path for path in context.paths if matcher.first_match(path) is not None)


class _Dead(NamedTuple):
    """An entry whose pattern matches nothing, the finding of it alone, and what it may cost."""

    entry: Entry
    finding: Diagnostic
    whole: tuple[str, ...]


def _family(reason: Reason, group: Sequence[_Dead], arrays: int) -> Diagnostic:
    """Return the finding of patterns that match nothing for one reason."""
    kinds = Counter(each.entry.section for each in group)
    sections = ", ".join(f"{count} {section}" for section, count in kinds.items())
    fixes = [each.finding.fix for each in group]
    edits = tuple(edit for fix in fixes if fix is not None for edit in fix.edits)
    spans = [each.entry.pattern.span for each in group[:_MOST_SHOWN]]
    rest = [str(each.entry.pattern) for each in group[_MOST_SHOWN:]]
    return Diagnostic(
        codes.UNMATCHED_PATTERN,
        f"{len(group)} patterns match none of {counted(arrays, 'array')} ({sections}):"
        f" {reason.why}",
        labels_at(*((span, "" if at else _WHOLE_PATH) for at, span in enumerate(spans))),
        notes=(f"the others: {listed(rest)}",) if rest else (),
        help=reason.help,
        fix=Fix(reason.help, edits) if all(fixes) else None,
    )


def _one_by_one(unmatched: Sequence[Entry], context: Context) -> list[_Dead]:
    """Return the finding of each entry alone."""
    paths = context.paths
    offers = working([entry.pattern for entry in unmatched], paths)
    groups = grouped(paths if unmatched else (), template)
    alike = {each: tuple(members) for each, members in groups.items()}
    templates = frozenset(alike)
    whole: dict[tuple[str, ...], tuple[str, ...]] = {}
    found = []
    for entry, offer in zip(unmatched, offers, strict=True):
        meant = tuple(offer.paths) if offer else _near(entry.pattern, templates, alike)
        fix = fix_for(entry.pattern, offer.spelling) if offer else None
        help = offer.text if offer else _guess(entry.pattern, meant)
        if not offer and _OPTIMIZER_PATH.search(entry.pattern.text):
            help = "remove it: optimizer state is sharded as its parameters, or by `state:`"
        elif not offer and entry.section == "params" and _CACHE_PATH.search(entry.pattern.text):
            help = quote.either(f"list it under `caches:`, as `k: {_CACHE}`", f"add `{_IN_DSL}`")
        if offer and str(offer.spelling.pattern) in _keys(context.spec, entry.section):
            fix = None
            help = f"remove it: `{offer.spelling.pattern}` is an entry already"
        finding = point(
            codes.UNMATCHED_PATTERN,
            f"{entry.section} pattern `{entry.pattern}` matches none of"
            f" {counted(len(paths), 'array')}",
            entry.pattern.span,
            _WHOLE_PATH,
            help=help,
            fix=fix,
        )
        if meant not in whole:
            whole[meant] = _whole(context, meant)
        found.append(_Dead(entry, finding, whole[meant]))
    return found


def _keys(spec: Spec, section: str) -> frozenset[str]:
    """Return the patterns that are keys of a section, which stand there once."""
    if section == "params":
        return frozenset(str(rule.pattern) for rule in spec.path_rules)
    if section == "derive":
        return frozenset(str(rule.pattern) for rule in spec.derives)
    return frozenset(str(scan.pattern) for scan in spec.scans if section == "scan")


def _whole(context: Context, paths: Sequence[str]) -> tuple[str, ...]:
    """Return those of the arrays that every device of a target of several holds whole."""
    plans = context.shared_plans
    return tuple(path for path in paths if any(plan[path].is_replicated for plan in plans))


def _near(
    pattern: Pattern, templates: frozenset[str], alike: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the arrays whose path is most like the pattern, of all layers."""
    found = nearest(template(pattern.text), templates, cutoff=0.3)
    return alike[found[0]] if found else ()


def _guess(pattern: Pattern, meant: Sequence[str]) -> str | None:
    near = f"the nearest path is `{meant[0]}`" if meant else None
    return "; ".join(filter(None, (looks(pattern), near))) or None


_CACHE = "bf16[batch cache_length kv_heads kv]"
_IN_DSL = f"caches {{ k : {_CACHE} }}"
_CACHE_PATH = re.compile(r"(?:^|[/._*{,])(?:kv_)?cached?s?(?=$|[/._*{},])")
#: How optax and Flax begin the paths of optimizer state.
_OPTIMIZER_PATH = re.compile(r"(?:^|[/.])(?:opt_state|(?:mu|nu|momentum|trace)(?=$|[/.]))")
_SEPARATORS = {
    "glob": re.compile(r"([/.])"),
    "regex": re.compile(r"(\[\./\]|\[/\.\]|\\[./]|/)"),
}
_NAME = re.compile(r"[\w-]+")
#: So many names at the start of a pattern may stand in the place of others.
_MOST_BEFORE = 2


# Why patterns match nothing: one reason that several share, or a slip in one of its names.
#
# A plan of another tool that is read for the wrong module, or a manifest with another root, makes
# every pattern dead at once: the paths have `model.` before what the patterns name. Or a spec names
# parts that no path has. What is offered is tried on the arrays.


class Reason(NamedTuple):
    """Why patterns match nothing; equal for those that have it in common.

    Attributes:
      is_moved: whether they match behind other first names.
    """

    why: str
    help: str
    is_moved: bool = True


class _Moved(NamedTuple):
    """A pattern without its first names, which may match behind other ones."""

    at: int
    before: str
    rest: Pattern
    anywhere: Pattern


def reasons(patterns: Sequence[Pattern], paths: Sequence[str]) -> tuple[Reason | None, ...]:
    """Return why each pattern matches none of the paths, where others may share that."""
    moved = [each for at, pattern in enumerate(patterns) for each in _moved(at, pattern)]
    first = _first_matches([each.anywhere for each in moved], paths)
    found: list[Reason | None] = [None] * len(patterns)
    for each, path in zip(moved, first, strict=True):
        if path is not None and found[each.at] is None:
            found[each.at] = _behind(each, path)
    names = _names(paths) if None in found else frozenset()
    return tuple(
        _without_name(pattern, names) if reason is None else reason
        for pattern, reason in zip(patterns, found, strict=True)
    )


def _moved(at: int, pattern: Pattern) -> Iterator[_Moved]:
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)
    for count in range(_MOST_BEFORE + 1):
        before, after = parts[: 2 * count], parts[2 * count :]
        if len(after) < (3 if count else 1) or not all(map(_NAME.fullmatch, before[::2])):
            return
        if _NAME.fullmatch(after[0]):
            text = "".join(after)
            if pattern.dialect == "regex":
                anywhere = Pattern(f"(?:.*[./])?(?:{text})", "regex")
            else:
                anywhere = Pattern(f"*.{text}" if after[1:2] == ["."] else f"**/{text}")
            if pattern.dialect == "glob" or is_linear(anywhere):
                rest = Pattern(text, pattern.dialect)
                yield _Moved(at, ".".join(before[::2]), rest, anywhere)


def _behind(moved: _Moved, path: str) -> Reason:
    """Return the reason that a path has other names before what a pattern is about."""
    matcher = path_matcher((moved.rest,))
    starts = (0, *(found.end() for found in re.finditer(r"[/.]", path)))
    start = next((at for at in starts if matcher.first_match(path[at:]) is not None), 0)
    mark = path[start - 1] if start else "." if "/" not in path else "/"
    theirs = re.sub(r"\d+", "*", path[:start])
    ours = "".join(f"{name}{mark}" for name in moved.before.split(".") if name)
    if not ours:
        why = f"the paths begin with `{theirs}`, and the patterns do not"
        return Reason(why, f"put `{theirs}` before each pattern")
    if not theirs:
        why = f"the patterns begin with `{ours}`, and the paths do not"
        return Reason(why, f"take `{ours}` out of each pattern")
    why = f"the patterns begin with `{ours}`, and the paths with `{theirs}`"
    return Reason(why, f"write `{theirs}` for `{ours}` in each pattern")


def _without_name(pattern: Pattern, names: frozenset[str]) -> Reason | None:
    missing = next((name for name in _own_names(pattern) if name not in names), None)
    if missing is None:
        return None
    near = nearest(missing, names)
    help = f"the nearest name is `{near[0]}`; " if near else ""
    help += "if only some models have it, make the patterns `optional`"
    return Reason(f"no path has the name `{missing}`", help, is_moved=False)


def slips(patterns: Sequence[Pattern], paths: Sequence[str]) -> tuple[str | None, ...]:
    """Return, for each pattern, how it is spelt with a name that is a slip put right."""
    names = _names(paths) if patterns else frozenset()
    meant = [
        (at, replace(pattern, text=_respelt(pattern, name, near)))
        for at, pattern in enumerate(patterns)
        for name in _own_names(pattern)
        if name not in names
        for near in nearest(name, names)
        if is_slip(name, near)
    ]
    found: list[str | None] = [None] * len(patterns)
    first = _first_matches([pattern for _, pattern in meant], paths)
    for (at, pattern), path in zip(meant, first, strict=True):
        if path is not None:
            found[at] = str(pattern)
    return tuple(found)


def _respelt(pattern: Pattern, name: str, near: str) -> str:
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)
    return "".join(near if part == name else part for part in parts)


def _first_matches(patterns: Sequence[Pattern], paths: Sequence[str]) -> list[str | None]:
    """Return the first path that each pattern matches."""
    found: list[str | None] = [None] * len(patterns)
    matcher = path_matcher(tuple(patterns))
    for path in paths if patterns else ():
        for at in matcher.all_matches(path):
            found[at] = found[at] or path
    return found


def _own_names(pattern: Pattern) -> Iterator[str]:
    """Yield the components of a pattern that are plain names."""
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)[::2]
    yield from (part for part in parts if _NAME.fullmatch(part) and not part.isdecimal())


def _names(paths: Sequence[str]) -> frozenset[str]:
    return frozenset(name for path in paths for name in re.split(r"[/.]", path))
