"""An array is resharded twice before anything uses it.

Remove the first constraint. A constraint, or the sharding that an operation requires, reshards the
array; nothing reads it in that sharding; and the next constraint reshards it again. XLA does both.
Reported if one direct reshard would send less and the difference is large in a step. Not reported
if XLA cannot reshard directly (SHD508): then the intermediate sharding helps.

Bad:
    # def step(params, x):
    #     hidden = resolver.constrain(x @ params["wi"], "batch _")
    #     return resolver.constrain(hidden @ params["wo"], activation="x")
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 16384, features: 4096}
    rules:
      - batch -> data
      - mlp -> tensor
      - features -> none
    params:
      wi: features mlp
      wo: mlp features
    arrays:
      wi: bf16[4096, 16384]
      wo: bf16[16384, 4096]
    activations:
      x: batch features

Good:
    -#     hidden = resolver.constrain(x @ params["wi"], "batch _")
    +#     hidden = resolver.constrain(x @ params["wi"], "batch mlp")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import Collective, Reshard, Step
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint
from shardspec.lints.evidence.steps import goes_straight, straight_bytes


class _Detour(NamedTuple):
    """Two reshards in a row, the first of which nothing reads.

    Attributes:
      last: how the array lies in the end.
      onward: the collectives of the second; none where it only slices.
      saved: what a device would send less on the way straight.
    """

    reshard: Reshard
    first: tuple[Collective, ...]
    onward: tuple[Collective, ...]
    last: PartitionSpec
    saved: int


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line of code at which an array is moved in vain."""
    for found in steps.large_groups(_detours(step), _place, lambda each: each.saved, step):
        yield _finding(cost, found)


def _place(each: _Detour) -> str:
    return str(each.first[0].place)


def _detours(step: Step) -> Iterator[_Detour]:
    found = dict(steps.reshards(step))
    by_tick = {reshard.at: (reshard, parts) for reshard, parts in found.items()}
    for reshard, parts in found.items():
        if reshard.has_parts:
            continue
        is_read_once = len(reshard.readers) == 1 and not reshard.is_result
        onward = by_tick.get(reshard.readers[0]) if is_read_once else None
        if onward is not None:
            last = onward[0].after
            if len(last.dims) != len(reshard.before.dims):  # a reshape is in between
                continue
        elif not reshard.readers and not reshard.is_result:
            last = reshard.before
        elif {axis for each in parts for axis in each.mesh_axes} & set(reshard.split_again):
            last = _split_again(reshard)
        else:
            continue
        moves = (*parts, *(onward[1] if onward else ()))
        held = steps.moved(parts[0]).bytes
        straight = straight_bytes(held, reshard.before, last, step.mesh) * parts[0].count
        saved = sum(each.wire_bytes for each in moves) - round(straight)
        if saved > 0 and goes_straight(reshard.before, last, step.mesh):
            yield _Detour(reshard, parts, onward[1] if onward else (), last, saved)


def _split_again(reshard: Reshard) -> PartitionSpec:
    """Return how an array lay before, as far as it is split so again."""
    kept = set(reshard.split_again)
    sides = zip(reshard.before.dims, reshard.after.dims, strict=True)
    return PartitionSpec(
        tuple(tuple(axis for axis in old if axis in kept or axis in new) for old, new in sides)
    )


def _finding(cost: Cost, found: Sequence[_Detour]) -> Diagnostic:
    reshard, parts, onward, last, _ = found[0]
    first = parts[0]
    then = f"resharded again at {onward[0].place}" if onward else "split again"
    saved = sum(each.saved for each in found)
    asked = first.forced_by
    place = asked.place if asked is not None and asked.place.is_known else first.place
    call = constraint(cost.plan, steps.moved(first).shape, last)
    way_out = f"constrain it at {place} as it is read, by {call}, or not at all"
    return Diagnostic(
        codes.RESHARDED_TWICE,
        f"{steps.moved(first)} is resharded from {reshard.before} to {reshard.after} at"
        f" {place}, and {then} before anything reads it: {steps.per_step(saved)} more than needed",
        labels_at(*steps.spans_of(parts)),
        steps.sent_lines(move for each in found for move in (*each.first, *each.onward)),
        steps.searchable(way_out, cost),
    )
