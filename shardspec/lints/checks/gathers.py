"""What a step gathers or moves without need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import allowed_paths
from shardspec.analysis.reshards import goes_straight, stop_between, straight_bytes
from shardspec.analysis.traffic import TrafficRow, group
from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import binary_bytes, counted, described, grouped, named, percent
from shardspec.ir.plan import ActivationSharding, Alike, DimSharding, ShardingPlan
from shardspec.ir.spec import PartitionSpec, array_bytes, target_text
from shardspec.ir.step import (
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    Reshard,
    Step,
    StepOp,
    ring_bytes,
)
from shardspec.lints.context import Context
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.arrays import only, would_divide
from shardspec.lints.evidence.rules import Crossing, crossing_axes
from shardspec.lints.evidence.steps import (
    IdleGather,
    is_large_traffic,
    per_step,
    sent_lines,
    spans_of,
    times,
)

# activation-conflict


#: For logical axis and mesh axis, the first activation that is split so.
Splits = Mapping[tuple[str, str], ActivationSharding]


@dataclass(slots=True)
class _Conflict:
    """One logical axis that an activation splits over a mesh axis, and parameters do not.

    Attributes:
      dim: of the first of the parameters.
      lost: for each target, the bytes that a device holds in vain.
    """

    axis: str
    mesh_axis: str
    activation: ActivationSharding
    dim: DimSharding
    lost: dict[str, int] = field(default_factory=dict)
    paths: dict[str, None] = field(default_factory=dict)


def activation_conflict(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each logical axis that activations split and parameters do not."""
    spec = context.spec
    if not spec.activations:
        return
    allowed = allowed_paths(spec, context.paths)
    conflicts: dict[tuple[object, ...], _Conflict] = {}
    for plan in context.plans:
        splits = _splits(plan)
        for arrays in plan.alike:
            paths = [path for path in arrays.paths if path not in allowed]
            for dim, mesh_axis, size in _missing(plan, arrays, splits):
                axis = dim.logical_axis or ""
                activation = splits[axis, mesh_axis]
                key = (axis, mesh_axis, activation.activation.name, dim.mesh_axes)
                conflict = conflicts.setdefault(key, _Conflict(axis, mesh_axis, activation, dim))
                held = arrays.shard_bytes * len(paths)
                lost, target = conflict.lost, plan.target.name
                lost[target] = lost.get(target, 0) + held * (size - 1) // size
                conflict.paths.update(dict.fromkeys(paths))
    for conflict in conflicts.values():
        if any(context.is_large(lost, name) for name, lost in conflict.lost.items()):
            yield _activation_conflict_finding(conflict)


def _splits(plan: ShardingPlan) -> Splits:
    splits: dict[tuple[str, str], ActivationSharding] = {}
    for activation in plan.activations:
        for dim in activation.dims:
            for mesh_axis in dim.mesh_axes:
                splits.setdefault((dim.logical_axis or "", mesh_axis), activation)
    return splits


def _missing(
    plan: ShardingPlan, arrays: Alike, splits: Splits
) -> Iterator[tuple[DimSharding, str, int]]:
    """Yield each dimension with a mesh axis that the array lacks and that would divide it."""
    for axis, size in plan.mesh.sizes.items():
        for dim in arrays.dims if axis not in arrays.mesh_axes else ():
            if (dim.logical_axis or "", axis) in splits and would_divide(size, dim):
                yield dim, axis, size


def _activation_conflict_finding(conflict: _Conflict) -> Diagnostic:
    axis, mesh_axis, activation = conflict.axis, conflict.mesh_axis, conflict.activation.activation
    whole = not conflict.dim.mesh_axes
    where = "whole" if whole else f"on `{target_text(conflict.dim.mesh_axes)}`"
    of_activation = next(dim for dim in conflict.activation.dims if mesh_axis in dim.mesh_axes)
    taken, other = of_activation.taken, conflict.dim.taken
    return Diagnostic(
        codes.ACTIVATION_CONFLICT,
        f"`{axis}` is on `{target_text(of_activation.mesh_axes)}` in activation `{activation.name}`"
        f" and {where} in parameters, on {named('target', conflict.lost)}",
        labels_at(
            (activation.span, "this activation"),
            (taken.span if taken else None, "it takes this"),
            (other.span if other else None, "parameters take this"),
        ),
        notes=(
            f"{described(conflict.paths)}; replicated over `{mesh_axis}`:"
            f" +{binary_bytes(max(conflict.lost.values()))} per device",
        ),
        help=_activation_conflict_help(conflict),
        target=only(conflict.lost),
    )


def _activation_conflict_help(conflict: _Conflict) -> str:
    """Return how the parameters come to the mesh axis, by what took the dimension instead."""
    mesh_axis, now = conflict.mesh_axis, conflict.dim.mesh_axes
    if not now:
        return (
            f"put `{mesh_axis}` on `{conflict.axis}` of the parameters too; or say under"
            f" {quote.section('replicate:')} that they should be replicated"
        )
    both = f"`{target_text((*now, mesh_axis))} | {mesh_axis}`"
    return (
        f"in the rules of `{conflict.axis}`, put `{mesh_axis}` before `{target_text(now)}`, or take"
        f" {both}"
    )


# resharded-twice


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


def resharded_twice(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line of code at which an array is moved in vain."""
    for found in steps.large_groups(
        _detours(step), _resharded_twice_place, lambda each: each.saved, step
    ):
        yield _resharded_twice_finding(cost, found)


def _resharded_twice_place(each: _Detour) -> str:
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


def _resharded_twice_finding(cost: Cost, found: Sequence[_Detour]) -> Diagnostic:
    reshard, parts, onward, last, _ = found[0]
    first = parts[0]
    then = f"resharded again at {onward[0].place}" if onward else "split again"
    saved = sum(each.saved for each in found)
    asked = first.forced_by
    place = asked.place if asked is not None and asked.place.is_known else first.place
    way_out = f"constrain it at {place} to {last}, as it is read, or not at all"
    return Diagnostic(
        codes.RESHARDED_TWICE,
        f"{steps.moved(first)} is resharded from {reshard.before} to {reshard.after} at"
        f" {place}, and {then} before anything reads it: {steps.per_step(saved)} more than needed",
        labels_at(*steps.spans_of(parts)),
        steps.sent_lines(move for each in found for move in (*each.first, *each.onward)),
        steps.searchable(way_out, cost) if asked is None else way_out,
    )


# forced-gather


_Forced = tuple[Collective, Cause, int]


def forced_gather(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line, or result, that asks for gathers over a mesh axis."""
    for found in steps.large_groups(
        _forced_gathers(step), _forced_gather_key, lambda each: each[2], step
    ):
        yield _forced_gather_finding(step, found)


def _forced_gather_key(each: _Forced) -> object:
    return _asks(each[0]), each[1].mesh_axis


def _forced_gathers(step: Step) -> Iterator[_Forced]:
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


def _forced_gather_finding(step: Step, found: Sequence[_Forced]) -> Diagnostic:
    first, cause, _ = found[0]
    kind, place = _asks(first)
    axis = cause.mesh_axis
    is_result = kind is CauseKind.RESULT
    who = f"a result of the function at {step.place}" if is_result else f"the constraint at {place}"
    where = "`out_shardings`" if is_result else "the constraint"
    array = steps.moved(first)
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
    return f"read by {steps.product_name(ops[0])}, {ops[0].place}, in full on every device"


def _dim(each: Collective, axis: str) -> int:
    return next((at for at, axes in enumerate(steps.moved(each).split.dims) if axis in axes), 0)


# needless-gather


def needless_gather(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each rule whose weights are gathered for nothing."""
    weights = (each for each in steps.told_gathers(step) if each.is_weight)
    for found in steps.large_groups(weights, _rule, lambda each: each.saved, step):
        yield _needless_gather_finding(cost, step, found)


def _rule(each: IdleGather) -> object:
    return each.cause.mesh_axis, str(each.cause.span)


def _needless_gather_finding(cost: Cost, step: Step, found: Sequence[IdleGather]) -> Diagnostic:
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
        _needless_gather_help(found[0], binary_bytes(_more(cost, step, paths, ways))),
        arrays=paths,
    )


def _needless_gather_help(idle: IdleGather, more: str) -> str:
    """Return how the axis comes to share the work; or what it takes to do without it."""
    axis, forced = idle.cause.mesh_axis, idle.collective.forced_by
    if forced is not None and forced.place.is_known:
        return f"keep `{axis}` in the constraint at {forced.place}, or take the constraint out"
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


# repeated-over-dcn


_AHEAD = ("weight", "gradient", "state")


def repeated_over_dcn(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis over DCN that activations are sent over repeatedly."""
    for crossing in crossing_axes(cost.target):
        rows = tuple(_rows(step, crossing.axis.name))
        if is_large_traffic(sum(row.wire_bytes for row in rows), step):
            yield _repeated_over_dcn_finding(crossing, rows)


def _rows(step: Step, axis: str) -> Iterator[TrafficRow]:
    """Yield what is sent more than once over an axis, of what a product waits for."""
    sent = (each for each in step.collectives if axis in each.mesh_axes)
    sent = (each for each in sent if each.kind.traits.way != "shift")
    rows = group(each for each in sent if each.carries.kind not in _AHEAD)
    yield from (row for row in rows if row.count > 1)


def _repeated_over_dcn_finding(crossing: Crossing, rows: Sequence[TrafficRow]) -> Diagnostic:
    axis = crossing.axis
    sent: list[Collective] = [each for row in rows for each in row.collectives]
    causes = [cause for each in sent for cause in each.because if cause.mesh_axis == axis.name]
    count = sum(row.count for row in rows)
    return Diagnostic(
        codes.REPEATED_OVER_DCN,
        f"activations cross DCN over `{axis.name}` {times(count)} times in a step:"
        f" {per_step(sum(row.wire_bytes for row in rows))}",
        labels_at(
            *((cause.span, f"`{axis.name}` comes from here") for cause in causes[:1]),
            (axis.span, "crosses DCN"),
        ),
        (*sent_lines(sent), *filter(None, (crossing.speed,))),
        f"keep `{axis.name}` within a slice or node, and let an axis cross that only the batch has:"
        " its gradients are summed once a step",
    )


# full-rematerialization


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


def full_rematerialization(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line of code that asks for a transition XLA has no moves for."""
    for found in steps.large_groups(
        _gathered(step), _full_rematerialization_place, lambda each: each.sent, step
    ):
        yield _full_rematerialization_finding(cost, step, found)


def _full_rematerialization_place(each: _Gathered) -> str:
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


def _full_rematerialization_finding(
    cost: Cost, step: Step, found: Sequence[_Gathered]
) -> Diagnostic:
    reshard, parts, whole, _ = max(found, key=lambda each: each.sent)
    first = parts[0]
    array = steps.moved(first)
    stop = stop_between(reshard.before, reshard.after, step.mesh, array.bytes)
    way_out = (
        f"constrain it to {stop} before: XLA has moves from there"
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


# invariant-gather


def invariant_gather(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each rule whose arrays a loop gathers again and again."""
    hardware = cost.target.hardware
    if hardware is None or hardware.chip.platform != "tpu":
        return
    again = [each for each in step.collectives if _is_again(each)]
    if not _has_room(cost, again):
        return
    for found in grouped(again, _invariant_gather_key).values():
        if is_large_traffic(_saved(found), step):
            yield _invariant_gather_finding(found)


def _is_again(each: Collective) -> bool:
    is_gather = each.kind is CollectiveKind.ALL_GATHER and not each.is_written
    return is_gather and each.is_invariant and each.count >= each.rounds > 1


def _has_room(cost: Cost, found: Sequence[Collective]) -> bool:
    """Say whether a device can keep all that is gathered beside what it holds."""
    more = sum(each.payload_bytes for each in found)
    hbm = cost.memory.hbm_bytes
    return hbm is not None and cost.memory.total.bytes + more <= hbm


def _invariant_gather_key(each: Collective) -> tuple[object, ...]:
    return each.axes, each.rounds, tuple(str(cause.span) for cause in each.because)


def _saved(found: Sequence[Collective]) -> int:
    return round(sum(each.wire_bytes * (1 - 1 / each.rounds) for each in found))


def _invariant_gather_finding(found: Sequence[Collective]) -> Diagnostic:
    first = found[0]
    who = str(first.carries) if len(found) == 1 else counted(len(found), "array")
    more = sum(each.payload_bytes for each in found)
    return Diagnostic(
        codes.INVARIANT_GATHER,
        f"a loop of {times(first.rounds)} iterations gathers {who} each time, unchanged:"
        f" {per_step(_saved(found))} more than needed",
        labels_at(*spans_of([first])),
        sent_lines(found),
        'gather before the loop: `resolver.constrain(array, "_ _")` in front of it, with `_` for'
        f" each dimension; a device then keeps {binary_bytes(more)} more through the loop",
    )


# experts-gathered


class _ExpertGather(NamedTuple):
    """Weights of experts that are gathered for a product.

    Attributes:
      wanted: how the tokens, and what is made of them, have to be sharded instead.
      tokens: what a device sends in a step to have them so, there and back.
    """

    sent: Collective
    cause: Cause
    op: StepOp
    wanted: PartitionSpec
    tokens: int


def experts_gathered(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis over which the weights of experts are gathered."""
    for found in grouped(_expert_gathers(step), lambda each: each.cause.mesh_axis).values():
        now = sum({each.sent.at: each.sent.wire_bytes for each in found}.values())
        then = sum({each.op.at: each.tokens for each in found}.values())
        if 2 * then <= now and steps.is_large_traffic(now - then, step):
            yield _experts_gathered_finding(found, now, then)


def _expert_gathers(step: Step) -> Iterator[_ExpertGather]:
    by_line = grouped(step.ops, lambda op: (op.phase, op.place))
    for each in step.collectives:
        is_gather = each.kind is CollectiveKind.ALL_GATHER and each.carries.kind == "weight"
        for cause in each.because if is_gather else ():
            if cause.attempt is not None:
                for op in by_line.get((each.phase, each.place), ()):
                    yield from _moved(step, each, cause, op)


def _moved(step: Step, each: Collective, cause: Cause, op: StepOp) -> Iterator[_ExpertGather]:
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
    yield _ExpertGather(each, cause, op, wanted, round(sent * op.count))


def _experts_gathered_finding(found: Sequence[_ExpertGather], now: int, then: int) -> Diagnostic:
    cause = found[0].cause
    axis = cause.mesh_axis
    paths = tuple(dict.fromkeys(each.sent.carries.name for each in found))
    who = f"`{paths[0]}` is" if len(paths) == 1 else f"{counted(len(paths), 'weight')} are"
    parts = [
        f"constrain what the products at {places} read, and what they make, to {spec}"
        for spec, places in steps.places_by(found, lambda each: (each.wanted, each.op))
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
