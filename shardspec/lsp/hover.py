"""What a name or a line is about: what `explain` says of it, for the target that comes first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from shardspec import pipeline
from shardspec.analysis.memory import memory, room_text
from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.words import binary_bytes, by_key, counted, described, listed, tallied
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import DTYPE_BITS, dtype_name
from shardspec.language.loader import bundled_doc
from shardspec.language.reading import inner_route
from shardspec.lsp import types
from shardspec.lsp.navigation import Family, use_at
from shardspec.lsp.snapshot import Snapshot
from shardspec.lsp.types import Kind, Use
from shardspec.report import explain_line, pages
from shardspec.report.saved_cost import axis_lines, line_lines
from shardspec.report.table import rows, target_title
from shardspec.resolve.match import PathMatcher

#: Lines of an answer; of more, `shardspec explain` shows the rest.
MOST_LINES = 30
#: Arrays shown of a pattern, layers that agree as one.
_MOST_ROWS = 12


def hover(snapshot: Snapshot, offset: int, tops: Sequence[Snapshot] = ()) -> str | None:
    """Return what there is to say at an offset, as Markdown; None for nothing.

    Args:
      tops: the specs that the text is part of: it means what they mean.
    """
    named = use_at(snapshot, offset)
    use = named or _rule_at(snapshot, offset)
    parts = []
    if use is not None and [*(tops or [snapshot])] != [snapshot]:
        answers = ((_told(use, each, snapshot, is_named=named is not None), each) for each in tops)
        told = by_key((tuple(blocks), each) for blocks, each in answers)
        for blocks, found in told.items():
            paths = listed((snapshot.said(each.path) for each in found), limit=6)
            parts += [f"for {counted(len(found), 'spec')}: {paths}", *blocks]
    elif use is not None:
        parts = [*_told(use, snapshot, snapshot, is_named=named is not None)]
    for finding in islice(snapshot.at(offset), 1):
        parts.append(_block(pages.finding_page(finding.code).split("\n")))
    return "\n\n---\n\n".join(parts) or None


def _told(use: Use, snapshot: Snapshot, own: Snapshot, *, is_named: bool) -> Iterator[str]:
    """Yield what a spec says of a name in a text of its own, or of the rule of that name."""
    plan = plan_for(use, snapshot)
    told = _about(use, snapshot, plan) if is_named else [_line(use, snapshot, plan)] if plan else []
    yield from filter(None, (_block(map(own.said, part)) for part in told))


def _rule_at(snapshot: Snapshot, offset: int) -> Use | None:
    """Return a name of the rule at an offset, where that is on none: on its arrow, say."""
    rules = (use for use in snapshot.uses if "rules" in use.route and use.kind is not Kind.WORD)
    return next((r for r in rules if r.whole.span.start <= offset <= r.whole.span.end), None)


def _block(lines: Iterable[str]) -> str:
    """Return lines as they stand, cut after some."""
    shown = [line.rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    more = len(shown) - MOST_LINES
    if more > 1:
        shown = [*shown[:MOST_LINES], f"... and {counted(more, 'more line')}"]
    text = "\n".join(shown).replace("```", "` ` `")
    return f"```text\n{text}\n```" if text else ""


def plan_for(use: Use, snapshot: Snapshot) -> ShardingPlan | None:
    """Return the plan that a name is explained on: of its phase, with its mesh axis or target."""
    phase = str(use.route[1]) if use.route[:1] == ("phases",) and len(use.route) > 1 else ""
    plans = [p for p in snapshot.plans if p.spec.phase == phase] or [*snapshot.plans]
    if use.kind is Kind.MESH_AXIS:
        plans = [p for p in plans if _has(use.name, p)]
    elif use.kind is Kind.TARGET:
        plans = [p for p in plans if p.target.is_called(use.name)]
    own = [p for p in plans if "targets" in use.route and p.target.name in use.route]
    return next(iter(own or plans), None)


Lines = Iterable[str]


def _about(use: Use, snapshot: Snapshot, plan: ShardingPlan | None) -> Iterator[Lines]:
    """Yield the answers about a name, the nearest first."""
    if use.kind is Kind.WORD:
        yield _word(use)
    elif use.kind is Kind.FINDING:
        code = pages.find_code(use.name)
        yield pages.finding_page(code).split("\n") if code else ()
    elif use.kind is Kind.HARDWARE:
        page = pages.hardware_page(use.name)
        yield [page] if isinstance(page, str) else page
    elif use.kind is Kind.DTYPE:
        name = dtype_name(use.name)
        yield [f"{name}: {DTYPE_BITS[name]} bits an element"] if name else ()
    elif use.kind in (Kind.BASE, Kind.STEP, Kind.MANIFEST):
        yield _file(use, snapshot)
    elif use.kind is Kind.NUMBER:
        yield _number(use, snapshot)
    elif plan is None:
        return
    elif use.kind is Kind.TARGET:
        yield _target(plan, snapshot)
    elif use.kind is Kind.PHASE:
        phases = snapshot.spec.phases if snapshot.spec else ()
        targets = (t.name for each in phases if each.phase == use.name for t in each.targets)
        yield (f"phase {use.name} on {listed(targets)}",)
    else:
        yield from _with_plan(use, snapshot, plan)


def _with_plan(use: Use, snapshot: Snapshot, plan: ShardingPlan) -> Iterator[Lines]:
    is_rule = "rules" in use.route
    if use.kind in (Kind.PATTERN, Kind.ARRAY, Kind.ACTIVATION) or is_rule:
        yield _line(use, snapshot, plan)
    if use.kind is Kind.PATTERN:
        yield _matching(use, plan)
    if use.kind is Kind.LOGICAL_AXIS:
        yield explain_line.explain_logical_axis(use.name, plan)
    elif use.kind is Kind.MESH_AXIS:
        yield _mesh_axis(use.name, snapshot, plan)
        yield _axis_cost(use.name, snapshot, plan)


def _word(use: Use) -> Lines:
    """Return the page of a key of the language."""
    words = inner_route(tuple(part for part in use.route if isinstance(part, str))) or (use.name,)
    section, last = words[0], words[-1]
    inner = pages.field_page(f"{section}.{last}") if len(words) > 1 else ()
    if not inner and last == "mesh":
        inner = pages.field_page("targets.mesh")
    return inner or pages.field_page(section)


def _file(use: Use, snapshot: Snapshot) -> Lines:
    """Yield what a base is for, and its rules; of arrays, how many there are."""
    kinds = {Kind.BASE: "presets", Kind.STEP: "steps", Kind.MANIFEST: "arrays"}
    if use.kind is Kind.BASE:
        page = pages.file_page("preset", use.name)
        if not isinstance(page, str):
            return page
    if use.kind is Kind.MANIFEST:
        return _manifest(use, snapshot)
    doc = bundled_doc(kinds[use.kind], use.name)  # type: ignore[arg-type]
    return [f"{use.kind} {use.name}   {doc}".rstrip()]


def _manifest(use: Use, snapshot: Snapshot) -> Lines:
    params = snapshot.spec.params if snapshot.spec else ()
    stem = os.path.basename(use.name)
    sources = ((param, param.span.source.name) for param in params if param.span is not None)
    named = (f"arrays:{use.name}", stem)
    here = [p for p, source in sources if source in named or os.path.basename(source) == stem]
    size = binary_bytes(sum(param.bytes for param in here))
    return [f"manifest {use.name}", f"  {described(p.path for p in here)}, {size}" if here else ""]


def _number(use: Use, snapshot: Snapshot) -> Lines:
    """Yield what a name of `let` stands for, as it is written."""
    stated = (each for each in snapshot.all_uses if each.kind is Kind.NUMBER and each.is_definition)
    for each in stated:
        if each.name == use.name:
            reading = snapshot.read(each.span.source)
            text = reading.source_map.value(each.route).text if reading else ""
            yield f"let {each.name} = {text}   {snapshot.said(each.span.place)}"


def _target(plan: ShardingPlan, snapshot: Snapshot) -> Lines:
    yield target_title(plan.target)
    yield f"mesh {plan.mesh}"
    if pipeline.without_faults([plan], snapshot.found):
        yield f"{memory(plan)}"


def _line(use: Use, snapshot: Snapshot, plan: ShardingPlan) -> Lines:
    """Yield what `explain FILE:LINE` says of the line of a name, and what it sends."""
    line = use.span.line
    name = use.span.source.name
    told = [*explain_line.explain_line(name, line, plan)]
    yield from told
    if told and len(snapshot.plans) > 1:
        yield f"on target {plan.name}"
    saved = snapshot.cost(plan)
    if saved is not None and told:
        yield from line_lines(saved, name, line, plan)


def _matching(use: Use, plan: ShardingPlan) -> Lines:
    """Yield the arrays that a pattern matches, those that agree as one."""
    matcher = PathMatcher((use.pattern,))
    here = tuple(s for s in plan.arrays if matcher.first_match(s.path) is not None)
    found = rows(ShardingPlan(plan.spec, plan.target, here))
    for row in found[:_MOST_ROWS]:
        yield f"{row.name}   {row.first.param}   {row.first.partition_spec}"
    if len(found) > _MOST_ROWS:
        yield f"... and {len(found) - _MOST_ROWS} more rows"


def _mesh_axis(name: str, snapshot: Snapshot, plan: ShardingPlan) -> Lines:
    """Yield the size of a mesh axis on every target, and what it splits on one."""
    sizes = {p.name: p.mesh.ways(p.mesh.in_parts([name])) for p in snapshot.plans if _has(name, p)}
    yield ", ".join(f"{size} on {target}" for target, size in sizes.items())
    if not _has(name, plan):
        return
    yield from explain_line.explain_mesh_axis(name, plan)


def _axis_cost(name: str, snapshot: Snapshot, plan: ShardingPlan) -> Lines:
    saved = snapshot.cost(plan)
    if saved is not None and name in plan.mesh.names:
        yield from axis_lines(saved, name, plan)


def _has(name: str, plan: ShardingPlan) -> bool:
    return name in plan.mesh.names or name in dict(plan.mesh.wholes)


# Figures behind what they come of: shard sizes, numbers of arrays, bytes of a device.
#
# Behind rules and patterns they are of one target, the first whose mesh is known.


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
        sound = pipeline.without_faults(_plans(use, snapshot), snapshot.found)
        plan = next(iter(sound), None)
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
