"""A sharded weight is gathered, although no work is shared over its mesh axis.

Shard the batch over the axis as well, or do not shard the weight over it. A rule shards the weight
over a mesh axis, but the products that read it are sharded over that axis in neither operand. So
the axis saves memory and costs the gathers, and all devices along it compute the same. FSDP gathers
are not reported: there the axis also shards the batch, and each device has its own examples.
Reported if the traffic is large in a step.

Bad:
    # def step(params, x):
    #     w = resolver.constrain(params["w"], "features _")
    #     return x @ w
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 16384, features: 4096}
    rules:
      - batch -> data
      - mlp -> tensor
      - features -> none
    params:
      w: features mlp
    arrays:
      w: bf16[4096, 16384]
    activations:
      x: batch features

Good:
    -#     w = resolver.constrain(params["w"], "features _")
    -#     return x @ w
    +#     return x @ params["w"]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, counted, percent
from shardspec.ir.step import Step
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint
from shardspec.lints.evidence.steps import IdleGather, moved


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each rule whose weights are gathered for nothing."""
    weights = (each for each in steps.told_gathers(step) if each.is_weight)
    for found in steps.large_groups(weights, _rule, lambda each: each.saved, step):
        yield _finding(cost, step, found)


def _rule(each: IdleGather) -> object:
    return each.cause.mesh_axis, str(each.cause.span)


def _finding(cost: Cost, step: Step, found: Sequence[IdleGather]) -> Diagnostic:
    cause = found[0].cause
    axis, name = cause.mesh_axis, cause.logical_axis
    paths = tuple(dict.fromkeys(each.collective.carries.name for each in found))
    who = f"`{paths[0]}` is" if len(paths) == 1 else f"{counted(len(paths), 'weight')} are"
    ways = step.mesh.sizes[axis]
    wasted = steps.wasted_flops((op for each in found for op in each.ops), ways)
    what = f"`{name}`" if name else "them"
    return Diagnostic(
        codes.NEEDLESS_GATHER,
        f"{who} gathered over `{axis}` for products that `{axis}` = {ways} splits in nothing:"
        f" {steps.per_step(sum(each.saved for each in found))}",
        labels_at((cause.span, f"splits {what} over `{axis}`")),
        (
            *steps.sent_lines(each.collective for each in found),
            f"each device of `{axis}` computes all of these products, where {ways} could share"
            f" them: {percent(wasted, step.flops)} of the step's FLOPs",
        ),
        _help(cost, found[0], binary_bytes(_more(cost, step, paths, ways))),
        arrays=paths,
    )


def _help(cost: Cost, idle: IdleGather, more: str) -> str:
    """Return how the axis comes to share the work; or what it takes to do without it."""
    axis, forced = idle.cause.mesh_axis, idle.collective.forced_by
    if forced is not None and forced.place.is_known:
        array = moved(idle.collective)
        call = constraint(cost.plan, array.shape, array.split)
        return f"keep `{axis}` in the constraint at {forced.place}, as in {call}, or remove it"
    return (
        f"split what they are multiplied with over `{axis}`, too; or take `{axis}` out of the rule:"
        f" nothing is gathered then, and a device holds {more} more"
    )


def _more(cost: Cost, step: Step, paths: Sequence[str], ways: int) -> int:
    """Return what a device would hold more if a mesh axis did not split these arrays."""
    given = (each for each in step.arguments if each.role == "parameter")
    sizes = {each.path: each.array.bytes for each in given}
    sizes |= {each.path: each.per_device_bytes for each in cost.plan.arrays}
    return sum(sizes.get(path, 0) for path in {*paths}) * (ways - 1)
