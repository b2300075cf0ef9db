"""Expert weights are gathered over the mesh axis that has each expert once.

An axis for experts gives each device a few experts, and tokens travel to the device of theirs and
back, by an all-to-all. Where what an expert's product reads or makes is sharded over the axis by
the batch instead, XLA gathers the weights of all experts, so that each device has them for its own
tokens. Reported if to move the tokens would send less than half and the difference is large.

Bad:
    # def step(params, x):
    #     hidden = jnp.einsum("xce,xef->xcf", x, params["wi"])
    #     hidden = resolver.constrain(hidden, "_ batch _")
    #     return resolver.constrain(jnp.einsum("xcf,xfe->xce", hidden, params["wo"]), "_ batch _")
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 2, expert: 8}
    axes: {batch: 4096, experts: 32, features: 2048}
    rules:
      - batch -> (data, expert)
      - expert -> expert
      - tokens -> data
      - embed, mlp, experts, features -> none
    params:
      wi: expert embed mlp
      wo: expert mlp embed
    arrays:
      wi: bf16[32, 2048, 8192]
      wo: bf16[32, 8192, 2048]
    activations:
      x: experts batch features
      moved: expert tokens _

Good:
     # def step(params, x):
    +#     x = resolver.constrain(x, "expert tokens _")
    -#     hidden = resolver.constrain(hidden, "_ batch _")
    -#     return resolver.constrain(jnp.einsum("xcf,xfe->xce", hidden, params["wo"]), "_ batch _")
    +#     hidden = resolver.constrain(hidden, "expert tokens _")
    +#     x = jnp.einsum("xcf,xfe->xce", hidden, params["wo"])
    +#     return resolver.constrain(x, "expert tokens _")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import Cause, Collective, CollectiveKind, Step, StepOp, ring_bytes
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint


class _Gather(NamedTuple):
    """Weights of experts that are gathered for a product.

    Attributes:
      wanted: the constraint that the tokens need, and what is made of them.
      tokens: what a device sends in a step to have them so, there and back.
    """

    sent: Collective
    cause: Cause
    op: StepOp
    wanted: str
    tokens: int


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis over which the weights of experts are gathered."""
    for found in grouped(_gathers(cost, step), lambda each: each.cause.mesh_axis).values():
        now = sum(sent.wire_bytes for sent in {each.sent for each in found})
        then = sum({each.op.at: each.tokens for each in found}.values())
        if 2 * then <= now and steps.is_large_traffic(now - then, step):
            yield _finding(found, now, then)


def _gathers(cost: Cost, step: Step) -> Iterator[_Gather]:
    by_line = grouped(step.ops, lambda op: (op.phase, op.place))
    for each in step.collectives:
        is_gather = each.kind is CollectiveKind.ALL_GATHER and each.carries.kind == "weight"
        for cause in each.because if is_gather else ():
            if cause.attempt is not None:
                for op in by_line.get((each.phase, each.place), ()):
                    yield from _moved(cost, step, each, cause, op)


def _moved(cost: Cost, step: Step, each: Collective, cause: Cause, op: StepOp) -> Iterator[_Gather]:
    """Yield the gather, if a product has the weight's mesh axis on its tokens instead."""
    axis, ways = cause.mesh_axis, step.mesh.sizes[cause.mesh_axis]
    seats = steps.seats_of(op, (each.carries.name,))
    split = each.array.split
    if seats is None or len(split.dims) != len(seats.own) or axis not in split.mesh_axes:
        return
    expert = seats.own[next(at for at, axes in enumerate(split.dims) if axis in axes)]
    lies = dict(zip(seats.letters, seats.other.split.dims, strict=True))
    is_batched = any(axis in axes for letter, axes in lies.items() if letter not in seats.own)
    if expert not in lies or expert not in seats.result or not is_batched:
        return
    rest = {at: tuple(name for name in axes if name != axis) for at, axes in lies.items()}
    wanted = PartitionSpec(tuple((rest | {expert: (axis,)}).values()))
    sizes = seats.other.bytes, op.result.bytes
    sent = sum(ring_bytes(CollectiveKind.ALL_TO_ALL, size, ways) for size in sizes)
    call = constraint(cost.plan, seats.other.shape, wanted, op.vmaps)
    yield _Gather(each, cause, op, call, round(sent * op.count))


def _finding(found: Sequence[_Gather], now: int, then: int) -> Diagnostic:
    cause = found[0].cause
    axis = cause.mesh_axis
    paths = tuple(dict.fromkeys(each.sent.carries.name for each in found))
    who = f"`{paths[0]}` is" if len(paths) == 1 else f"{counted(len(paths), 'weight')} are"
    parts = [
        f"constrain what the products at {places} read, and what they make: {call}"
        for call, places in steps.places_by(found, lambda each: (each.wanted, each.op))
    ]
    return Diagnostic(
        codes.EXPERTS_GATHERED,
        f"{who} gathered over `{axis}`, which holds each expert once: {steps.per_step(now)}, where"
        f" moving the tokens sends {steps.per_step(then).partition(' per')[0]}",
        labels_at((cause.span, f"shards `{cause.logical_axis}` over `{axis}`")),
        steps.sent_lines(dict.fromkeys(each.sent for each in found)),
        f"{', and '.join(parts)}: tokens then travel to their experts",
        arrays=paths,
    )
