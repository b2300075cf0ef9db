"""A mesh axis that every layer waits for crosses slices or nodes.

Use the axis inside a slice, and let a data axis cross. A matrix product that is sharded over the
axis needs an all-reduce or an all-gather of activations in each layer, forward and backward, and
DCN is many times slower than the links inside a slice. Two kinds of axes may cross: one that also
shards the batch (gradients are sent once a step, and FSDP gathers weights ahead of their use), and
one that only shards stacked layers (pipeline stages send one activation).

Reported for axes on `@ dcn`, and for those that fill the network of GPU nodes (SHD108 reports
others that cross). The axis has to shard a dimension of an array other than stacked layers (that of
`scan`, or with layer, stage or stack in its name), and no rule for a batch axis may use it. Nothing
is reported for a spec without a rule for a batch.

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
    -mesh: {tensor: 2 @ dcn, data: 8}
    +mesh: {data: 2 @ dcn, tensor: 8}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at
from shardspec.diagnostics.words import described, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import MeshAxis, Target
from shardspec.lints.context import Context
from shardspec.lints.evidence import rules

#: Rules that are pointed at.
_SHOWN = 3


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis over DCN that splits arrays and not the batch."""
    batch = frozenset(axis for rule in rules.batch_rules(context.spec) for axis in rule.mesh_axes)
    if not batch:
        return
    stacked = rules.stacked_axes(context.spec)
    for plan in context.plans:
        batch |= frozenset(plan.mesh.in_parts(batch))
        for crossing in rules.crossing_axes(plan.target):
            if crossing.axis.name not in batch:
                split = tuple(_split(plan, crossing.axis.name, stacked))
                if split:
                    yield _finding(crossing, plan, split, batch)


def _split(
    plan: ShardingPlan, axis: str, stacked: frozenset[str]
) -> Iterator[tuple[str, Span | None]]:
    """Yield the arrays that an axis splits within a layer, with the rule that does it."""
    for group in plan.alike:
        dim = next((dim for dim in group.dims if axis in dim.mesh_axes), None)
        if dim is not None and dim.taken and not rules.is_stacked(dim.logical_axis or "", stacked):
            yield from ((path, dim.taken.span) for path in group.paths)


def _finding(
    crossing: rules.Crossing,
    plan: ShardingPlan,
    split: tuple[tuple[str, Span | None], ...],
    batch: frozenset[str],
) -> Diagnostic:
    axis, target = crossing.axis, plan.target
    hardware = target.hardware
    unit = "nodes" if hardware and hardware.chip.platform != "tpu" else "slices"
    spans = list(dict.fromkeys(span for _, span in split))[:_SHOWN]
    notes = [described(path for path, _ in split), crossing.speed]
    return Diagnostic(
        codes.TENSOR_OVER_DCN,
        f"`{axis.name}` = {axis.size} splits arrays and crosses {unit} on target"
        f" `{target.name}`: each layer waits for DCN",
        labels_at((axis.span, f"crosses {unit}"), *((s, "splits arrays over it") for s in spans)),
        tuple(note for note in notes if note),
        _way_out(axis, target, unit, [name for name in target.mesh.names if name in batch]),
        target=target.name,
    )


def _way_out(axis: MeshAxis, target: Target, unit: str, batch: list[str]) -> str:
    inside = f"keep `{axis.name}` within one of the {unit}"
    if target.hardware is not None:
        inside += f" (up to {target.hardware.devices_per_slice} devices)"
    other = f"{listed(batch)}, which the batch has," if batch else "an axis that the batch has"
    return f"{inside}, and let {other} cross: `@ dcn`"
