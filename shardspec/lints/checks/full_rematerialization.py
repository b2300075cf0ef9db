"""XLA gathers a full array to reshard it.

Add a constraint with a sharding between the two, so that XLA knows both steps. XLA knows a few ways
to reshard an array and looks for a chain of them. If it finds none, every device gathers the full
array and keeps its part, which needs memory for the full array and sends far more than the reshard
needs. XLA's log calls this "involuntary full rematerialization" and names no line of code. Reported
if a constraint or an elementwise operation causes such a reshard and the traffic is large in a
step. Source: openxla/xla#15207, of which this is the first example.

Bad:
    # def step(params, x):
    #     return resolver.constrain(x + params["w"], activation="turned")
    shardspec: 1
    mesh: {x: 4, y: 2}
    axes: {heads: 64, length: 4096, embed: 4096}
    rules:
      - heads -> y
      - rows -> (x, y)
      - embed -> x
      - length -> none
    params:
      w: heads length embed
    arrays:
      w: bf16[64, 4096, 4096]
    activations:
      x: heads length embed
      turned: _ rows _

Good:
    -#     return resolver.constrain(x + params["w"], activation="turned")
    +#     stop = resolver.constrain(x + params["w"], activation="stop")
    +#     return resolver.constrain(stop, activation="turned")
       - rows -> (x, y)
    +  - columns -> x
       x: heads length embed
    +  stop: heads columns _
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.spec import array_bytes
from shardspec.ir.step import Collective, Reshard, Step
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint
from shardspec.lints.evidence.steps import goes_straight, stop_between


class _Gathered(NamedTuple):
    """An array that XLA gathers whole.

    Attributes:
      whole: its bytes.
      sent: what one device sends for it in a step.
    """

    reshard: Reshard
    parts: tuple[Collective, ...]
    whole: int
    sent: int


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line of code that asks for a transition XLA has no moves for."""
    for found in steps.large_groups(_gathered(step), _place, lambda each: each.sent, step):
        yield _finding(cost, step, found)


def _place(each: _Gathered) -> str:
    return str(each.parts[0].place)


def _gathered(step: Step) -> Iterator[_Gathered]:
    ops = {op.at for op in step.ops}
    for reshard, parts in steps.reshards(step):
        is_forced = any(each.forced_by is not None for each in parts)
        if reshard.has_parts or (not is_forced and ops.intersection(reshard.readers)):
            continue  # a product has more ways to take its operands
        if not goes_straight(reshard.before, reshard.after, step.mesh):
            array = steps.moved(parts[0])
            whole = array_bytes(array.shape, array.dtype)
            yield _Gathered(reshard, parts, whole, sum(each.wire_bytes for each in parts))


def _finding(cost: Cost, step: Step, found: Sequence[_Gathered]) -> Diagnostic:
    reshard, parts, whole, _ = max(found, key=lambda each: each.sent)
    first = parts[0]
    array = steps.moved(first)
    stop = stop_between(reshard.before, reshard.after, step.mesh, array.bytes)
    way_out = (
        f"constrain it before, by {constraint(cost.plan, array.shape, stop)}: XLA has moves from"
        " there"
        if stop is not None
        else "keep one of the mesh axes where it is"
    )
    return Diagnostic(
        codes.FULL_REMATERIALIZATION,
        f"XLA cannot reshard directly from {reshard.before} to {reshard.after} at {first.place}:"
        f" every device gathers all of {array}, {steps.per_step(sum(e.sent for e in found))}",
        labels_at(*steps.spans_of(parts)),
        (
            f"{binary_bytes(whole)} on every device while it lasts; XLA logs it as involuntary full"
            " rematerialization",
        ),
        steps.searchable(way_out, cost),
    )
