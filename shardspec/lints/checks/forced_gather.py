"""A constraint, or the sharding of a result, causes an all-gather that no operation needs.

Remove the constraint, or shard it over the mesh axis. The array is sharded over a mesh axis, a line
of the code replicates it, and the operations that read it are not sharded over that axis: all
devices along the axis compute the same. Or a result is returned so, and each device receives the
full array although it computed only a part. Not reported: updated parameters that are returned in
the sharding of the old ones (ZeRO gathers them), and a gather that the operation needs in any case,
such as that of sequence parallelism before a product that is sharded in another dimension. Reported
if the traffic is large in a step.

Bad:
    # def step(params, x):
    #     return resolver.constrain(x @ params["head"], "batch _")
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 8192, features: 4096}
    rules:
      - batch -> data
      - vocab -> tensor
      - features -> none
    params:
      head: features vocab
    arrays:
      head: bf16[4096, 32768]
    activations:
      x: batch features

Good:
    -#     return resolver.constrain(x @ params["head"], "batch _")
    +#     return resolver.constrain(x @ params["head"], "batch vocab")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import Cause, CauseKind, Collective, CollectiveKind, Step
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint

_Gather = tuple[Collective, Cause, int]


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line, or result, that asks for gathers over a mesh axis."""
    for found in steps.large_groups(_gathers(step), _key, lambda each: each[2], step):
        yield _finding(cost, step, found)


def _key(each: _Gather) -> object:
    return _asks(each[0]), each[1].mesh_axis


def _gathers(step: Step) -> Iterator[_Gather]:
    """Yield what a constraint asks for in vain, and what is gathered to be given back."""
    for idle in steps.told_gathers(step):
        if not idle.is_weight:
            yield idle.collective, idle.cause, idle.saved
    given = (each for each in step.arguments if each.role == "parameter")
    lying = {each.path: each.array.split for each in given}
    for each in step.collectives:
        if each.kind is CollectiveKind.ALL_GATHER and _is_given_back(each, lying):
            for cause in each.because:
                if not _is_moved(each, cause.mesh_axis):
                    yield each, cause, steps.saved_bytes(each, cause.mesh_axis, step.mesh)


def _is_given_back(each: Collective, lying: Mapping[str, PartitionSpec]) -> bool:
    """Say whether a constraint, or a result's sharding, gathers what is only given back.

    A step has to give back its parameters as it was given them: ZeRO gathers the new ones.
    """
    reshard, forced = each.reshard, each.forced_by
    if reshard is None or forced is None or reshard.readers or not reshard.is_result:
        return False
    return lying.get(forced.array) != reshard.after


def _is_moved(each: Collective, axis: str) -> bool:
    """Say whether what asks for a gather asks for its mesh axis on another dimension."""
    return each.reshard is not None and axis in each.reshard.after.mesh_axes


def _asks(each: Collective) -> tuple[CauseKind, str]:
    assert each.forced_by is not None
    return each.forced_by.kind, str(each.forced_by.place)


def _finding(cost: Cost, step: Step, found: Sequence[_Gather]) -> Diagnostic:
    first, cause, _ = found[0]
    kind, place = _asks(first)
    axis = cause.mesh_axis
    is_result = kind is CauseKind.RESULT
    who = f"a result of the function at {step.place}" if is_result else f"the constraint at {place}"
    array = steps.moved(first)
    call = constraint(cost.plan, array.shape, array.split)
    where = "`out_shardings`" if is_result else f"the constraint, as in {call}"
    is_same = array == first.array and first.carries.kind != "unknown"
    name = array.name or (str(first.carries) if is_same else "")
    made = f"{name} {array}" if name else str(array)
    return Diagnostic(
        codes.FORCED_GATHER,
        f"{who} makes {made} replicated over `{axis}`, and nothing there needs that:"
        f" {steps.per_step(sum(saved for _, _, saved in found))}",
        labels_at((cause.span, f"`{axis}` comes from here")),
        (
            *steps.sent_lines(each for each, _, _ in found),
            _read_by(first, step),
        ),
        f"keep `{axis}` in {where}: dim {_dim(first, axis)} is sharded over it already",
    )


def _read_by(each: Collective, step: Step) -> str:
    if each.reshard is None or each.reshard.is_result or not each.reshard.works:
        return "it is given back so: each device had made its own part"
    ops = [op for op in step.ops if op.at in each.reshard.works]
    if not ops:
        return "what reads it does all of it on every device"
    return f"read by the {steps.product(ops[0])}, in full on every device"


def _dim(each: Collective, axis: str) -> int:
    return next((at for at, axes in enumerate(steps.moved(each).split.dims) if axis in axes), 0)
