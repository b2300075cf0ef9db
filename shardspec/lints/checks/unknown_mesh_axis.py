"""A rule, a partition or `state` names a mesh axis that no target has.

The rule can never fire, so its dimension is replicated. Flax passes such a rule through and fails
later, naming neither rule nor array, or not at all where only activations use it. An axis that some
targets have and others lack is fine: it drops out there.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tenosr
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    -  - mlp -> tenosr
    +  - mlp -> tensor
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, labels_at, quote
from shardspec.diagnostics.words import did_you_mean, listed, named, respelt
from shardspec.ir.plan import DimSharding, Outcome
from shardspec.ir.spec import Spec
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, subjects, with_cost
from shardspec.lints.evidence.entries import first_word
from shardspec.resolve.match import Stating

#: Places that are shown; more are counted.
_SHOWN = 4


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each unknown mesh axis and file: all places that name it."""
    spec = context.spec
    if not spec.targets:
        return
    known = spec.mesh_axis_names
    asked: dict[tuple[str, SourceFile | None], dict[Span | None, None]] = {}
    for span, axes in _uses(spec):
        for axis in axes:
            if axis not in known:
                place = None if span is None else first_word(span, axis)
                source = None if span is None else span.source
                asked.setdefault((axis, source), {}).setdefault(place)
    affected = _affected(context) if asked else {}
    for (axis, _), places in asked.items():
        finding = _finding(axis, [place for place in places if place is not None], spec)
        found = affected.get(axis, Affected())
        finding = with_cost(finding, context, found.arrays, "not split so: ")
        names = found.activations
        more = (f"not split so: {named('activation', names)}",) if names else ()
        yield replace(finding, notes=(*finding.notes, *more))


def _uses(spec: Spec) -> Iterator[tuple[Span | None, tuple[str, ...]]]:
    """Yield each place that names mesh axes, with those axes."""
    yield from ((rule.span, rule.mesh_axes) for rule in (*spec.axis_rules, *spec.any_rules))
    entries: tuple[Stating, ...] = (*spec.overrides, *spec.activations)
    for entry in entries:
        stated = tuple(axis for dim in entry.partition or () for axis in dim)
        yield entry.span, stated + entry.sums.mesh_axes
    if spec.state is not None:
        yield spec.state.over_span, spec.state.over


def _affected(context: Context) -> dict[str, Affected]:
    """Return, by mesh axis, what rules with an unknown one were tried on."""
    affected: dict[str, Affected] = defaultdict(Affected)
    for plan in context.plans:
        for subject in subjects(plan):
            for axis in _asked(subject.dims):
                affected[axis].add(subject, plan)
    return affected


def _asked(dims: Sequence[DimSharding]) -> set[str]:
    """Return the mesh axes of the rules that named one which the mesh does not have."""
    return {
        axis
        for dim in dims
        for attempt in dim.attempts
        if attempt.outcome is Outcome.UNKNOWN
        for axis in attempt.asked
    }


def _finding(axis: str, places: list[Span], spec: Spec) -> Diagnostic:
    places.sort(key=lambda place: place.start)
    said = ("no target has this axis", *[""] * (_SHOWN - 1))
    target, keeps = spec.targets[0], quote.size(axis, 1)
    rest = len(places) - _SHOWN
    known = spec.mesh_axis_names
    more = (f"it is in {rest} more place{'s' if rest > 1 else ''}",) if rest > 0 else ()
    return Diagnostic(
        codes.UNKNOWN_MESH_AXIS,
        f"unknown mesh axis `{axis}`",
        labels_at(
            *zip(places, said, strict=False),
            (target.span, f"its mesh axes: {', '.join(target.mesh.names)}"),
        ),
        notes=more,
        help=did_you_mean(axis, sorted(known))
        or f"write a mesh axis ({listed(sorted(known))}) or `none`; or add {keeps} to the mesh,"
        f" which keeps the rule, and allow `size-one-axis` in {quote.section('lints')}",
        fix=respelt(places, axis, known),
        subject=axis,
    )
