"""The entries of a spec: their patterns, the axes of their rules, and where a name stands in them.

A file may be one line, and each of its entries may have a finding: nothing here copies the text
of a span, and the search for a name goes from the end that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from shardspec.diagnostics import Fix, Span, quote
from shardspec.diagnostics.words import collapsed, index_of, is_slip, natural, respelt, template
from shardspec.ir.spec import LogicalAxes, Override, Param, Pattern, Spec, axis_of
from shardspec.lints.context import Context
from shardspec.resolve.match import PathMatcher, path_matcher
from shardspec.resolve.state import MOMENTS, moment_name

_JOINS = "-."

#: How far before an alternative the axis of its rule is looked for: a file may be one line.
_FARTHEST = 20_000


class Entry(NamedTuple):
    """One pattern, and what it says about the arrays that it matches.

    Attributes:
      answer: equal for two entries that say the same.
    """

    section: str
    pattern: Pattern
    answer: tuple[object, ...]


@dataclass(frozen=True)
class Section:
    """The entries of one section, in order: the first that matches an array decides on it.

    Attributes:
      paths: of all arrays.
      own: the positions of those that the spec itself has.
    """

    entries: tuple[Entry, ...]
    paths: tuple[str, ...]
    own: frozenset[int]

    @cached_property
    def matcher(self) -> PathMatcher:
        """Return the matcher of all entries."""
        return path_matcher(tuple(entry.pattern for entry in self.entries))

    @cached_property
    def matches(self) -> tuple[tuple[int, ...], ...]:
        """Return the positions of the entries that match each of the arrays."""
        if not self.entries:
            return ((),) * len(self.paths)
        return tuple(map(self.matcher.all_matches, self.paths))


def sections(context: Context) -> tuple[Section, ...]:
    """Return overrides, and the entries of `params:` and of the sections that change no names.

    Those are `scan:`, `replicate:`, `derive:`, `memory:` and `training:`, in this order. Beside its
    arrays, `memory:` is about their optimizer state.
    """
    return context.once(_sections)


def _sections(context: Context) -> tuple[Section, ...]:
    spec = context.spec
    overrides = ((each, _answer(each)) for each in spec.overrides)

    def paths(entries: list[Entry]) -> tuple[str, ...]:
        is_of_memory = entries and entries[0].section == "memory"
        return _with_state(context.paths) if is_of_memory else context.paths

    found = (
        [Entry("override", each.pattern, answer) for each, answer in overrides],
        [Entry("params", each.pattern, each.logical_axes) for each in spec.path_rules],
        [Entry("scan", each.pattern, each.axes) for each in spec.scans],
        [Entry("replicate", each.pattern, ()) for each in spec.replicate],
        [Entry("derive", each.pattern, (each.parent, str(each))) for each in spec.derives],
        [Entry("memory", each.pattern, ((each.memory,),)) for each in spec.memory],
        [Entry("training", each.pattern, ((each.training,),)) for each in spec.training],
    )
    return tuple(
        Section(
            tuple(entries),
            paths(entries),
            frozenset(at for at, each in enumerate(entries) if context.is_own(each.pattern.span)),
        )
        for entries in found
    )


def _with_state(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of arrays, and what patterns call their optimizer state."""
    return (*paths, *(moment_name(path, at) for path in paths for at in range(len(MOMENTS))))


def _answer(entry: Override) -> LogicalAxes | tuple[tuple[object, ...], ...]:
    """Return what an override says of an array: equal for those that say the same."""
    if entry.partition is None:
        return entry.logical_axes or ()
    return (*entry.partition, *entry.sums) if entry.sums.mesh_axes else entry.partition


class LoneAxis(NamedTuple):
    """A logical axis that rules of the spec itself are for, and nothing has.

    Attributes:
      places: its name in each of the rules.
      meant: the axis that it is a slip for: one that is in use and that no rule places.
    """

    name: str
    places: tuple[Span | None, ...]
    meant: str | None


def lone_axes(context: Context) -> tuple[LoneAxis, ...]:
    """Return the axes of the spec's own rules that nothing has; none of a spec without names."""
    if not context.first and not context.spec.path_rules:
        return ()
    known = context.axes_heard_of
    known = known | {axis_of(name) for name in known}
    places: dict[str, dict[Span | None, None]] = {}
    for rule in context.spec.axis_rules:
        axis = rule.logical_axis
        if axis not in known and context.is_own(rule.span):
            places.setdefault(axis, {}).setdefault(_left_side(rule.span, axis))
    placed = context.axes_in_rules
    missed = index_of((context.axes_in_use | context.axes.keys()) - placed if places else ())
    found = []
    for axis, spans in places.items():
        slips = (each for each in missed.alike(axis) if is_slip(axis, each))
        found.append(LoneAxis(axis, tuple(spans), next(slips, None)))
    return tuple(found)


def respelling(context: Context, lone: LoneAxis) -> Fix | None:
    """Return the fix that writes the nearest name; what it then places may be placed already."""
    fix = respelt(lone.places, lone.name, context.axes_heard_of)
    if lone.meant is not None and (fix is None or fix.edits[0].text != lone.meant):
        return respelt(lone.places, lone.name, [lone.meant], may_be_sure=False)
    if fix is None:
        return None
    name = fix.edits[0].text
    is_free = name in context.axes_stated and name not in context.axes_in_rules
    return fix if is_free else fix._replace(is_sure=False)


def _left_side(span: Span | None, axis: str) -> Span | None:
    """Return the place of a rule's axis, which stands before its alternative on the line."""
    if span is None:
        return None
    farthest = max(span.start - _FARTHEST, 0)
    line = max(span.source.text.rfind("\n", farthest, span.start) + 1, farthest)
    before = Span(span.source, line, span.start)
    found = last_word(before, axis)
    return span if found == before else found


def first_word(span: Span, word: str) -> Span:
    """Return where `word` first stands as a whole word in `span`; all of it if nowhere."""
    text, start = span.source.text, span.start
    while word and (start := text.find(word, start, span.end)) >= 0:
        if _stands_alone(span, start, start + len(word)):
            return Span(span.source, start, start + len(word))
        start += 1
    return span


def last_word(span: Span, word: str) -> Span:
    """Return where `word` last stands as a whole word in `span`; all of it if nowhere."""
    text, end = span.source.text, span.end
    while word and (start := text.rfind(word, span.start, end)) >= 0:
        if _stands_alone(span, start, start + len(word)):
            return Span(span.source, start, start + len(word))
        end = start + len(word) - 1
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


# The line for `params:` that would name arrays, where their paths and sizes allow one answer.


def proposed_names(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return the names that fit all of some arrays, `embed mlp`; None where there are several.

    Those in the types of `arrays:` come first: they do not name the arrays of code.
    """
    from shardspec.naming import guessing

    stated = {each.path: each.logical_axes for each in spec.params if each.logical_axes}
    listed = {stated.get(param.path) for param in params}
    only = listed.pop() if len(listed) == 1 else None
    if only is not None and all(len(only) == len(param.shape) for param in params):
        return " ".join(name or "_" for name in only)
    axes = (axis for axis in spec.logical_axes if axis_of(axis.name) == axis.name)
    sizes = {axis.name: axis.size for axis in axes if axis.size is not None}
    names = guessing.proposed_names(params, sizes) if sizes else None
    return None if names is None else " ".join(name or "_" for name in names)


def params_line(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return an entry of `params:` for exactly these arrays: `"decoder/wi/kernel": embed mlp`."""
    glob = _glob([param.path for param in params])
    names = None if glob is None else proposed_names(spec, params)
    return None if names is None or glob is None else quote.pattern(glob, names)


def _glob(paths: Sequence[str]) -> str | None:
    """Return one glob for exactly some paths; None where no line could hold it."""
    from shardspec.naming.patterns import exact

    if not all(path.isprintable() for path in paths):
        return None
    if len(paths) == 1:
        return exact(paths[0])
    is_plain = all(path == exact(path) for path in paths)
    alike = {template(path) for path in paths}
    return collapsed(sorted(paths, key=natural)) if is_plain and len(alike) == 1 else None
