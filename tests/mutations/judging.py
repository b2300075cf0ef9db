"""What a mistake does to the plans, and whether a finding names the right line.

A mutant is *worse* where, on any target of the original (by name; by place where names differ):

- the spec no longer means what it did: it cannot be read, a target is lost or its mesh unsound,
  an array is lost, a named activation is lost, or a mesh axis that ran inside slices or nodes now
  runs across them;
- one device holds more bytes of an array, or of all of them together;
- an array that was split is whole, or an activation is split fewer ways.

Another answer that is none of these is a *change*: it may be what someone wants. A mutant is
*caught* by at least one finding of the default level that the original does not have (originals
have none). The finding *names the right line* if one of its labels, primary or not, stands on

- a line that the mistake touched, as it reads afterwards (a line that is gone stands nowhere), or
  in a file that such a line pulls in, which the finding then says;
- the place that lost by it: the entry that names an array which is worse off, that array itself,
  or an activation which is worse off; or
- where text was removed, a line about what was removed: a name of it stands there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, Severity, Span
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.lints.context import Context
from shardspec.lints.registry import run
from shardspec.topology.placement import Placement, place
from tests.mutations.subjects import Subject, load
from tests.mutations.text import Mistake, apply


@dataclass(frozen=True)
class Verdict:
    """What came of one mistake.

    Attributes:
      worse: why the plans are worse; empty where they are not.
      is_change: whether any answer differs.
      found: the findings of the mutant.
    """

    subject: str
    mistake: Mistake
    worse: tuple[str, ...]
    is_change: bool
    found: tuple[Diagnostic, ...]
    pedantic: tuple[Diagnostic, ...]
    names_line: bool

    @property
    def is_caught(self) -> bool:
        """Say whether a finding of the default level speaks."""
        return bool(self.found)


def judge(subject: Subject, mistake: Mistake) -> Verdict:
    """Return what a mistake does, and what is said about it."""
    text, lines = apply(subject.text, mistake.changes)
    spec, faults = load(subject.name, text, subject.folder)
    if spec is None or not spec.is_whole:
        found = _spoken(faults)
        return Verdict(subject.name, mistake, ("cannot be read",), True, found, (), bool(found))
    plans = pipeline.compile_plans(spec)
    every = tuple(run(Context(spec, plans)))
    found = _spoken(pipeline.report(spec, (*faults, *every)).shown)
    pedantic = tuple(
        d for d in every if d.code.is_pedantic and (d.code.id, d.message) not in subject.pedantic
    )
    losses = list(_losses(subject, spec, plans))
    worse = tuple(dict.fromkeys(loss.why for loss in losses))
    places = [place for loss in losses for place in loss.places]
    on_line = any(_names(d, subject, mistake, lines, places, text) for d in found)
    is_change = bool(worse) or _answers(plans) != _answers(subject.plans)
    return Verdict(subject.name, mistake, worse, is_change, found, pedantic, on_line)


def _spoken(found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    return tuple(d for d in found if d.severity is not Severity.ALLOW and not d.code.is_pedantic)


@dataclass(frozen=True)
class _Loss:
    """One way in which the mutant is worse, and the places that lose by it."""

    why: str
    places: tuple[Span, ...] = ()


def _losses(subject: Subject, spec: Spec, plans: tuple[ShardingPlan, ...]) -> Iterator[_Loss]:
    by_name = {plan.target.name: plan for plan in plans}
    same_count = len(plans) == len(subject.plans)
    for index, old in enumerate(subject.plans):
        new = by_name.get(old.target.name) or (plans[index] if same_count else None)
        if new is None:
            yield _Loss("a target is lost")
            continue
        if not new.target.is_sound:
            yield _Loss("a mesh is unsound", _places(new.target.span))
        for axis in _crossing(new) - _crossing(old) & set(old.mesh.names):
            yield _Loss(f"`{axis}` crosses slices", _places(new.target.span))
        yield from _array_losses(_held_before(subject)[index], _held(new))
        yield from _activation_losses(old, new)


def _crossing(plan: ShardingPlan) -> set[str]:
    """Return the mesh axes that run across slices or nodes, as the devices are placed."""
    placement = place(plan.target) if plan.target.is_sound and plan.target.hardware else None
    if not isinstance(placement, Placement):
        return {axis.name for axis in plan.mesh.axes if axis.size > 1 and axis.network == "dcn"}
    links = placement.machine
    return {
        placed.axis.name
        for placed in placement.axes
        if any(links[digit.axis].link == "dcn" and digit.size > 1 for digit in placed.digits)
    }


class _Held(NamedTuple):
    """One array on one device."""

    sharding: ParamSharding
    bytes: int
    is_whole: bool


def _held(plan: ShardingPlan) -> dict[str, _Held]:
    """Return what a device holds of every array, by path."""
    held = {}
    for group in plan.alike:
        size, is_whole = group.shard_bytes, group.is_replicated
        held.update((s.param.path, _Held(s, size, is_whole)) for s in group.shardings)
    return held


@cache
def _held_before(subject: Subject) -> tuple[dict[str, _Held], ...]:
    return tuple(_held(plan) for plan in subject.plans)


def _array_losses(old: dict[str, _Held], new: dict[str, _Held]) -> Iterator[_Loss]:
    if sum(held.bytes for held in new.values()) > sum(held.bytes for held in old.values()):
        yield _Loss("more bytes per device")
    for path, before in old.items():
        after = new.get(path)
        if after is None:
            yield _Loss("an array is lost", _places(before.sharding.param.span))
        elif after.is_whole and not before.is_whole:
            yield _Loss("a split array is whole", _given_at(after.sharding))
        elif after.bytes > before.bytes:
            yield _Loss("an array takes more bytes", _given_at(after.sharding))


def _given_at(sharding: ParamSharding) -> tuple[Span, ...]:
    return _places(sharding.named_at, sharding.param.span)


def _activation_losses(old: ShardingPlan, new: ShardingPlan) -> Iterator[_Loss]:
    having = {sharding.activation.name: sharding for sharding in new.activations}
    for before in old.activations:
        after = having.get(before.activation.name)
        if after is None:
            yield _Loss("an activation is lost")
        elif _ways(after) < _ways(before):
            yield _Loss("an activation is split less", _places(after.activation.span))


def _ways(sharding: object) -> int:
    ways = 1
    for dim in sharding.dims:  # type: ignore[attr-defined]
        ways *= dim.ways
    return ways


def _places(*spans: Span | None) -> tuple[Span, ...]:
    return tuple(span for span in spans if span is not None)


def _answers(plans: tuple[ShardingPlan, ...]) -> list[object]:
    """Return all that a plan decides, for comparison."""
    return [
        (
            [(axis.name, axis.size, axis.network, axis.submesh) for axis in plan.mesh.axes],
            _layouts(plan),
            [(s.activation.name, s.partition_spec) for s in plan.activations],
        )
        for plan in plans
    ]


def _layouts(plan: ShardingPlan) -> dict[str, object]:
    layouts: dict[str, object] = {}
    for group in plan.alike:
        layout = (group.shape, tuple(dim.mesh_axes for dim in group.dims))
        layouts.update((sharding.param.path, layout) for sharding in group.shardings)
    return layouts


def _names(
    diagnostic: Diagnostic,
    subject: Subject,
    mistake: Mistake,
    lines: frozenset[int],
    places: list[Span],
    text: str,
) -> bool:
    """Say whether a label of a finding stands on the right line."""
    for label in diagnostic.labels:
        span = label.span
        if _touched(span, lines, text):
            return True
        if any(place.source is span.source and _meet(place, span) for place in places):
            return True
        if mistake.is_removal and _speaks_of(span, subject, mistake):
            return True
    return False


def _touched(span: Span, lines: frozenset[int], text: str) -> bool:
    """Say whether a span stands on a touched line, or in a file that such a line pulls in."""
    while span.source.included_from is not None:
        span = span.source.included_from
    last = span.source.text.count("\n", 0, max(span.start, span.end - 1)) + 1
    return span.source.text == text and bool(lines & set(range(span.line, last + 1)))


def _meet(one: Span, other: Span) -> bool:
    return one.line == other.line or (one.start < other.end and other.start < one.end)


def _speaks_of(span: Span, subject: Subject, mistake: Mistake) -> bool:
    """Say whether a name that was removed stands on the line of a label."""
    removed = " ".join(subject.text[c.start : c.end] for c in mistake.changes)
    names = set(re.findall(r"[A-Za-z_]\w+", removed)) - _KEYWORDS
    line = span.source.line_text(span.line)
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", line) for name in names)


#: Words that say nothing of what was removed.
_KEYWORDS = {"none", "dcn", "rest", "size", "unit", "extends", "because", "axes", "path", "match"}
