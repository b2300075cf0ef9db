"""What the checks find in a spec and in its phases, told together.

What all of them say is said once; what only phases say names them. That nothing uses a rule, a
pattern or a mesh axis is a finding where it is true of all phases that have it: a rule that a phase
puts another one in place of is idle there, and at work elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.words import by_key, listed
from shardspec.ir.spec import Spec
from shardspec.lints.context import Context
from shardspec.lints.registry import run


def together(contexts: Sequence[Context]) -> Iterator[Diagnostic]:
    """Yield what every check finds, of a spec and its phases."""
    found = [tuple(run(context)) for context in contexts]
    places = [_places(context.spec) for context in contexts]
    told = [{_key(each) for each in here if each.code.is_idle} for here in found]
    named = by_key(
        (each, context.spec.phase)
        for context, here in zip(contexts, found, strict=True)
        for each in here
    )
    for each, phases in named.items():
        if each.code.is_idle and not all(
            _key(each) in keys or not known.has(each)
            for keys, known in zip(told, places, strict=True)
        ):
            continue
        yield each if "" in phases else _in_phases(each, phases)


def _in_phases(found: Diagnostic, phases: Sequence[str]) -> Diagnostic:
    """Return a finding that names the phases that it is about, where it does not itself."""
    names = dict.fromkeys(phases)
    if all(f"phase `{name}`" in found.message for name in names):
        return found
    note = f"in phase{'s' if len(names) > 1 else ''} {listed(names)}"
    return replace(found, notes=(*found.notes, note))


def _key(found: Diagnostic) -> tuple[str, Span | None]:
    return found.code.id, found.primary.span if found.primary else None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the entries of a spec stand.

    Attributes:
      by_source: the starts of the entries, and how far each reaches with those before it.
    """

    by_source: dict[str, tuple[list[int], list[int]]]

    def has(self, found: Diagnostic) -> bool:
        """Say whether what a finding points at is part of the spec."""
        if found.primary is None:
            return True
        span = found.primary.span
        starts, reach = self.by_source.get(span.source.name, ([], []))
        before = bisect_right(starts, span.start)
        return before > 0 and reach[before - 1] >= span.end


def _places(spec: Spec) -> _Places:
    spans = sorted(
        (span.source.name, span.start, span.end) for span in _spans(spec) if span is not None
    )
    grouped = by_key((name, (start, end)) for name, start, end in spans)
    return _Places(
        {
            name: ([start for start, _ in ends], list(accumulate((end for _, end in ends), max)))
            for name, ends in grouped.items()
        }
    )


def _spans(spec: Spec) -> Iterator[Span | None]:
    yield from (_with_left_side(rule.span) for rule in spec.axis_rules)
    yield from (pattern.span for pattern in spec.patterns)
    yield from (entry.span for entry in spec.path_rules)
    yield from (entry.span for entry in spec.overrides)
    yield from (entry.span for entry in spec.scans)
    yield from (entry.span for entry in spec.replicate)
    yield from (entry.span for entry in spec.activations)
    yield from (entry.span for entry in spec.logical_axes)
    for target in spec.targets:
        yield target.span
        yield from (axis.span for axis in target.mesh.axes)


def _with_left_side(span: Span | None) -> Span | None:
    """Return an alternative with what stands before it on its line: the axes that it is for."""
    if span is None:
        return None
    return Span(span.source, span.source.text.rfind("\n", 0, span.start) + 1, span.end)
