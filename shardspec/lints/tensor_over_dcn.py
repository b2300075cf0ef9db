"""A mesh axis that every layer waits for crosses slices or nodes.

Split over such an axis, a matrix product ends in an all-reduce, or starts with an all-gather, of
activations in each layer, forward and backward, and DCN is many times slower than the links inside
a slice. What may cross is what is sent once a step or can be sent ahead: an axis that also splits
the batch (its gradients, and with FSDP its weights, which are gathered ahead of their use), and
one that only splits stacked layers (pipeline stages send one activation).

So these axes count: on `@ dcn`, or filling the network of GPU nodes (others that cross unasked are
told of by SHD108); splitting a dimension of an array; not that of `scan`, nor one whose name says
layer, stage or stack; and named by no rule for an axis that says batch. A spec that has no such
rule is left in peace.

Bad:
    shardspec: 1
    hardware: 2 * h100
    mesh: {tensor: 2 @ dcn, data: 8}
    axes: {batch: 64}
    rules:
      - batch -> data
      - embed -> none
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[embed=1024 mlp=4096]

Good:
    shardspec: 1
    hardware: 2 * h100
    mesh: {data: 2 @ dcn, tensor: 8}
    axes: {batch: 64}
    rules:
      - batch -> data
      - embed -> none
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[embed=1024 mlp=4096]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardspec.analysis.alike import alike
from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import TENSOR_OVER_DCN as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.ir.mesh import MeshAxis
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.ir.units import three_figures
from shardspec.lints.batch_rules import batch_rules
from shardspec.lints.context import Context

if TYPE_CHECKING:
    from shardspec.topology.explanation import AxisExplanation

_STACKED = ("layer", "stage", "stack")


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A mesh axis over DCN.

    Attributes:
      speed: how fast it is, beside the fastest axis, where the catalogue has figures.
    """

    axis: MeshAxis
    speed: str = ""


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis over DCN that splits arrays and not the batch."""
    batch = frozenset(axis for rule in batch_rules(context.spec) for axis in rule.mesh_axes)
    if not batch:
        return
    stacked = stacked_axes(context.spec)
    for plan in context.plans:
        for crossing in crossing_axes(plan.target):
            if crossing.axis.name not in batch:
                split = tuple(_split(plan, crossing.axis.name, stacked))
                if split:
                    yield _finding(crossing, plan, split, batch)


def crossing_axes(target: Target) -> Iterator[_Crossing]:
    """Yield the mesh axes that cross slices or nodes: as they say, or as they lie."""
    hardware = target.hardware
    if hardware is None:
        yield from (_Crossing(a) for a in target.mesh.axes if a.network == "dcn" and a.size > 1)
    if hardware is None or hardware.slice_count == 1:
        return
    from shardspec.topology.explanation import dcn_facts, explain_axes
    from shardspec.topology.placement import place

    placement = place(target)
    if isinstance(placement, Diagnostic):
        return
    unasked = {fact.axis.name for fact in dcn_facts(placement)}
    explained = {axis.name: axis for axis in explain_axes(placement)}
    fastest = max(explained.values(), key=lambda axis: axis.bytes_per_s or 0, default=None)
    for placed in placement.axes:
        found = explained[placed.axis.name]
        if found.bottleneck == "dcn" and found.name not in unasked:
            yield _Crossing(placed.axis, _compared(found, fastest))


def _compared(axis: AxisExplanation, fastest: AxisExplanation | None) -> str:
    """Return how fast an axis is beside the fastest one, where both are known."""
    if not axis.bytes_per_s or fastest is None or not fastest.bytes_per_s or axis is fastest:
        return ""
    return (
        f"`{axis.name}` gathers {three_figures(axis.bytes_per_s / 1e9)} GB/s on each device,"
        f" `{fastest.name}` {three_figures(fastest.bytes_per_s / 1e9)} GB/s"
    )


def _split(
    plan: ShardingPlan, axis: str, stacked: frozenset[str]
) -> Iterator[tuple[str, Span | None]]:
    """Yield the arrays that an axis splits within a layer, with the rule that does it."""
    for group in alike(plan):
        dim = next((dim for dim in group.dims if axis in dim.mesh_axes), None)
        if (
            dim is not None
            and dim.taken is not None
            and not is_stacked(dim.logical_axis or "", stacked)
        ):
            span = dim.taken.span
            yield from ((sharding.param.path, span) for sharding in group.shardings)


def stacked_axes(spec: Spec) -> frozenset[str]:
    """Return the logical axes that `scan` says are stacked."""
    return frozenset(axis for scan in spec.scans for axis, _ in scan.axes)


def is_stacked(logical_axis: str, stacked: frozenset[str]) -> bool:
    """Say whether a dimension is that of stacked layers: by `scan`, or by its name."""
    name = logical_axis.lower()
    return logical_axis in stacked or any(word in name for word in _STACKED)


def _finding(
    crossing: _Crossing,
    plan: ShardingPlan,
    split: tuple[tuple[str, Span | None], ...],
    batch: frozenset[str],
) -> Diagnostic:
    axis, target = crossing.axis, plan.target
    hardware = target.hardware
    unit = "nodes" if hardware and hardware.chip.platform != "tpu" else "slices"
    spans = [axis.span, *dict.fromkeys(span for _, span in split)]
    texts = [f"crosses {unit}", *("splits arrays over it" for _ in spans[1:])]
    labels = [
        Label(span, text, primary=False)
        for span, text in zip(spans[:4], texts, strict=False)
        if span is not None
    ]
    notes = [described(path for path, _ in split), crossing.speed]
    return Diagnostic(
        CODE,
        f"`{axis.name}` = {axis.size} splits arrays and crosses {unit} on target"
        f" `{target.name}`: each layer waits for DCN",
        tuple(Label(x.span, x.text, primary=at == 0) for at, x in enumerate(labels)),
        tuple(note for note in notes if note),
        _way_out(axis, target, unit, [name for name in target.mesh.names if name in batch]),
    )


def _way_out(axis: MeshAxis, target: Target, unit: str, batch: list[str]) -> str:
    inside = f"keep `{axis.name}` within one of the {unit}"
    if target.hardware is not None:
        inside += f" (up to {target.hardware.devices_per_slice} devices)"
    other = f"{listed(batch)}, which the batch has," if batch else "an axis that the batch has"
    return f"{inside}, and let {other} cross: `@ dcn`"
