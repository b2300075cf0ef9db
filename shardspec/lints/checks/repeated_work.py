"""All devices along a mesh axis compute the same large products.

Shard a dimension of the product over the axis: the help names the constraint to add and its line. A
product that is not sharded over a mesh axis of N devices, in any operand or in the contracted
dimension, is computed N times. The causes: no rule places a dimension of it on the axis, a
constraint replicates it, or there are fewer parts than devices (with 8 KV heads on 16 devices, each
two devices compute the same). Reported only for large products that SHD504 and SHD505 do not
already report.

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
    -  - features, features_out -> none
    +  - features_out -> tensor
    +  - features -> none
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large_work
from shardspec.analysis.step_time import Send, op_seconds, step_time, step_work
from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import by_key, counted, grouped, listed, percent
from shardspec.ir.plan import divides
from shardspec.ir.spec import Shape
from shardspec.ir.step import CollectiveKind, Place, Step, StepOp
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.constraints import constraint, with_rows
from shardspec.lints.evidence.sizes import near_multiples

_PRODUCTS = ("einsum", "convolution")

#: Products for which a way out is looked for.
_TRIED = 8


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes whose devices repeat each other's work."""
    for repeated, found in grouped(_repeated(step), lambda each: each[0]).items():
        ops = [op for _, op in found]
        ways = math.prod(times for _, times in repeated)
        if is_large_work(steps.wasted_flops(ops, ways), step.flops):
            yield _finding(cost, step, dict(repeated), ops)


def _repeated(step: Step) -> Iterator[tuple[tuple[tuple[str, int], ...], StepOp]]:
    """Yield the products that are told of nowhere else, with what repeats them, and how often."""
    gathers = steps.told_gathers(step)
    told = {(op.at, each.cause.mesh_axis) for each in gathers for op in each.ops}
    weights = {(each.collective.carries.name, each.cause.mesh_axis) for each in gathers}
    ops = step.ops
    reads = (
        (op, operand.name, axis) for op in ops for operand in op.operands for _, axis in weights
    )
    told |= {(op.at, axis) for op, name, axis in reads if name and (name, axis) in weights}
    replicated = _replicated(step)
    told |= {
        (op.at, axis) for op in ops for axis in replicated.get((op.place, op.result.shape), ())
    }
    for op in ops:
        found = steps.repeats(op, step.mesh)
        if op.kind in _PRODUCTS and found and not any((op.at, axis) in told for axis in found):
            yield tuple(found.items()), op


def _replicated(step: Step) -> dict[tuple[Place | None, Shape], list[str]]:
    """Return the mesh axes over which constraints replicate results, by their place and shape."""
    return by_key(
        ((each.place, steps.moved(each).shape), axis)
        for each in step.collectives
        if each.forced_by is not None
        for axis in each.mesh_axes
    )


def _finding(
    cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]
) -> Diagnostic:
    ways = math.prod(repeated.values())
    wasted = steps.wasted_flops(ops, ways)
    spans = [
        (axis.span, f"{_of(repeated[axis.name], axis.size)} compute the same")
        for axis in step.mesh.axes
        if axis.name in repeated
    ]
    return Diagnostic(
        codes.REPEATED_WORK,
        f"{counted(len({op.at for op in ops}), 'product')} of the step"
        f" {'is' if len(ops) == 1 else 'are'} computed {ways} times, by the devices along"
        f" {listed(repeated)}: {percent(wasted, step.flops)} of the step's FLOPs are repeated",
        labels_at(*spans),
        steps.op_lines(ops, step.flops),
        _help(cost, step, repeated, ops),
    )


def _of(ways: int, size: int) -> str:
    """Return `all 4`, or `groups of 2 of these 16` where parts of a dimension share the rest."""
    return f"all {size}" if ways == size else f"groups of {ways} of these {size}"


def _help(cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]) -> str:
    """Return which sizes of which product the axes would divide, where that pays."""
    ways = math.prod(repeated.values())
    heaviest = sorted(ops, key=lambda op: (op.phase == "backward", -op.flops * op.count))
    intended = f"if repeating it is intended, {quote.setting('lints', ('repeated-work', 'allow'))}"
    by_rows = _by_rows(cost, step, repeated, heaviest[0])
    if by_rows is not None:
        return steps.searchable(by_rows, cost)
    undivided = next(_undivided(cost, repeated, heaviest[0]), None)
    if undivided is not None:
        return steps.searchable("", cost, f"{undivided}; {intended}")
    what = f"the result of the {steps.product(heaviest[0])}"
    if not any(_fitting(op, ways) for op in heaviest):
        has_none = f"{what} has no dimension that divides over {listed(repeated)}"
        return steps.searchable("", cost, f"{has_none}; {intended}")
    split = next(_splits(cost, step, repeated, heaviest), None)
    if split is not None:
        return steps.searchable(split, cost)
    over = f"shard {what} and its readers over {listed(repeated)}"
    lone = "the result alone would be gathered again, which sends more than it saves"
    return steps.searchable(f"{over}: {lone}", cost, intended)


def _splits(
    cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]
) -> Iterator[str]:
    """Yield constraints that split the first product, or one that it reads, and that pay."""
    ways = math.prod(repeated.values())
    for op in ops[:_TRIED]:
        fitting = _fitting(op, ways)
        readers = list(islice(_readers(op, fitting, ops), 1))
        if ops[0] not in (op, *readers):
            continue
        if readers and _pays(cost, step, repeated, _at(ops, op, *readers), _summed(op, readers[0])):
            summed = _summing(op, readers[0], fitting)
            yield f"{_split(op, repeated, summed)}; the {steps.product(readers[0])} sums over it"
        here = [each for each in ops if (each.place, each.phase) == (op.place, op.phase)]
        if fitting and op is ops[0] and _pays(cost, step, repeated, here, _gathered(here)):
            yield _split(op, repeated, fitting)


def _by_rows(cost: Cost, step: Step, repeated: Collection[str], op: StepOp) -> str | None:
    """Return the constraint by which devices work on rows of their own, as the batch's rule has it.

    Nothing is sent for that but the weights.
    """
    made, plan = op.result, cost.plan
    wanted = with_rows(plan, step, made.shape, made.split, repeated)
    if wanted is None or op.phase == "backward":
        return None
    call = constraint(plan, made.shape, wanted, op.vmaps)
    return f"constrain {_result(op)}: {call}, as the rule of the batch has it"


def _undivided(cost: Cost, repeated: Collection[str], op: StepOp) -> Iterator[str]:
    """Yield sizes of a product that a rule would shard over what repeats it, if they divided."""
    sizes = {size for array in (op.result, *op.operands) for size in array.shape}
    known = {axis.name: axis for axis in cost.plan.spec.logical_axes if axis.size in sizes}
    for rule in cost.plan.spec.axis_rules:
        axis, mesh = known.get(rule.logical_axis), cost.target.mesh.sizes
        if axis is None or not axis.size or not {*rule.mesh_axes} & {*repeated}:
            continue
        ways = math.prod(mesh.get(each, 1) for each in rule.mesh_axes)
        if not divides(ways, axis.size, axis.unit):
            near = " or ".join(map(str, near_multiples(axis.size, ways * axis.unit)))
            over = f"{listed(rule.mesh_axes)} = {ways}"
            yield f"`{axis.name}` = {axis.size} does not divide over {over}: {near} would"


def _fitting(op: StepOp, ways: int) -> set[int]:
    """Return the sizes of whole dimensions of a result that so many devices divide."""
    pairs = zip(op.result.shape, op.result.split.dims, strict=True)
    return {size for size, taken in pairs if not taken and size % ways == 0 and size > ways}


def _split(op: StepOp, repeated: Mapping[str, int], fitting: Collection[int]) -> str:
    sizes = " or ".join(map(str, sorted(fitting, reverse=True)[:2]))
    return f"constrain {_result(op)}: shard its dimension of {sizes} over {listed(repeated)}"


def _result(op: StepOp) -> str:
    where = "" if _is_own(op.place) else " in your code"
    return f"the result of the {steps.product(op)}{where}"


def _readers(op: StepOp, fitting: Collection[int], ops: Iterable[StepOp]) -> Iterator[StepOp]:
    """Yield the next products that sum over a dimension of a result, as their shapes say."""
    later = (each for each in ops if each.at > op.at and each.phase == op.phase)
    for each in sorted(later, key=lambda each: each.at):
        if op.phase != "backward" and _summing(op, each, fitting):
            yield each


def _summing(op: StepOp, reader: StepOp, fitting: Collection[int]) -> set[int]:
    """Return the sizes of a result over which a product that reads it would sum."""
    inputs, _, result = reader.einsum.partition("->")
    summed: set[int] = set()
    for letters, operand in zip(inputs.split(","), reader.operands, strict=False):
        if operand.shape == op.result.shape and len(letters) == len(operand.shape):
            own = dict(zip(letters, operand.shape, strict=True))
            summed |= {size for letter, size in own.items() if letter not in result}
    return summed & set(fitting)


def _at(ops: Iterable[StepOp], *lines: StepOp) -> list[StepOp]:
    """Return the products of some lines, of their backward pass as well."""
    places = {op.place for op in lines}
    return [op for op in ops if op.place in places]


def _is_own(place: Place) -> bool:
    """Say whether a constraint can be put there: it is a known line, of no installed library."""
    parts = place.file.replace("\\", "/").split("/")
    return place.is_known and not {"site-packages", "dist-packages"} & set(parts)


def _gathered(ops: Iterable[StepOp]) -> Iterator[tuple[CollectiveKind, int, float]]:
    """Yield what is sent where results are gathered for what reads them."""
    yield from ((CollectiveKind.ALL_GATHER, op.result.bytes, op.count) for op in ops)


def _summed(op: StepOp, reader: StepOp) -> Iterator[tuple[CollectiveKind, int, float]]:
    """Yield what is sent where a product sums over what is split: its result, once summed.

    In training, the gradient of what the first product reads is summed alike: `_pays` doubles all.
    """
    largest = max(op.operands, key=lambda operand: operand.bytes)
    sent = max(reader.result.bytes, largest.bytes)
    yield CollectiveKind.ALL_REDUCE, sent, max(op.count, reader.count)


def _pays(
    cost: Cost,
    step: Step,
    repeated: Mapping[str, int],
    ops: Sequence[StepOp],
    sent: Iterable[tuple[CollectiveKind, int, float]],
) -> bool:
    """Say whether the step is faster, by its own model, with some products split.

    Args:
      sent: what is sent for that, forward; in training, as much again for gradients.
    """
    hardware = cost.target.hardware
    now = step_work(step, hardware.chip) if hardware is not None else None
    if hardware is None or now is None:
        return False
    ways = math.prod(repeated.values())
    saved = sum(max(op_seconds(op, hardware.chip)) * op.count for op in ops) * (1 - 1 / ways)
    moves = 2 if any(op.phase == "backward" for op in step.ops) else 1
    sends = dict(now.sends)
    for kind, size, count in sent:
        key = Send(kind, tuple(repeated), size)
        sends[key] = sends.get(key, 0) + count * moves
    then = now._replace(
        compute_seconds={**now.compute_seconds, "": now.compute_seconds[""] - saved}, sends=sends
    )
    times = [step_time(cost.plan, step, work=each) for each in (now, then)]
    before, after = (None if time is None else time.step_seconds for time in times)
    return before is not None and after is not None and after < before
