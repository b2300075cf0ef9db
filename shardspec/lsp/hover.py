"""What a name or a line is about: what `explain` says of it, for the target that comes first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from shardspec import pipeline
from shardspec.analysis.memory import memory
from shardspec.diagnostics.words import binary_bytes, by_key, counted, described, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import DTYPE_BITS, dtype_name
from shardspec.language.loader import bundled_doc
from shardspec.language.reading import inner_route
from shardspec.lsp.kinds import Kind
from shardspec.lsp.names import Use
from shardspec.lsp.navigation import use_at
from shardspec.lsp.snapshot import Snapshot
from shardspec.report import explain_line, pages, shipped
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
        page = shipped.hardware_page(use.name)
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
        page = shipped.file_page("preset", use.name)
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
        from shardspec.report.saved_cost import line_lines

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
        from shardspec.report.saved_cost import axis_lines

        yield from axis_lines(saved, name, plan)


def _has(name: str, plan: ShardingPlan) -> bool:
    return name in plan.mesh.names or name in dict(plan.mesh.wholes)
