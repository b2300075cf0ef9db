"""The devices of a mesh axis all do the same large products.

A product that a mesh axis of N devices splits in no operand, nor in what it sums over, is computed
N times, and N - 1 of them are for nothing. It is so where no rule gives a dimension of it to the
axis, where what is constrained is whole, or where there are fewer parts than devices (of sixteen
devices over eight KV heads, each two compute the same). Told of what is large of the FLOPs of a
step; what SHD504 and SHD505 tell of, they tell.

Bad:
    # def step(params, x):
    #     hidden = resolver.constrain(x @ params["wi"], "batch mlp")
    #     return x @ params["gate"], hidden @ params["wo"]
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 65536, features: 4096}
    rules:
      - batch -> data
      - mlp -> tensor
      - features, features_out -> none
    params:
      gate: features features_out
      wi: features mlp
      wo: mlp features
    arrays:
      gate: bf16[4096, 1024]
      wi: bf16[4096, 16384]
      wo: bf16[16384, 4096]
    activations:
      x: batch features

Good:
    # def step(params, x):
    #     hidden = resolver.constrain(x @ params["wi"], "batch mlp")
    #     return x @ params["gate"], hidden @ params["wo"]
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 65536, features: 4096}
    rules:
      - batch -> data
      - mlp -> tensor
      - features_out -> tensor
      - features -> none
    params:
      gate: features features_out
      wi: features mlp
      wo: mlp features
    arrays:
      gate: bf16[4096, 1024]
      wi: bf16[4096, 16384]
      wo: bf16[16384, 4096]
    activations:
      x: batch features
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large_work
from shardspec.analysis.step_time import op_seconds, step_time, step_work
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import counted, grouped, listed, percent
from shardspec.ir.step import CollectiveKind, Place, Step, StepOp
from shardspec.lints.context import Context
from shardspec.lints.evidence.steps import op_lines, repeats, told_gathers, wasted_flops

_PRODUCTS = ("einsum", "convolution")


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes whose devices repeat each other's work."""
    for cost in context.costs:
        step = cost.step
        for repeated, found in grouped(_repeated(cost), lambda each: each[0]).items():
            ops = [op for _, op in found]
            ways = math.prod(times for _, times in repeated)
            if step and is_large_work(wasted_flops(ops, ways), step.flops):
                yield _finding(cost, step, dict(repeated), ops)


def _repeated(cost: Cost) -> Iterator[tuple[tuple[tuple[str, int], ...], StepOp]]:
    """Yield the products that are told of nowhere else, with what repeats them, and how often."""
    told = {(op.at, each.cause.mesh_axis) for each in told_gathers(cost) for op in each.ops}
    for op in cost.step.ops if cost.step else ():
        found = repeats(op, cost.plan.mesh)
        if op.kind in _PRODUCTS and found and not any((op.at, axis) in told for axis in found):
            yield tuple(found.items()), op


def _finding(
    cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]
) -> Diagnostic:
    ways = math.prod(repeated.values())
    wasted = wasted_flops(ops, ways)
    spans = [
        (axis.span, f"{_of(repeated[axis.name], axis.size)} compute the same")
        for axis in step.mesh.axes
        if axis.name in repeated
    ]
    return Diagnostic(
        codes.REPEATED_WORK,
        f"{counted(len({op.at for op in ops}), 'product')} of the step"
        f" {'is' if len(ops) == 1 else 'are'} computed {ways} times over, on devices of"
        f" {listed(repeated)}: {percent(wasted, step.flops)} of the step's FLOPs are in vain",
        labels_at(*spans),
        op_lines(ops, step.flops),
        _help(cost, step, repeated, ops),
        target=cost.target.name,
    )


def _of(ways: int, size: int) -> str:
    """Return `all 4`, or `each 2 of these 16` where parts of a dimension split the rest."""
    return f"all {size}" if ways == size else f"each {ways} of these {size}"


def _help(cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]) -> str:
    """Return which sizes of the heaviest product the axes would divide, where that pays."""
    heaviest = max(ops, key=lambda op: op.flops * op.count)
    result, ways = heaviest.result, math.prod(repeated.values())
    pairs = zip(result.shape, result.split.dims, strict=True)
    fitting = {size for size, taken in pairs if not taken and size % ways == 0 and size > ways}
    what = f"the result of {heaviest.einsum or heaviest.kind}"
    meant = "if that is meant, `lints: {repeated-work: allow}`"
    if not fitting:
        return f"{what} has no dimension that {listed(repeated)} divide; {meant}"
    if not _pays(cost, step, heaviest, ops, repeated):
        return f"to split {what} over {listed(repeated)} would send more than it saves; {meant}"
    sizes = " or ".join(map(str, sorted(fitting, reverse=True)[:2]))
    where = f"at {heaviest.place}" if _is_own(heaviest.place) else "where your code has it"
    over = f"over {listed(repeated)}, in its constraint"
    return f"split {what} {where} {over}: its dimension of {sizes} divides"


def _is_own(place: Place) -> bool:
    """Say whether a constraint can be put there: it is a known line, of no installed library."""
    parts = place.file.replace("\\", "/").split("/")
    return place.is_known and not {"site-packages", "dist-packages"} & set(parts)


def _pays(
    cost: Cost, step: Step, heaviest: StepOp, ops: Sequence[StepOp], repeated: Mapping[str, int]
) -> bool:
    """Say whether the step is faster, by its own model, with the result of one line split.

    The result is then gathered for what reads it; in training, its gradient as well.
    """
    hardware = cost.target.hardware
    now = step_work(step, hardware.chip) if hardware is not None else None
    if hardware is None or now is None:
        return False
    ways = math.prod(repeated.values())
    here = [op for op in ops if (op.place, op.phase) == (heaviest.place, heaviest.phase)]
    saved = sum(max(op_seconds(op, hardware.chip)) * op.count for op in here) * (1 - 1 / ways)
    moves = 2 if any(op.phase == "backward" for op in step.ops) else 1
    sends = dict(now.sends)
    for op in here:
        key = CollectiveKind.ALL_GATHER, tuple(repeated), op.result.bytes
        sends[key] = sends.get(key, 0) + op.count * moves
    then = now._replace(compute_seconds=now.compute_seconds - saved, sends=sends)
    times = [step_time(cost.plan, step, work=each) for each in (now, then)]
    before, after = (None if time is None else time.step_seconds for time in times)
    return before is not None and after is not None and after < before
