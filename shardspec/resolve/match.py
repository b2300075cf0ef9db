"""One array: which patterns match its path, and which mesh axes rules give its logical axes.

All patterns are matched in one walk over a path. Plain texts are looked up; all other patterns that
RE2 can express are one automaton, so a hundred patterns cost about what one costs. Of thousands,
the automaton would cost as much as all of them, so many patterns are first looked up by the text
that they need. What only `re` can express is tried one by one.

Globs cannot tell apart the digits that none of them names. Paths that differ in such digits only,
as those of layers mostly do, are asked about once.

The heart is `assign_axes`. The rules are one flat list in order of priority, walked once. A rule
fires on a dimension that has its logical axis and is still undecided, if every mesh axis of it is
in the mesh, none is used by another dimension of the same array, and their product divides the
dimension in whole units. Tuples are all or nothing, but for `(a, b)?`, which goes without each mesh
axis that does not fit, major to minor; `none` always fires and is final. So *rule* order decides a
contest, never dimension order: Flax Linen's reading, and T5X's.

The walk is total. What did not fire leaves an attempt behind that says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from shardspec.diagnostics.budget import spend
from shardspec.ir import spec as ir
from shardspec.ir.plan import Attempt, Dims, DimSharding, Kind, LeftOut, Outcome, divides
from shardspec.ir.spec import Activation, AxisRule, LogicalAxes, Mesh, Override, Pattern, Policy
from shardspec.language import regex as engines
from shardspec.language.glob import compile_glob, glob_literal
from shardspec.language.grammar.syntax import SyntaxFault

Placed = tuple[tuple[int, engines.Regex], ...]

#: As many patterns as one automaton is fast for.
MOST_TOGETHER = 64


@lru_cache(maxsize=32)
def path_matcher(patterns: tuple[Pattern, ...]) -> PathMatcher:
    """Return the matcher of these patterns; those who ask about equal ones share it."""
    return PathMatcher(patterns)


class PathMatcher:
    """Patterns made ready to match; one that cannot be read matches nothing.

    Nothing is compiled before the first question.

    Invariants:
      one_by_one: the answers are those of each pattern on its own.
    """

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        """Take the patterns, in order of priority."""
        self._patterns = patterns
        self._alike = _digits_alike(patterns)
        self._first: dict[bytes, int | None] = {}
        self._all: dict[bytes, tuple[int, ...]] = {}

    def first_match(self, path: str) -> int | None:
        """Return the position of the first pattern that matches the whole path."""
        if self._alike is None:
            return self._first_match(path)
        kind = path.encode("utf-8", "surrogatepass").translate(self._alike)
        if kind not in self._first:
            self._first[kind] = self._first_match(path)
        return self._first[kind]

    def all_matches(self, path: str) -> tuple[int, ...]:
        """Return the positions of all patterns that match the whole path, in order."""
        if self._alike is None:
            return self._all_matches(path)
        kind = path.encode("utf-8", "surrogatepass").translate(self._alike)
        if kind not in self._all:
            self._all[kind] = self._all_matches(path)
        return self._all[kind]

    def _first_match(self, path: str) -> int | None:
        none = len(self._patterns)
        best = self._first_linear(path)
        if path in self._literals:
            best = min(best, self._literals[path][0])
        for position, regex in self._backtracking:
            if position > best:
                break
            if regex.matches(path):
                return position
        return None if best == none else best

    def _all_matches(self, path: str) -> tuple[int, ...]:
        slow = (position for position, regex in self._backtracking if regex.matches(path))
        found = (*self._literals.get(path, ()), *self._linear_matches(path), *slow)
        spend(20 + len(found))
        return tuple(sorted(found))

    @cached_property
    def _literals(self) -> Mapping[str, tuple[int, ...]]:
        """Return the positions of the patterns that are a path, by the path."""
        positions: dict[str, list[int]] = defaultdict(list)
        for position, pattern in enumerate(self._patterns):
            literal = _literal(pattern)
            if literal is not None:
                positions[literal].append(position)
        return {path: tuple(found) for path, found in positions.items()}

    @cached_property
    def _linear(self) -> Placed:
        return tuple(placed for placed in self._regexes() if placed[1].engine == "re2")

    @cached_property
    def _filed(self) -> RequiredText | None:
        """Return the patterns of `_linear` by the text they need, where they are many."""
        if len(self._linear) <= MOST_TOGETHER:
            return None
        return RequiredText([regex.text for _, regex in self._linear])

    @cached_property
    def _together(self) -> Placed:
        """Return the patterns of `_linear` that are one automaton."""
        if self._filed is None:
            return self._linear
        return tuple(self._linear[index] for index in self._filed.everywhere)

    def _filed_matches(self, path: str) -> Iterator[int]:
        """Yield the positions of the other patterns of `_linear` that match, in order."""
        if self._filed is not None:
            for index in self._filed.candidates(path):
                position, regex = self._linear[index]
                if regex.matches(path):
                    yield position

    @cached_property
    def _backtracking(self) -> Placed:
        return tuple(placed for placed in self._regexes() if placed[1].engine == "re")

    def _regexes(self) -> Iterator[tuple[int, engines.Regex]]:
        for position, pattern in enumerate(self._patterns):
            if _literal(pattern) is None:
                regex = _compiled(pattern)
                if not isinstance(regex, SyntaxFault):
                    yield position, regex

    def _first_linear(self, path: str) -> int:
        """Return the first matching position of `_linear`, or the count of all patterns."""
        none = len(self._patterns)
        filed = next(self._filed_matches(path), none)
        automaton = self._automaton(path)
        if automaton is not None:
            first = automaton.first(path)
            if first is not None:
                return min(filed, self._positions_together[first])
        return min(filed, next(self._matches_together(path), none))

    @cached_property
    def _positions_together(self) -> tuple[int, ...]:
        """Return the position of each pattern of `_together`, and of none of them."""
        return (*(position for position, _ in self._together), len(self._patterns))

    def _linear_matches(self, path: str) -> Iterator[int]:
        """Yield the positions of the matching patterns of `_linear`, in any order."""
        yield from self._filed_matches(path)
        yield from self._matches_together(path)

    def _matches_together(self, path: str) -> Iterator[int]:
        """Yield the positions of the matching patterns of `_together`, in order."""
        automaton = self._automaton(path)
        found = None if automaton is None else automaton.indices(path)
        if found is not None:
            yield from (self._positions_together[index] for index in sorted(found))
        else:
            yield from (position for position, regex in self._together if regex.matches(path))

    def _automaton(self, path: str) -> engines.Re2Set | None:
        """Return the patterns of `_together` compiled, where they can all be asked at once."""
        compiled, is_for_ascii = self._compiled_together
        return compiled if engines.is_alike(path, is_for_ascii) else None

    @cached_property
    def _compiled_together(self) -> tuple[engines.Re2Set | None, bool]:
        """Return `_together` as one automaton, and whether it is for ASCII."""
        regexes = [regex for _, regex in self._together]
        compiled = engines.re2_set(regex.text for regex in regexes) if regexes else None
        return compiled, any(regex.is_for_ascii for regex in regexes)


def _digits_alike(patterns: tuple[Pattern, ...]) -> bytes | None:
    """Return one digit for all that no pattern can tell apart; None where it can tell each.

    As a table for `bytes.translate`, which is far faster than that of texts.
    """
    if any(pattern.dialect == "regex" or ".." in pattern.text for pattern in patterns):
        return None
    named = {char for pattern in patterns for char in pattern.text}
    others = b"".join(b"%c" % digit for digit in b"0123456789" if chr(digit) not in named)
    return bytes.maketrans(others, others[:1] * len(others)) if len(others) > 1 else None


def _literal(pattern: Pattern) -> str | None:
    """Return the one path that a pattern matches, where it is a path itself."""
    if pattern.dialect == "glob":
        return glob_literal(pattern.text)
    return engines.regex_literal(pattern.text)


def _compiled(pattern: Pattern) -> engines.Regex | SyntaxFault:
    if pattern.dialect == "glob":
        return compile_glob(pattern.text)
    return engines.compile_regex(pattern.text)


class RequiredText:
    """Patterns by the text that a path must hold for them to match, as RE2 finds it out.

    Of thousands of patterns a path is asked of those alone whose text it holds.

    Attributes:
      everywhere: the patterns that need no text; they may match any path.

    Invariants:
      sound: a pattern that matches a path is in `candidates(path)` or in `everywhere`.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        """File each regex by its position."""
        self._count = len(regexes)
        self._filters = tuple(engines.re2_filters(regexes))
        self.everywhere = tuple(self._with_text_of(""))
        self._known: frozenset[int] = frozenset(self.everywhere)

    def candidates(self, path: str) -> list[int]:
        """Return the patterns that `path` has the text of, in order."""
        every = self._with_text_of(path) if path.isascii() else range(self._count)
        return [position for position in every if position not in self._known]

    def _with_text_of(self, path: str) -> Iterator[int]:
        for start, filter in self._filters:
            yield from (start + position for position in filter.Match(path, True) or ())


#: What may state a partition itself.
Stating = Override | Activation


class RuleTable(NamedTuple):
    """Rules made ready for one mesh: looked up by logical axis, absent mesh axes dropped.

    Attributes:
      by_axis: for each logical axis what its rules come to, in order, on an array that uses no
        mesh axis yet.
      sizes: mesh axis -> size on this target.
      known: mesh axes that some other target has; here they drop out of their tuples.
      units: logical axis -> elements that must stay together.
      segments: logical axis -> what the number of its shards is a multiple of.
      mesh: whose wholes stand for their parts.
      any: what the rules for arrays that nothing names come to, in order.
      uneven: logical axes that any number of shards may split, one of them larger than another.
    """

    by_axis: Mapping[str, tuple[Attempt, ...]]
    sizes: Mapping[str, int]
    known: frozenset[str]
    units: Mapping[str, int]
    segments: Mapping[str, int]
    policy: Policy
    mesh: Mesh
    any: tuple[Attempt, ...] = ()
    uneven: frozenset[str] = frozenset()

    def grain(self, axis: str | None) -> tuple[int, int]:
        """Return the unit and the segments of a logical axis."""
        return self.units.get(axis or "", 1), self.segments.get(axis or "", 1)


def rule_table(
    rules: Sequence[AxisRule],
    mesh: Mesh,
    *,
    known_mesh_axes: frozenset[str] = frozenset(),
    axes: Iterable[ir.LogicalAxis] = (),
    policy: Policy | None = None,
    any_rules: Sequence[AxisRule] = (),
    uneven: frozenset[str] = frozenset(),
) -> RuleTable:
    """Return `rules` made ready for `assign_axes`, and `any_rules` for `assign_any`."""
    by_axis: dict[str, tuple[Attempt, ...]] = {}
    axes = tuple(axes)
    units = {axis.name: axis.unit for axis in axes if axis.unit > 1}
    segments = {axis.name: axis.parts.segments for axis in axes if axis.parts is not None}
    table = RuleTable(
        *(by_axis, mesh.sizes, known_mesh_axes, units, segments, policy or Policy(), mesh),
        uneven=uneven,
    )
    found: dict[str, list[Attempt]] = defaultdict(list)
    for position, rule in enumerate(rules):
        found[rule.logical_axis].append(_if_free(rule, position, rule.mesh_axes, table))
    by_axis.update((axis, tuple(attempts)) for axis, attempts in found.items())
    if not any_rules:
        return table
    tried = (_if_free(rule, at, rule.mesh_axes, table) for at, rule in enumerate(any_rules))
    return table._replace(any=tuple(replace(attempt, kind=Kind.ANY) for attempt in tried))


def _if_free(
    source: AxisRule | Stating,
    position: int,
    asked: tuple[str, ...],
    table: RuleTable,
) -> Attempt:
    """Return how what is asked ends on an array that uses no mesh axis yet."""
    rule = source if isinstance(source, AxisRule) else None
    kind = Kind.STATED if rule is None else Kind.RULE if rule.is_read else Kind.UNREAD
    sizes, ways = table.sizes, 1
    wanted = table.mesh.in_parts(asked) if table.mesh.wholes else asked
    mesh_axes = tuple(axis for axis in wanted if axis in sizes)
    if any(axis not in sizes and axis not in table.known for axis in wanted):
        mesh_axes, outcome = asked, Outcome.UNKNOWN
    elif asked and not mesh_axes:
        mesh_axes, outcome = asked, Outcome.ABSENT
    else:
        outcome = Outcome.TAKEN if len(set(mesh_axes)) == len(mesh_axes) else Outcome.BUSY
        ways = math.prod(sizes[axis] for axis in mesh_axes)
    absent: tuple[LeftOut, ...] = ()
    if rule is not None and rule.in_part:
        absent = tuple(LeftOut(axis, Outcome.ABSENT) for axis in wanted if axis not in mesh_axes)
    return Attempt(kind, position, asked, mesh_axes, outcome, ways, None, rule, source.span, absent)


def assign_axes(shape: Sequence[int | None], logical_axes: LogicalAxes, table: RuleTable) -> Dims:
    """Return the sharding of each dimension of one array, with every rule tried.

    Args:
      shape: sizes; None for one that is not known, which every mesh axis divides.
      logical_axes: one name per dimension; None is replicated and asks no rule. A name that
        is given twice is served in order of dimension.

    Invariants:
      once, divides, complete, unit, append, rename, factor: see tests/properties.
    """
    return _assigned(shape, logical_axes, _candidates(logical_axes, table), table)


def _candidates(logical_axes: LogicalAxes, table: RuleTable) -> list[_Candidate]:
    """Return the rules for the axes of an array, in turn."""
    candidates = [
        (attempt.position, dim, attempt)
        for dim, axis in enumerate(logical_axes)
        if axis is not None
        for attempt in table.by_axis.get(axis, ())
    ]
    candidates.sort(key=lambda candidate: candidate[:2])
    spend(10 + 5 * len(candidates))
    return candidates


def assign_stated(
    shape: Sequence[int | None], stating: Stating, position: int, table: RuleTable
) -> Dims:
    """Return each dimension of an array whose partition an override or an activation states.

    What is stated is held against the mesh as rules are, in order of dimension; no rule is asked.

    Args:
      position: of what states it in its spec.
    """
    stated = enumerate(stating.partition or ())
    candidates = [(dim, dim, _if_free(stating, position, axes, table)) for dim, axes in stated]
    return _assigned(shape, (None,) * len(shape), candidates, table)


def assign_any(shape: Sequence[int], table: RuleTable) -> Dims:
    """Return each dimension of an array that nothing names, by the rules for `*`.

    Each rule in turn looks for the largest dimension that its mesh axes divide, the first of
    equals; the first that finds one is the last that is asked. `none` leaves all of them whole.

    Invariants:
      one: at most one dimension is split, and none that is smaller than another that divides.
    """
    attempts: list[list[Attempt]] = [[] for _ in shape]
    by_size = sorted(range(len(shape)), key=lambda dim: -shape[dim])
    exact = table._replace(policy=replace(table.policy, indivisible="next"))
    for attempt in table.any:
        turn = _try_in_part if attempt.in_part else _try
        for dim in by_size:
            result = turn(attempt, shape[dim], (1, 1), {}, exact)
            attempts[dim].append(result)
            if result.outcome is not Outcome.INDIVISIBLE and not attempt.is_none:
                break
        if any(tried and tried[-1].outcome is Outcome.TAKEN for tried in attempts):
            break
    pairs = zip(shape, attempts, strict=True)
    return Dims(DimSharding(size, None, tuple(tried)) for size, tried in pairs)


def kept_whole(shape: Sequence[int], logical_axes: LogicalAxes, table: RuleTable) -> Dims:
    """Return each dimension of an array that the policy keeps whole; no rule is asked."""
    span = table.policy.whole_below_span
    small = Attempt(Kind.SMALL, 0, (), (), Outcome.TAKEN, span=span)
    return Dims(
        DimSharding(size, axis, (small,), *table.grain(axis))
        for size, axis in zip(shape, logical_axes, strict=True)
    )


def assign_beside(
    placed: Sequence[DimSharding | None],
    shape: Sequence[int],
    logical_axes: LogicalAxes,
    table: RuleTable,
) -> Dims:
    """Return the dimensions of an array some of which are placed, by what it derives from.

    Rules are asked about the others, and find the mesh axes of those in use.

    Args:
      placed: one for each dimension, None for one that rules are asked about.
    """
    used = {axis: at for at, dim in enumerate(placed) if dim for axis in dim.mesh_axes}
    names = tuple(None if dim else name for dim, name in zip(placed, logical_axes, strict=True))
    found = _assigned(shape, names, _candidates(names, table), table, used)
    return Dims(dim or other for dim, other in zip(placed, found, strict=True))


_Candidate = tuple[int, int, Attempt]

#: Unit and segments of a dimension.
_Grain = tuple[int, int]


def _assigned(
    shape: Sequence[int | None],
    logical_axes: LogicalAxes,
    candidates: Iterable[_Candidate],
    table: RuleTable,
    in_use: Mapping[str, int] | None = None,
) -> Dims:
    """Return each dimension with those of the candidates, which come in turn, that it tried.

    Args:
      in_use: mesh axes that a dimension has already.
    """
    grains = [table.grain(axis) for axis in logical_axes]
    attempts: list[list[Attempt]] = [[] for _ in logical_axes]
    decided: set[int] = set()
    used: dict[str, int] = dict(in_use or {})
    kept = table
    if table.uneven:
        kept = table._replace(policy=replace(table.policy, indivisible="keep"))
    for _, dim, attempt in candidates:
        if dim in decided:
            continue
        turn = _try_in_part if attempt.in_part else _try
        own = kept if logical_axes[dim] in table.uneven else table
        result = turn(attempt, shape[dim], grains[dim], used, own)
        attempts[dim].append(result)
        if result.outcome is Outcome.TAKEN:
            decided.add(dim)
            used.update(dict.fromkeys(result.mesh_axes, dim))
    return Dims(
        DimSharding(size, axis, tuple(tried), *grain)
        for size, axis, tried, grain in zip(shape, logical_axes, attempts, grains, strict=True)
    )


def _try(
    attempt: Attempt, size: int | None, grain: _Grain, used: Mapping[str, int], table: RuleTable
) -> Attempt:
    """Return `attempt` as it goes on a dimension, with the mesh axes in `used` gone."""
    if attempt.outcome is not Outcome.TAKEN:
        return attempt
    for axis in attempt.mesh_axes:
        if axis in used:
            return replace(attempt, outcome=Outcome.BUSY, blocked_by=used[axis])
    if not _fits(attempt.ways, size, grain, table.policy):
        return replace(attempt, outcome=Outcome.INDIVISIBLE)
    return attempt


def _fits(ways: int, size: int | None, grain: _Grain, policy: Policy) -> bool:
    """Say whether a dimension may be split so many times: any times, where `keep` says so."""
    return policy.indivisible == "keep" or size is None or divides(ways, size, *grain)


def _try_in_part(
    attempt: Attempt, size: int | None, grain: _Grain, used: Mapping[str, int], table: RuleTable
) -> Attempt:
    """Return `attempt` with those of its mesh axes that fit; refused where none does.

    Invariants:
      part: each axis that is left out does not fit beside those that are taken before it, and the
        order of those that are taken is that of the rule.
    """
    if attempt.outcome is not Outcome.TAKEN:
        return attempt
    kept: list[str] = []
    gone = list(attempt.left_out)
    ways = 1
    for axis in attempt.mesh_axes:
        grown = ways * table.sizes[axis]
        if axis in used:
            gone.append(LeftOut(axis, Outcome.BUSY, blocked_by=used[axis]))
        elif not _fits(grown, size, grain, table.policy):
            gone.append(LeftOut(axis, Outcome.INDIVISIBLE, grown))
        else:
            kept.append(axis)
            ways = grown
    left_out = tuple(gone)
    if kept:
        return replace(attempt, mesh_axes=tuple(kept), ways=ways, left_out=left_out)
    refused = [each for each in left_out if each.outcome is not Outcome.ABSENT]
    why = next((each for each in refused if each.outcome is Outcome.INDIVISIBLE), refused[0])
    axes = (why.mesh_axis,) if why.outcome is Outcome.INDIVISIBLE else attempt.mesh_axes
    return replace(
        attempt,
        mesh_axes=axes,
        outcome=why.outcome,
        ways=table.sizes[why.mesh_axis],
        blocked_by=why.blocked_by,
        left_out=left_out,
    )
