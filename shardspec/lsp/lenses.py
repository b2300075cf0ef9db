"""The verdict above each target: whether it fits, what a device holds, and what is found on it."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec import pipeline
from shardspec.analysis.memory import memory, room_text
from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.words import binary_bytes, tallied
from shardspec.ir.plan import ShardingPlan
from shardspec.lsp import types
from shardspec.lsp.family import Family
from shardspec.lsp.kinds import Kind
from shardspec.lsp.names import Use
from shardspec.lsp.snapshot import Snapshot

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
