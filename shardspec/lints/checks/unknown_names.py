"""Names that nothing has: of axes, arrays, variables and operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from shardspec.diagnostics import (
    Diagnostic,
    Edit,
    Fix,
    Label,
    Severity,
    Span,
    codes,
    labels_at,
    point,
    quote,
)
from shardspec.diagnostics.words import (
    by_key,
    counted,
    grouped,
    index_of,
    is_slip,
    listed,
    nearest,
    respelt,
    template,
)
from shardspec.ir.spec import Pattern, Spec, axis_of
from shardspec.language.patterns.backtracking import ran_out
from shardspec.language.silencing import suppressed
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.lints.evidence.entries import (
    Entry,
    LoneAxis,
    first_word,
    last_word,
    lone_axes,
    respelling,
    sections,
)
from shardspec.lints.evidence.spellings import fix_for, is_linear, looks, working
from shardspec.resolve.match import path_matcher

# unknown-logical-axis


def unknown_logical_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each name in a rule, then for each name of an array."""
    lone = lone_axes(context)
    meant = frozenset(each.meant for each in lone if each.meant is not None)
    yield from _in_rules(context, lone)
    if context.spec.axis_rules:
        yield from _in_arrays(context, meant)
        yield from _in_activations(context, meant)


def _in_rules(context: Context, lone_axes: Iterable[LoneAxis]) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of a rule that is a slip for one that no rule places.

    It tells of both sides: that the arrays have a name which no rule knows is the same mistake.
    """
    for lone in lone_axes:
        if lone.meant is not None:
            paths = context.paths_with(lone.meant)
            found = _finding(
                lone.name,
                lone.places[0],
                f"no array and no {quote.entry_of('axes')} has it",
                help=f"did you mean `{lone.meant}`?",
                fix=respelling(context, lone),
            )
            if (other := _without_rule(context, lone.meant)) is not None:
                label = Label(other, "has no rule", primary=False)
                found = replace(found, labels=(*found.labels, label))
            yield replace(
                with_cost(found, context, paths, f"no rule is for `{lone.meant}`: "),
            )


def _without_rule(context: Context, axis: str) -> Span | None:
    """Return where an axis that no rule places is declared, or the first array has its name."""
    declared = context.axes.get(axis)
    if declared is not None:
        return declared.span
    paths = context.paths_with(axis)
    named = context.all_plans[0][paths[0]].named_at if paths else None
    return None if named is None else _in_type(last_word(named, axis), axis)


def _in_arrays(context: Context, reported: frozenset[str]) -> Iterator[Diagnostic]:
    known = context.axes_placeable | reported
    unknown = by_key(
        (axis, sharding)
        for sharding in context.having(lambda dims: not known.issuperset(dims.logical_axes))
        for axis in dict.fromkeys(sharding.logical_axes)
        if axis and axis not in known
    )
    for axis, shardings in unknown.items():
        words = (last_word(s.named_at, axis) for s in shardings if s.named_at is not None)
        exact = [_in_type(word, axis) for word in dict.fromkeys(words)]
        beside = {name for sharding in shardings for name in sharding.logical_axes}
        if axis in context.numbers and all(sharding.matched is None for sharding in shardings):
            help, fix = _as_size(axis, exact)
        elif axis in context.spec.inherited_axes:
            help, fix = _removed(axis), None
        else:
            help = _way_out(axis, known, beside, context)
            # two dimensions of an array do not have one name
            fix = _fix(exact, axis, known, beside, context)
        label = f"no rule and no {quote.entry_of('axes')} has it"
        finding = _finding(axis, exact[0] if exact else None, label, help=help, fix=fix)
        paths = [sharding.param.path for sharding in shardings]
        yield with_cost(finding, context, paths, "the dimension is replicated: ")


def _as_size(axis: str, places: Iterable[Span]) -> tuple[str, Fix | None]:
    """Return the way out for a number of `let` that stands in types where an axis does."""
    edits = tuple(Edit(place, f"_={axis}") for place in places if place.text == axis)
    fix = Fix(f"replace `{axis}` by `_={axis}`", edits) if edits else None
    return f"`{axis}` is a number of `let`: `_={axis}` says that it is a size", fix


def _in_type(span: Span, axis: str) -> Span:
    """Return the place of a name: in `span`, or behind the path at `span`, in the array's type."""
    if span.text == axis:
        return span
    text = span.source.text
    end = text.find("\n", span.end)
    rest = Span(span.source, span.end, len(text) if end < 0 else end)
    return first_word(rest, axis)


def _fix(
    spans: Iterable[Span | None],
    axis: str,
    known: frozenset[str],
    beside: Collection[str | None],
    context: Context,
) -> Fix | None:
    """Return the fix for a name of arrays; None where the nearest rule is a slip itself, maybe."""
    if axis in context.numbers:
        return None
    fix = respelt(spans, axis, known, without=_not_meant(axis, known, beside, context))
    heard = context.axes_heard_of
    return fix if fix is not None and fix.edits[0].text in heard else None


def _not_meant(
    axis: str, known: frozenset[str], beside: Collection[str | None], context: Context
) -> frozenset[str]:
    """Return the names that others of the array have, and those of other sizes."""
    others = frozenset(name for name in known if not context.may_be_same(axis, name))
    return others | frozenset(name for name in beside if name)


def _removed(axis: str) -> str:
    """Return the way out for an axis whose inherited rules were dropped."""
    axes = quote.section("axes")
    return (
        f"`drop` removed the rule for `{axis}`: keep it, write another, or add `{axis}` to {axes}"
    )


def _way_out(
    axis: str, known: frozenset[str], beside: Collection[str | None], context: Context
) -> str:
    """Return the way out for an axis that no rule knows: its right name, or else a rule.

    Args:
      known: the names that the dimension could have, but for those `beside` it.
    """
    if axis in context.numbers:
        return f"`{axis}` is a number of `let`, no axis: `_` is a dimension without a name"
    whole = axis_of(axis)
    if whole != axis and whole in known:
        declared = quote.either(
            f'stands in `axes`, as `"{axis}":`', f'is declared, as `axis "{axis}"`'
        )
        return (
            f"`{axis}` is a place of `{whole}`: what only code names so {declared},"
            f" and goes by the rules for `{whole}`"
        )
    if axis in context.spec.mesh_axis_names:
        return (
            f"a mesh axis has this name: `{axis} -> {axis}` shards the dimension over it;"
            f" `{axis} -> none` replicates it"
        )
    rule = f"give it a rule: `{axis} -> none`"
    near = nearest(axis, known, without=_not_meant(axis, known, beside, context))
    if near and near[0] not in context.axes_heard_of:
        return f"a rule is for `{near[0]}`, which nothing has: if both mean the same, use one name"
    if near:
        return f"did you mean `{near[0]}`?"
    free = [name for name in index_of(known).names if name not in beside]
    return f"known here: {listed(free, limit=16)}; or {rule}" if free else rule


def _in_activations(context: Context, reported: frozenset[str]) -> Iterator[Diagnostic]:
    known = context.axes_placeable | context.axes_stated | reported
    for activation in context.spec.activations:
        for axis in dict.fromkeys(activation.logical_axes):
            if axis and axis not in known:
                span = activation.span
                exact = None if span is None else last_word(span, axis)
                notes = (f"activation `{activation.name}`; the dimension is replicated",)
                beside = activation.logical_axes
                fix = _fix([exact], axis, known, beside, context)
                yield _finding(
                    axis,
                    exact,
                    f"no rule and no {quote.entry_of('axes')} has it",
                    notes,
                    help=_way_out(axis, known, beside, context),
                    fix=fix,
                )


def _finding(
    axis: str,
    span: Span | None,
    label: str,
    notes: tuple[str, ...] = (),
    *,
    help: str,
    fix: Fix | None = None,
) -> Diagnostic:
    labels = () if span is None else (Label(span, label),)
    message = f"unknown logical axis `{axis}`"
    return Diagnostic(
        codes.UNKNOWN_LOGICAL_AXIS, message, labels, notes, help, fix=fix, subject=axis
    )


# unmatched-pattern


#: Places that are shown of patterns that match nothing for one reason.
_MOST_SHOWN = 8
_WHOLE_PATH = "must match the full path"
_MEANT = "perhaps for these: "


def unmatched_pattern(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for the patterns of the spec itself that match no array.

    Patterns that share a reason are one finding, but for those that a comment silences.
    """
    paths = context.paths
    if not paths:
        return
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
        and not _is_of_state(entry)
    ]
    needed = [entry for entry in dead if not entry.pattern.is_optional]
    optional = [entry for entry in dead if entry.pattern.is_optional]
    yield from _told(_one_by_one(needed, context), context)
    yield from _optional(optional, context, has_match=has_match)


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


def _is_of_state(entry: Entry) -> bool:
    """Say whether an entry is about optimizer state, which is not among the arrays."""
    return entry.section == "derive" and not entry.answer[0]


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


# unused-let


def unused_let(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each name of the spec's own `let` that nothing uses."""
    for let in context.spec.lets:
        if not let.is_used and context.is_own(let.span):
            yield point(
                codes.UNUSED_LET,
                f"nothing uses `{let.name}`",
                let.span,
                "no mesh, axis or array names it",
                help=f"write `{let.name}` in place of its number, or remove it",
                subject=let.name,
            )


# step-line


def step_line(context: Context) -> Iterator[Diagnostic]:
    """Yield why lines of `step:` cannot be; without arrays, nothing is known of them."""
    if context.spec.step is not None and context.all_plans and context.first:
        yield from context.flow.faults
