"""Figures behind what they come of: shard sizes, numbers of arrays, bytes of a device.

Behind rules and patterns they are of one target, the first whose mesh is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from shardspec import pipeline
from shardspec.analysis.memory import memory, room_text
from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.words import binary_bytes, counted, tallied
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.lsp import types
from shardspec.lsp.kinds import Kind
from shardspec.lsp.names import Use
from shardspec.lsp.navigation import Family
from shardspec.lsp.snapshot import Snapshot
from shardspec.resolve.match import PathMatcher

#: What may be switched off, each alone: `{"inlayHints": {"rules": false}}`; or all of it.
KINDS = ("rules", "patterns", "targets")
#: Sizes shown behind a rule.
_MOST = 3
#: Patterns looked at, of those in the stretch that an editor shows.
_MOST_PATTERNS = 500


def wanted(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of hints that a user has not switched off.

    >>> sorted(wanted({"inlayHints": {"rules": False}})), sorted(wanted({"inlayHints": False}))
    (['patterns', 'targets'], [])
    """
    stated = settings.get("inlayHints", True)
    if isinstance(stated, Mapping):
        if stated.get("enabled") is False:
            return frozenset()
        return frozenset(kind for kind in KINDS if stated.get(kind) is not False)
    return frozenset(KINDS) if stated is not False else frozenset()


def hints(snapshot: Snapshot, start: int, end: int, kinds: frozenset[str]) -> list[types.InlayHint]:
    """Return the hints of the kinds that are wanted, in a stretch of the text."""
    if not snapshot.plans:
        return []
    made = (_rules(snapshot), _patterns(snapshot, start, end), _targets(snapshot))
    found = (hint for kind, each in zip(KINDS, made, strict=True) if kind in kinds for hint in each)
    hints = []
    for place, label, tooltip in found:
        if snapshot.is_own(place) and start <= place.end <= end:
            where = snapshot.lines.position(place.end)
            hints.append(types.InlayHint(where, label, tooltip=tooltip, padding_left=True))
    return hints


Hint = tuple[Span, str, str]


def _rules(snapshot: Snapshot) -> Iterator[Hint]:
    """Yield behind each alternative what it makes of the dimensions that it takes."""
    seen = set[Span]()
    for plan in _first_plans(snapshot):
        taken = _taken(plan)
        for rule in (*plan.spec.axis_rules, *plan.spec.any_rules):
            place = rule.span
            if place is not None and snapshot.is_own(place) and place not in seen:
                seen.add(place)
                if not rule.is_none:
                    yield place, _sizes(taken.get(place, {})), f"on target {plan.name}"


def _taken(plan: ShardingPlan) -> dict[Span, dict[str, int]]:
    """Return by alternative the sizes that it makes, each with the number of its arrays."""
    taken: dict[Span, dict[str, int]] = {}
    for sharding in (*plan.arrays, *plan.activations):
        for dim in sharding.dims:
            won = dim.taken
            if won is not None and won.rule is not None and won.span is not None:
                size = "" if dim.size is None else f"{dim.size} → {-(-dim.size // won.ways)}"
                counts = taken.setdefault(won.span, {})
                counts[size] = counts.get(size, 0) + isinstance(sharding, ParamSharding)
    return taken


def _first_plans(snapshot: Snapshot) -> list[ShardingPlan]:
    """Return the first plan of the spec and of each phase."""
    first: dict[str, ShardingPlan] = {}
    for plan in snapshot.plans:
        first.setdefault(plan.spec.phase, plan)
    return [*first.values()]


def _sizes(counts: Mapping[str, int]) -> str:
    if not counts:
        return "takes nothing"
    sizes = [size for size in counts if size]
    shown = ", ".join(sizes[:_MOST]) + (", ..." if len(sizes) > _MOST else "")
    arrays = sum(counts.values())
    told = tallied((arrays, "array")) or "activations"
    return f"{shown} ({told})" if shown else told


def _patterns(snapshot: Snapshot, start: int, end: int) -> Iterator[Hint]:
    """Yield behind each pattern how many arrays it names, of those that it matches."""
    plan = snapshot.plans[0]
    shown = (use for use in snapshot.uses if start <= use.span.start <= end)
    patterns = (use for use in shown if use.kind is Kind.PATTERN and "program" not in use.route)
    for use in islice(patterns, _MOST_PATTERNS):
        matcher = PathMatcher((use.pattern,))
        matching = [s for s in plan.arrays if matcher.first_match(s.path) is not None]
        named = [s for s in matching if _is_by(s, use)]
        label = counted(len(matching), "array")
        if len(named) < len(matching) and "params" in use.route:
            label = f"{len(named)} of {label}"
        yield _behind(use), label, f"on target {plan.name}"


def _is_by(sharding: ParamSharding, use: Use) -> bool:
    matched = sharding.matched
    place = matched.pattern.span if matched is not None else None
    return place is not None and place.start <= use.span.start <= place.end


def _behind(use: Use) -> Span:
    """Return the place of a name, with the quotes around it."""
    span = use.span
    text = span.source.text
    is_quoted = text[span.end : span.end + 1] in ('"', "'") and span.end < len(text)
    return Span(span.source, span.start, span.end + is_quoted)


def _targets(snapshot: Snapshot) -> Iterator[Hint]:
    """Yield behind each target what a device of it holds, and has."""
    for use in snapshot.uses:
        if use.kind is not Kind.TARGET:
            continue
        phase = use.route[1] if use.route[0] == "phases" else ""
        sound = pipeline.without_faults(snapshot.plans, snapshot.found)
        named = (p for p in sound if p.target.is_called(use.name) and p.spec.phase == phase)
        plan = next(iter(named), None)
        if plan is not None and plan.arrays:
            held = memory(plan)
            room = f" of {room_text(held.hbm_bytes, held.hbm_share)}" if held.hbm_bytes else ""
            yield _behind(use), f"{binary_bytes(held.bytes)}{room}", str(held)


# The verdict above each target: whether it fits, what a device holds, and what is found on it.


#: Specs of a base whose verdict is shown.
_MOST_SHOWN = 6


def lenses(family: Family) -> list[types.CodeLens]:
    """Return a lens for each target of a text, and one for a base: the verdict of its specs."""
    own = family.own
    if family.is_part:
        shown = (f"{own.said(top.path)} {_tally(top.found)}" for top in family.tops[:_MOST_SHOWN])
        more = "; ..." if len(family.tops) > _MOST_SHOWN else ""
        title = f"for {family.counted}: {'; '.join(shown)}{more}"
        return [_lens(own, own.source.whole, title)]
    return [_lens(own, place, title) for place, title in _verdicts(own)]


def _lens(snapshot: Snapshot, place: Span, title: str) -> types.CodeLens:
    where = snapshot.lines.range(place.start, place.start)
    return types.CodeLens(where, command=types.Command(title, ""))


def _verdicts(snapshot: Snapshot) -> Iterator[tuple[Span, str]]:
    """Yield where each target of the text stands, and its verdict."""
    for use in snapshot.uses:
        if use.kind is Kind.TARGET and use.is_definition:
            for plan in _plans(use, snapshot):
                yield use.span, _verdict(plan, snapshot)
        elif use.kind is Kind.WORD and use.route == ("mesh",) and snapshot.plans:
            yield use.span, _verdict(snapshot.plans[0], snapshot)


def _plans(use: Use, snapshot: Snapshot) -> list[ShardingPlan]:
    phase = use.route[1] if use.route[0] == "phases" else ""
    named = (p for p in snapshot.plans if p.target.is_called(use.name) and p.spec.phase == phase)
    return [*named]


def _verdict(plan: ShardingPlan, snapshot: Snapshot) -> str:
    """Return what is to say of a target, in one line; of what is not known, that it is not."""
    found = _tally(pipeline.about(snapshot.found, plan.target.name))
    if not plan.arrays:
        return f"{plan.name}: memory unknown, the spec lists no arrays; {found}"
    if not pipeline.without_faults([plan], snapshot.found):
        return f"{plan.name}: memory unknown, a part of the spec cannot be read; {found}"
    held = memory(plan)
    if not held.hbm_bytes:
        return f"{plan.name}: {binary_bytes(held.bytes)} a device, its memory is unknown; {found}"
    fits = "fits" if held.bytes <= held.hbm_bytes else "does not fit"
    room = room_text(held.hbm_bytes, held.hbm_share)
    return f"{plan.name}: {fits}, {binary_bytes(held.bytes)} of {room}; {found}"


def _tally(found: tuple[Diagnostic, ...]) -> str:
    errors = sum(each.is_error for each in found)
    return tallied((errors, "error"), (len(found) - errors, "warning")) or "no findings"
