"""Activations are summed over the mesh axis that shards their weights, where gathers send less.

An axis for FSDP shards weights so that a device stores a part of them. For a product it gathers
the weights, and works on its own examples. Where the batch is not sharded over the axis at such a
product, XLA keeps the weights where they are: each device multiplies a part of each example by its
part of the weight, and the results, which are as large as activations, are summed over the axis.
Reported where the batch could be sharded over the axis and to gather the weights, and to scatter
their gradients, would send less than half.

Bad:
    # def step(params, x):
    #     x = x @ params["embedding"]
    #     return jnp.tanh(x @ params["wi"])
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 2, fsdp: 8}
    axes: {batch: 65536, features: 2048}
    rules:
      - batch -> data
      - embed -> fsdp
      - features, mlp -> none
    params:
      embedding: features embed
      wi: embed mlp
    arrays:
      embedding: bf16[2048, 2048]
      wi: bf16[2048, 8192]
    activations:
      x: batch features

Good:
    -  - batch -> data
    +  - batch -> (data, fsdp)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import AxisRule, PartitionSpec, target_text
from shardspec.ir.step import Collective, CollectiveKind, Step, StepArray, StepOp, ring_bytes
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import batch_rules, constraint, with_batch, without


class _Sum(NamedTuple):
    """A sum of what a product makes, over the mesh axes that shard its weight.

    Attributes:
      read: what the product reads beside its weight.
      wanted: how that has to be sharded instead.
    """

    sent: Collective
    op: StepOp
    weight: str
    read: StepArray
    wanted: PartitionSpec


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes over which activations are summed needlessly."""
    for axes, found in grouped(_sums(cost, step), lambda each: each.sent.axes).items():
        now = sum(each.sent.wire_bytes for each in found)
        then = _gathered(step, axes, found)
        if 2 * then <= now and steps.is_large_traffic(now - then, step):
            yield _finding(cost, step, found, now, then)


def _sums(cost: Cost, step: Step) -> Iterator[_Sum]:
    by_shape = grouped(step.ops, lambda op: op.result.shape)
    weights = {each.path for each in step.arguments if each.role == "parameter"}
    for each in step.collectives:
        is_sum = each.kind.traits.sums and not each.is_written and each.carries.kind != "gradient"
        if not is_sum or not all(_is_for_storage(cost, step, axis) for axis in each.mesh_axes):
            continue
        ops = (op for op in by_shape.get(each.array.shape, ()) if op.at <= each.at)
        op = max(ops, key=lambda op: op.at, default=None)
        seats = None if op is None else steps.seats_of(op, weights)
        wanted = None if seats is None else _wanted(seats, each.axes, cost, step)
        if op is not None and seats is not None and wanted is not None:
            yield _Sum(each, op, seats.weight.name, seats.other, wanted)


def _is_for_storage(cost: Cost, step: Step, axis: str) -> bool:
    """Say whether a mesh axis is there for FSDP: the batch is meant to be sharded over it, too."""
    batches = (each.array.split.dims for each in step.arguments if each.role == "batch")
    has_batch = any(dims and axis in dims[0] for dims in batches)
    has_rule = any(axis in rule.mesh_axes for rule in batch_rules(cost.plan))
    return "fsdp" in axis.lower() or has_batch or has_rule


def _wanted(
    seats: steps.Seats, axes: Sequence[str], cost: Cost, step: Step
) -> PartitionSpec | None:
    """Return how a product's examples are sharded by mesh axes along which it sums its weight.

    As the rule of the batch has it, where its mesh axes are free. None where it is no such product,
    and where the axes do not divide the first dimension.
    """
    weight, own, other, letters, result = seats
    dims_of = zip(own, weight.split.dims, strict=True)
    summed = {axis for letter, split in dims_of if letter not in result for axis in split}
    kept = [at for at, letter in enumerate(letters) if letter in result and letter not in own]
    if not set(axes) <= summed or not kept:
        return None
    rest = without(other.split, axes)
    if (found := with_batch(cost.plan, other.shape, rest, kept[0], axes)) is not None:
        return found
    order = [axis.name for axis in step.mesh.axes]
    dims = list(rest.dims)
    dims[kept[0]] = tuple(sorted((*dims[kept[0]], *axes), key=order.index))
    divides = other.shape[kept[0]] % step.mesh.ways(dims[kept[0]]) == 0
    return PartitionSpec(tuple(dims)) if divides else None


def _gathered(step: Step, axes: Sequence[str], found: Sequence[_Sum]) -> int:
    """Return what gathers of the weights of products send in a step, and sums of their gradients.

    Products at one line, as those of layers that are not scanned, are alike.
    """
    weights = {each.path for each in step.arguments if each.role == "parameter"}
    lines = {each.op.place.shown for each in found if each.op.place.is_known}
    own = {each.weight for each in found}
    ways = step.mesh.ways(axes)
    sent = 0.0
    for op in step.ops:
        read = weights if op.place.shown in lines else own
        for each in op.operands:
            if each.name in read and set(axes) <= {*each.split.mesh_axes}:
                times = 2 if op.phase == "backward" else 1
                whole = each.bytes * ways
                sent += times * op.count * ring_bytes(CollectiveKind.ALL_GATHER, whole, ways)
    return round(sent)


def _finding(cost: Cost, step: Step, found: Sequence[_Sum], now: int, then: int) -> Diagnostic:
    first = max(found, key=lambda each: each.sent.wire_bytes)
    axes = first.sent.axes
    batches = batch_rules(cost.plan)
    lacks = batches and not any(set(axes) & set(rule.mesh_axes) for rule in batches)
    causes = [cause for each in found for cause in each.sent.because]
    cause = next((cause for cause in causes if cause.span is not None), None)
    way_out = (
        f"{', and '.join(_ways_out(cost.plan, step, found, batches))}: each device then works on"
        " its own examples, with all weights"
    )
    return Diagnostic(
        codes.ACTIVATIONS_SUMMED,
        f"activations are summed over {listed(axes)}, which shards their weights:"
        f" {steps.per_step(now)}, where gathering the weights sends"
        f" {steps.per_step(then).partition(' per')[0]}",
        labels_at(
            (cause.span if cause else None, f"shards weights over {listed(axes)}"),
            (batches[0].span if lacks else None, "but the batch is not sharded over it"),
            *((axis.span, "sums activations") for axis in step.mesh.axes if axis.name in axes),
        ),
        steps.sent_lines(each.sent for each in found),
        steps.searchable(way_out, cost),
    )


def _ways_out(
    plan: ShardingPlan, step: Step, found: Sequence[_Sum], batches: Sequence[AxisRule]
) -> Iterator[str]:
    """Yield what makes each device work on examples of its own: a rule, and constraints."""
    axes, is_code = found[0].sent.axes, step.source == "code"
    rule = next((each for each in batches if set(axes) & set(each.mesh_axes)), None)
    causes = [cause.rule for each in found for cause in each.sent.because if cause.rule is not None]
    above = f", above `{causes[0]}`" if causes else ""
    if rule is None and batches:
        order = [axis.name for axis in step.mesh.axes]
        wider = tuple(sorted((*batches[0].mesh_axes, *axes), key=order.index))
        new = f"{batches[0].logical_axis} -> {target_text(wider)}"
        yield f"write `{new}` in place of `{batches[0]}`{above}"
        own = replace(batches[0], mesh_axes=wider)
        rules = tuple(own if each is batches[0] else each for each in plan.spec.axis_rules)
        plan = replace(plan, spec=replace(plan.spec, axis_rules=rules))
    elif not is_code:
        yield f"let a rule shard the batch over {listed(axes)}{above}"
    forward = [each for each in found if each.op.phase != "backward"] or found
    for call, places in steps.places_by(
        forward if is_code else (),
        lambda each: (constraint(plan, each.read.shape, each.wanted, each.op.vmaps), each.op),
    ):
        yield f"constrain what the products at {places} read: {call}"
