"""A loop gathers the same array in every iteration.

Gather it once before the loop. The array is made outside of the loop and no iteration changes it,
but on TPUs the compiler leaves the gather in the loop. This concerns loops over microbatches,
generated tokens or steps of a solver. Loops over layers gather the weights of another layer each
time and are not reported. Reported if the repeated traffic is large in a step and a device has room
for the gathered arrays.

Bad:
    # def step(params, x):
    #     w = params["w"]
    #     return jax.lax.map(lambda x: resolver.constrain(x @ w, "batch _"), x)
    shardspec: 1
    hardware: tpu v5e 2x4
    mesh: {fsdp: 8}
    axes: {microbatch: 16, batch: 8192, features: 4096}
    rules:
      - batch -> fsdp
      - embed -> fsdp
      - microbatch, features -> none
    params:
      w: embed features
    arrays:
      w: bf16[4096, 4096]
    activations:
      x: microbatch batch features

Good:
    -#     w = params["w"]
    +#     w = resolver.constrain(params["w"], "_ features")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, counted, grouped
from shardspec.ir.step import Collective, CollectiveKind, Step
from shardspec.lints.evidence.constraints import constraint, without
from shardspec.lints.evidence.steps import (
    guessed,
    is_large_traffic,
    moved,
    per_step,
    sent_lines,
    spans_of,
    times,
)


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each rule whose arrays a loop gathers again and again."""
    hardware = cost.target.hardware
    if hardware is None or hardware.chip.platform != "tpu":
        return
    again = [each for each in step.collectives if _is_again(each)]
    if not _has_room(cost, again):
        return
    for found in grouped(again, _key).values():
        if is_large_traffic(_saved(found), step):
            yield _finding(cost, step, found)


def _is_again(each: Collective) -> bool:
    is_gather = each.kind is CollectiveKind.ALL_GATHER and not each.is_written
    return is_gather and each.is_invariant and each.count >= each.rounds > 1


def _has_room(cost: Cost, found: Sequence[Collective]) -> bool:
    """Say whether a device can keep all that is gathered beside what it holds."""
    more = sum(each.payload_bytes for each in found)
    hbm = cost.memory.hbm_bytes
    return hbm is not None and cost.memory.total.bytes + more <= hbm


def _key(each: Collective) -> tuple[object, ...]:
    return each.axes, each.rounds, tuple(str(cause.span) for cause in each.because)


def _saved(found: Sequence[Collective]) -> int:
    return round(sum(each.wire_bytes * (1 - 1 / each.rounds) for each in found))


def _finding(cost: Cost, step: Step, found: Sequence[Collective]) -> Diagnostic:
    first = found[0]
    who = str(first.carries) if len(found) == 1 else counted(len(found), "array")
    more = sum(each.payload_bytes for each in found)
    array = moved(first)
    gathered = without(array.split, first.mesh_axes)
    call = constraint(cost.plan, array.shape, gathered, value="array")
    return Diagnostic(
        codes.INVARIANT_GATHER,
        f"a loop of {times(first.rounds)} iterations gathers {who} each time, unchanged:"
        f" {per_step(_saved(found))} more than needed",
        labels_at(*spans_of([first])),
        sent_lines(found),
        f"gather before the loop, by {call} in front of it; a device then keeps"
        f" {binary_bytes(more)} more through the loop",
        arrays=guessed(found, step),
    )
