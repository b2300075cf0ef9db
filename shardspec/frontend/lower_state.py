"""What stands beside parameters, and what may be whole: `state:`, `coverage:`, `replicate:`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shardspec.diagnostics.codes import WRONG_TYPE
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.grammar import expressions
from shardspec.frontend.grammar.bound import parse_bound
from shardspec.frontend.layer import Layer
from shardspec.frontend.lowering import PATTERN, Lowering
from shardspec.ir.param import dtype_name
from shardspec.ir.spec import CoverageGate, Replicate

if TYPE_CHECKING:
    from shardspec.frontend.document import CoverageEntry, ReplicateEntry, StateEntry


def with_state(layer: Layer, lowering: Lowering) -> Layer:
    """Return a layer with what its document says in these sections."""
    document = lowering.document
    return layer._replace(
        state=_state(lowering, document.state),
        coverage=_coverage(lowering, document.coverage),
        replicate=tuple(_replicate(lowering, document.replicate)),
    )


def _state(lowering: Lowering, entry: StateEntry | None) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `state:` that the document sets, and where it sets them."""
    _report_empty(lowering, "state", entry)
    fields = entry.model_fields_set if entry is not None else ()
    stated = {key: getattr(entry, key) for key in fields if getattr(entry, key) is not None}
    if entry is None or not stated:
        return ()
    if entry.over is not None:
        excerpt = lowering.excerpt(("state", "over"), entry.over)
        axes = lowering.parse(expressions.parse_mesh_axes, excerpt)
        stated["over"] = tuple(axis.text for axis in axes.mesh_axes) if axes else ()
        stated["over_span"] = excerpt.span
    if "dtype" in stated:
        stated["dtype"] = _dtype(lowering, entry.dtype)
    stated["span"] = lowering.source_map.entry(("state",))
    return tuple(stated.items())


def _dtype(lowering: Lowering, name: str) -> str:
    """Return the short name of a dtype; that of the default for one that is not known."""
    known = dtype_name(name)
    if known is None:
        from shardspec.frontend.finish import unknown_dtype

        lowering.report(unknown_dtype(name, lowering.source_map.value(("state", "dtype")).span))
    return known or "f32"


def _coverage(lowering: Lowering, entry: CoverageEntry | None) -> CoverageGate | None:
    """Return how much `coverage:` lets every device hold whole."""
    text = None if entry is None else entry.max_replicated_bytes
    if text is None:
        _report_empty(lowering, "coverage", entry)
        return None
    excerpt = lowering.excerpt(("coverage", "max_replicated_bytes"), text)
    bound = lowering.parse(parse_bound, excerpt)
    if bound is None:
        return None
    return CoverageGate(bound.max_share, bound.max_bytes, excerpt.span)


def _replicate(lowering: Lowering, entries: Sequence[ReplicateEntry]) -> Iterator[Replicate]:
    """Yield the arrays that `replicate:` gives a reason for."""
    for index, entry in enumerate(entries):
        route = ("replicate", index)
        if lowering.is_reported((*route, "path"), entry.path):
            continue
        fault = lowering.choice_fault(route, entry, "entry of `replicate`", PATTERN)
        if fault is not None:
            lowering.report(fault)
            continue
        if not entry.because.strip():
            span = lowering.source_map.value((*route, "because")).span
            help = "say why these arrays are whole on every device: `because: tiny`"
            lowering.report(point(WRONG_TYPE, "`because` says nothing", span, help=help))
        pattern = lowering.entry_pattern(route, entry)
        if pattern is not None:
            yield Replicate(pattern, entry.because, lowering.source_map.value(route).span)


def _report_empty(lowering: Lowering, section: str, entry: object) -> None:
    """Report a section that is there and holds nothing at all."""
    if entry is None and section in lowering.document.model_fields_set:
        span = lowering.source_map.key((section,)).span
        form = {"state": "{optimizer: zero1}", "coverage": "{max_replicated_bytes: 2%}"}[section]
        help = f"as in `{section}: {form}`; or take it out"
        lowering.report(point(WRONG_TYPE, f"`{section}` is empty", span, help=help))
