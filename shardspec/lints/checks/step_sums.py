"""Sums of a step: missing, doubled, repeated, or of activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at, point
from shardspec.diagnostics.words import counted, grouped, listed
from shardspec.ir.spec import AxisRule, PartitionSpec, target_text
from shardspec.ir.step import Collective, CollectiveKind, Step, StepOp, WrongSum, ring_bytes
from shardspec.lints.evidence import steps

# activations-summed


class _Sum(NamedTuple):
    """A sum of what a product makes, over the mesh axes that shard its weight.

    Attributes:
      wanted: how what the product reads beside the weight has to be sharded instead.
    """

    sent: Collective
    op: StepOp
    weight: str
    wanted: PartitionSpec


def activations_summed(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes over which activations are summed needlessly."""
    for axes, found in grouped(_sums(cost, step), lambda each: each.sent.axes).items():
        now = sum(each.sent.wire_bytes for each in found)
        then = _gathered(step, axes, {each.weight for each in found})
        if 2 * then <= now and steps.is_large_traffic(now - then, step):
            yield _activations_summed_finding(cost, step, found, now, then)


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
        wanted = None if seats is None else _wanted(seats, each.axes, step)
        if op is not None and seats is not None and wanted is not None:
            yield _Sum(each, op, seats.weight.name, wanted)


def _is_for_storage(cost: Cost, step: Step, axis: str) -> bool:
    """Say whether a mesh axis is there for FSDP: the batch is meant to be sharded over it, too."""
    batches = (each.array.split.dims for each in step.arguments if each.role == "batch")
    has_batch = any(dims and axis in dims[0] for dims in batches)
    has_rule = any(axis in rule.mesh_axes for rule in _batch_rules(cost))
    return "fsdp" in axis.lower() or has_batch or has_rule


def _batch_rules(cost: Cost) -> list[AxisRule]:
    return [rule for rule in cost.plan.spec.axis_rules if "batch" in rule.logical_axis]


def _wanted(seats: steps.Seats, axes: Sequence[str], step: Step) -> PartitionSpec | None:
    """Return how a product's examples are sharded by mesh axes along which it sums its weight.

    None where it is no such product, and where the axes do not divide the first dimension.
    """
    weight, own, other, letters, result = seats
    dims_of = zip(own, weight.split.dims, strict=True)
    summed = {axis for letter, split in dims_of if letter not in result for axis in split}
    kept = [at for at, letter in enumerate(letters) if letter in result and letter not in own]
    if not set(axes) <= summed or not kept:
        return None
    dims = [tuple(axis for axis in each if axis not in axes) for each in other.split.dims]
    order = [axis.name for axis in step.mesh.axes]
    dims[kept[0]] = tuple(sorted((*dims[kept[0]], *axes), key=order.index))
    divides = other.shape[kept[0]] % step.mesh.ways(dims[kept[0]]) == 0
    return PartitionSpec(tuple(dims)) if divides else None


def _gathered(step: Step, axes: Sequence[str], weights: set[str]) -> int:
    """Return what gathers of weights send in a step, and the sums of their gradients."""
    ways = step.mesh.ways(axes)
    sent = 0.0
    for op in step.ops:
        for each in op.operands:
            if each.name in weights and set(axes) <= {*each.split.mesh_axes}:
                times = 2 if op.phase == "backward" else 1
                whole = each.bytes * ways
                sent += times * op.count * ring_bytes(CollectiveKind.ALL_GATHER, whole, ways)
    return round(sent)


def _activations_summed_finding(
    cost: Cost, step: Step, found: Sequence[_Sum], now: int, then: int
) -> Diagnostic:
    first = max(found, key=lambda each: each.sent.wire_bytes)
    axes = first.sent.axes
    batches = _batch_rules(cost)
    lacks = batches and not any(set(axes) & set(rule.mesh_axes) for rule in batches)
    causes = [cause for each in found for cause in each.sent.because]
    cause = next((cause for cause in causes if cause.span is not None), None)
    way_out = (
        f"{', and '.join(_ways_out(step, found, batches))}: each device then works on its own"
        " examples, with all weights"
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


def _ways_out(step: Step, found: Sequence[_Sum], batches: Sequence[AxisRule]) -> Iterator[str]:
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
    elif not is_code:
        yield f"let a rule shard the batch over {listed(axes)}{above}"
    forward = [each for each in found if each.op.phase != "backward"] or found
    for spec, places in steps.places_by(
        forward if is_code else (), lambda each: (each.wanted, each.op)
    ):
        yield f"constrain what the products at {places} read to {spec}"


# repeated-sum


def repeated_sum(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes over which a loop sums again and again."""
    gradients = filter(_is_gradient, step.collectives)
    sums = (each for each in gradients if each.wire_bytes > _once(each, step))
    key = attrgetter("axes", "is_written", "is_kept")
    for found in grouped(sums, key).values():
        saved = sum(each.wire_bytes - _once(each, step) for each in found)
        if steps.is_large_traffic(saved, step):
            yield _repeated_sum_finding(cost, step, found, saved)


def _is_gradient(each: Collective) -> bool:
    """Say whether it is a gradient of a weight, or a sum that the user wrote, and only added up."""
    return each.is_added_up and (each.is_written or each.carries.kind == "gradient")


def _once(each: Collective, step: Step) -> int:
    """Return what a sum of the total would send in a step; nothing, where the step keeps it."""
    total = 0 if each.is_kept else each.total_bytes
    return ring_bytes(each.kind, total, step.mesh.ways(each.mesh_axes))


def _repeated_sum_finding(
    cost: Cost, step: Step, found: Sequence[Collective], saved: int
) -> Diagnostic:
    first = max(found, key=lambda each: each.wire_bytes)
    axes = first.axes
    once = sum(_once(each, step) for each in found)
    carried = dict.fromkeys(str(each.carries) for each in found)
    what = next(iter(carried)) if len(carried) == 1 else counted(len(carried), "array")
    fact = f"{what} over {listed(axes)}"
    size = steps.per_step(once + saved)
    return Diagnostic(
        codes.REPEATED_SUM,
        f"each call sums {fact} and only adds the result to what it gives back: {size}"
        if first.is_kept
        else f"a loop sums {fact} in every round and only adds the results up: {size}, where"
        f" summing the total once sends {steps.per_step(once).partition(' per')[0]}",
        labels_at(*steps.spans_of([first]))
        or labels_at((cost.target.span, f"{listed(axes)} is an axis of this mesh")),
        steps.sent_lines(found),
        _help(first, step.mesh.ways(axes)),
    )


def _help(first: Collective, ways: int) -> str:
    """Return how each device adds up a part of its own, which is summed over devices once."""
    names = ", ".join(f"'{axis}'" for axis in first.axes)
    over = f"({names})" if len(first.axes) > 1 else names
    mapped = f"`jax.shard_map(..., axis_names={{{names}}}, check_vma=False)`"
    if first.is_kept:
        return (
            f"give the total a first dimension of {ways} that is P({over}), add to it under"
            f" {mapped} with the batch and the total P({over}) and the weights P(), and take its"
            " mean over that dimension before the update, or its sum where the loss is one"
        )
    if first.is_written:
        return f"take the sum at {first.place} out of the loop, and sum the total behind it"
    return (
        f"run the loop under {mapped} with the batch P({over}), and P() for the weights and"
        f" `out_specs`, and behind the loop take `jax.lax.pmean(total, {over})`, or"
        " `psum` where the loss is a sum over examples"
    )


# missing-sum


_SHOWN = 5


def missing_sum(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each `shard_map` and mesh axis whose results differ between devices."""
    missing = [each for each in step.wrong_sums if each.fault == "missing"]
    for found in grouped(missing, lambda each: (each.mapped, each.mesh_axis)).values():
        yield _missing_sum_finding(cost, found)


def _missing_sum_finding(cost: Cost, found: Sequence[WrongSum]) -> Diagnostic:
    first = found[0]
    axis, part = first.mesh_axis, first.part
    pairs = [*grouped(found, lambda each: (each.first, each.second))]
    results = [each.result for each in found if each.result]
    named = f"`{results[0]}`" if results else "a result"
    differ = "differs" if len(results) < 2 else "differ"
    if len(results) > 1:
        named += f" and {counted(len(results) - 1, 'other result')}"
    notes = (
        f"{first.first}: from here each of the {first.ways} devices along `{axis}` has a part",
        f"{first.second}: {_use(first)}, without a {part} over `{axis}`",
        f"{named} of the `shard_map` of {first.mapped} {differ} between devices",
        *(f"also {start} and {end}" for start, end in pairs[1:_SHOWN]),
    )
    verb, name = ("sum", "psum") if part == "sum" else (f"take its {part}", f"p{part[:3]}")
    mean = ", or `jax.lax.pmean` for a mean" if part == "sum" else ""
    return point(
        codes.MISSING_SUM,
        f"a partial {part} over `{axis}` ({first.first}) is {_use(first)} ({first.second})",
        cost.target.span,
        notes=notes,
        help=f"{verb} it first: `jax.lax.{name}(x, '{axis}')`{mean}",
    )


def _use(found: WrongSum) -> str:
    verb = "returned" if found.second == found.mapped else "used"
    return f"{verb} as the complete one"


# summed-twice


def summed_twice(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line that sums over a mesh axis what is summed already."""
    again = [each for each in step.wrong_sums if each.fault != "missing"]
    for found in grouped(again, lambda e: (e.fault, e.mesh_axis, e.second)).values():
        yield _summed_twice_finding(cost, found)


def _summed_twice_finding(cost: Cost, found: Sequence[WrongSum]) -> Diagnostic:
    first = found[0]
    lines = list(dict.fromkeys(str(each.first) for each in found))
    return point(
        codes.SUMMED_TWICE,
        _fact(first),
        cost.target.span,
        notes=tuple(f"also {line}" for line in lines[1:_SHOWN]),
        help=_way_out(first),
    )


def _fact(found: WrongSum) -> str:
    axis, ways = found.mesh_axis, found.ways
    if found.fault == "added":
        return (
            f"all devices add the same value ({found.first}) before a sum over `{axis}`"
            f" ({found.second}), which counts it {ways} times"
        )
    if found.fault == "mean":
        return (
            f"JAX has summed this gradient over `{axis}` ({found.first}) before its mean is taken"
            f" ({found.second}), so it stays the sum of {ways} gradients"
        )
    who = "by JAX " if found.is_implicit else ""
    return (
        f"a value is summed over `{axis}` {who}({found.first}) and summed again ({found.second}),"
        f" which multiplies it by {ways}"
    )


def _way_out(found: WrongSum) -> str:
    axis = found.mesh_axis
    if found.fault == "added":
        return f"add it after the sum: `jax.lax.psum(x, '{axis}') + b`"
    if not found.is_implicit:
        return f"remove the `psum` at {found.second}, or the one at {found.first}"
    keep = (
        f"give `jax.grad` weights with `jax.lax.pcast(w, '{axis}', to='varying')`, so that JAX does"
        " not sum"
    )
    if found.fault == "mean":
        return f"{keep}; or remove the mean, and divide the loss by {found.ways}"
    return f"remove the `psum` at {found.second}; or {keep}"
