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
from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large_work
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import counted, grouped, listed, percent
from shardspec.ir.step import Step, StepOp
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
                yield _finding(cost, step, [axis for axis, _ in repeated], ways, ops)


def _repeated(cost: Cost) -> Iterator[tuple[tuple[tuple[str, int], ...], StepOp]]:
    """Yield the products that are told of nowhere else, with what repeats them, and how often."""
    told = {(op.at, each.cause.mesh_axis) for each in told_gathers(cost) for op in each.ops}
    for op in cost.step.ops if cost.step else ():
        found = repeats(op, cost.plan.mesh)
        if op.kind in _PRODUCTS and found and not any((op.at, axis) in told for axis in found):
            yield tuple(found.items()), op


def _finding(
    cost: Cost, step: Step, axes: Sequence[str], ways: int, ops: Sequence[StepOp]
) -> Diagnostic:
    wasted = wasted_flops(ops, ways)
    found = [axis for axis in step.mesh.axes if axis.name in axes]
    spans = [(axis.span, f"{ways} of these {axis.size} compute the same") for axis in found]
    return Diagnostic(
        codes.REPEATED_WORK,
        f"{counted(len({op.at for op in ops}), 'product')} of the step"
        f" {'is' if len(ops) == 1 else 'are'} computed {ways} times over, on devices of"
        f" {listed(axes)}: {percent(wasted, step.flops)} of the step's FLOPs are in vain",
        labels_at(*spans),
        op_lines(ops, step.flops),
        _help(axes, ops, ways),
        target=cost.target.name,
    )


def _help(axes: Sequence[str], ops: Sequence[StepOp], ways: int) -> str:
    """Return which sizes of the heaviest product the axes would divide, the largest first."""
    heaviest = max(ops, key=lambda op: op.flops * op.count)
    result = heaviest.result
    pairs = zip(result.shape, result.split.dims, strict=True)
    fitting = {size for size, taken in pairs if not taken and size % ways == 0 and size > ways}
    what = f"what {heaviest.einsum or heaviest.kind} at {heaviest.place} makes"
    if not fitting:
        return f"split what it reads over {listed(axes)}: {what} has no dimension that they divide"
    sizes = " or ".join(map(str, sorted(fitting, reverse=True)[:2]))
    return f"split {what} over {listed(axes)}, in its constraint: its dimension of {sizes} divides"
