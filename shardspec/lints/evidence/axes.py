"""What mesh axes and logical axes are for: the examples, the stacked layers, the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shardspec.diagnostics.words import three_figures
from shardspec.ir.spec import AxisRule, MeshAxis, Spec, Target

if TYPE_CHECKING:
    from shardspec.topology.explanation import AxisExplanation
    from shardspec.topology.placement import Placement

#: Part of the name: `batch`, `microbatch`, `activation_batch`.
_BATCH = "batch"

_STACKED = ("layer", "stage", "stack")


class Crossing(NamedTuple):
    """A mesh axis over DCN.

    Attributes:
      speed: how fast it is, beside the fastest axis, where the catalogue has figures.
    """

    axis: MeshAxis
    speed: str = ""


def batch_rules(spec: Spec) -> tuple[AxisRule, ...]:
    """Return the rules for logical axes that say batch; none where code splits the examples."""
    return tuple(rule for rule in spec.axis_rules if is_batch(rule.logical_axis))


def is_batch(logical_axis: str) -> bool:
    """Say whether the name of a logical axis says batch."""
    return _BATCH in logical_axis.lower()


def stacked_axes(spec: Spec) -> frozenset[str]:
    """Return the logical axes that `scan` says are stacked."""
    return frozenset(axis for scan in spec.scans for axis, _ in scan.axes)


def is_stacked(logical_axis: str, stacked: frozenset[str]) -> bool:
    """Say whether a dimension is that of stacked layers: by `scan`, or by its name."""
    name = logical_axis.lower()
    return logical_axis in stacked or any(word in name for word in _STACKED)


def placed(target: Target) -> Placement | None:
    """Return how a mesh lies on its hardware; None where it cannot, or there is none."""
    from shardspec.topology import placement

    return placement.placed(target)


def crossing_axes(target: Target) -> Iterator[Crossing]:
    """Yield the mesh axes that cross slices or nodes: as they say, or as they lie."""
    hardware = target.hardware
    if hardware is None:
        yield from (Crossing(a) for a in target.mesh.axes if a.network == "dcn" and a.size > 1)
    if hardware is None or hardware.slice_count == 1:
        return
    placement = placed(target)
    if placement is None:
        return
    from shardspec.topology.explanation import dcn_facts, explain_axes

    unasked = {fact.axis.name for fact in dcn_facts(placement)}
    explained = {axis.name: axis for axis in explain_axes(placement)}
    fastest = max(explained.values(), key=lambda axis: axis.bytes_per_s or 0, default=None)
    for lying in placement.axes:
        found = explained[lying.axis.name]
        if found.bottleneck == "dcn" and found.name not in unasked:
            yield Crossing(lying.axis, _compared(found, fastest))


def _compared(axis: AxisExplanation, fastest: AxisExplanation | None) -> str:
    """Return how fast an axis is beside the fastest one, where both are known."""
    if not axis.bytes_per_s or fastest is None or not fastest.bytes_per_s or axis is fastest:
        return ""
    return (
        f"`{axis.name}` gathers {three_figures(axis.bytes_per_s / 1e9)} GB/s on each device,"
        f" `{fastest.name}` {three_figures(fastest.bytes_per_s / 1e9)} GB/s"
    )
