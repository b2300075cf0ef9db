"""Work of a step: repeated, compiled twice, guessed or not counted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large, is_large_work
from shardspec.analysis.step_time import Send, op_seconds, step_time, step_work
from shardspec.diagnostics import Diagnostic, codes, labels_at, point, quote
from shardspec.diagnostics.words import binary_bytes, counted, described, grouped, listed, percent
from shardspec.ir.step import (
    ON_HOST,
    CollectiveKind,
    Place,
    Returned,
    Step,
    StepArgument,
    StepArray,
    StepOp,
)
from shardspec.lints.evidence import steps

# repeated-work


_PRODUCTS = ("einsum", "convolution")

#: Products for which a way out is looked for.
_TRIED = 8


def repeated_work(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes whose devices repeat each other's work."""
    for repeated, found in grouped(_repeated(step), lambda each: each[0]).items():
        ops = [op for _, op in found]
        ways = math.prod(times for _, times in repeated)
        if is_large_work(steps.wasted_flops(ops, ways), step.flops):
            yield _repeated_work_finding(cost, step, dict(repeated), ops)


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
    told |= {(op.at, axis) for op in ops for axis in _asked_whole(step, op)}
    for op in ops:
        found = steps.repeats(op, step.mesh)
        if op.kind in _PRODUCTS and found and not any((op.at, axis) in told for axis in found):
            yield tuple(found.items()), op


def _asked_whole(step: Step, op: StepOp) -> Iterator[str]:
    """Yield the mesh axes over which a constraint replicates the result of a product."""
    for each in step.collectives:
        is_own = (each.place, steps.moved(each).shape) == (op.place, op.result.shape)
        if each.forced_by is not None and is_own:
            yield from each.mesh_axes


def _repeated_work_finding(
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
        steps.searchable(_help(cost, step, repeated, ops), cost),
    )


def _of(ways: int, size: int) -> str:
    """Return `all 4`, or `groups of 2 of these 16` where parts of a dimension share the rest."""
    return f"all {size}" if ways == size else f"groups of {ways} of these {size}"


def _help(cost: Cost, step: Step, repeated: Mapping[str, int], ops: Sequence[StepOp]) -> str:
    """Return which sizes of which product the axes would divide, where that pays."""
    ways = math.prod(repeated.values())
    heaviest = sorted(ops, key=lambda op: (op.phase == "backward", -op.flops * op.count))
    allow = quote.setting("lints", ("repeated-work", "allow"))
    if not any(_fitting(op, ways) for op in heaviest):
        what = f"the result of {steps.product_name(heaviest[0])}"
        has_none = f"{what} has no dimension that {listed(repeated)} divide"
        return f"{has_none}; if that is intended, {allow}"
    for op in heaviest[:_TRIED]:
        fitting = _fitting(op, ways)
        readers = list(islice(_readers(op, fitting, ops), 1))
        if heaviest[0] not in (op, *readers):
            continue
        if readers and _pays(cost, step, repeated, _at(ops, op, *readers), _summed(op, readers[0])):
            summed = _summing(op, readers[0], fitting)
            return f"{_split(op, repeated, summed)}; the product {_where(readers[0])} sums over it"
        here = [each for each in ops if (each.place, each.phase) == (op.place, op.phase)]
        if fitting and op is heaviest[0] and _pays(cost, step, repeated, here, _gathered(here)):
            return _split(op, repeated, fitting)
    what = f"the result of {steps.product_name(heaviest[0])}"
    return (
        f"shard {what} and its readers over {listed(repeated)}: the result alone would be gathered"
        f" again, which sends more than it saves; or if repeating it is intended, {allow}"
    )


def _fitting(op: StepOp, ways: int) -> set[int]:
    """Return the sizes of whole dimensions of a result that so many devices divide."""
    pairs = zip(op.result.shape, op.result.split.dims, strict=True)
    return {size for size, taken in pairs if not taken and size % ways == 0 and size > ways}


def _split(op: StepOp, repeated: Mapping[str, int], fitting: Collection[int]) -> str:
    sizes = " or ".join(map(str, sorted(fitting, reverse=True)[:2]))
    what = f"the result of {steps.product_name(op)} {_where(op)}"
    return f"constrain {what}: shard its dimension of {sizes} over {listed(repeated)}"


def _where(op: StepOp) -> str:
    return f"at {op.place}" if _is_own(op.place) else "in your code"


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


# unknown-operation


_SHOWN = 5


def unknown_operation(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target on which operations of a traced step cannot be counted."""
    unknown = step.unknown if step.source == "code" else ()
    if unknown:
        figures = dict.fromkeys(name for each in unknown for name in each.figures)
        is_one = len(unknown) == 1
        yield point(
            codes.UNKNOWN_OPERATION,
            f"{counted(len(unknown), 'operation')} of the step on target `{cost.target.name}`"
            f" {'is' if is_one else 'are'} unknown; lower bounds: {', '.join(figures)}",
            cost.target.span,
            notes=tuple(map(str, unknown[:_SHOWN])),
            help="`shardspec verify` shows what the compiler of the target sends for it",
        )


# compiles-twice


def compiles_twice(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target on which a step gives back other state than it was given."""
    found = [each for each in step.returned if _differs(each, cost)]
    if found:
        yield _compiles_twice_finding(cost, found)


def _differs(each: Returned, cost: Cost) -> bool:
    """Say whether JAX compiles anew: on one device a number is placed as its array is."""
    is_same = bool(each.kinds[0] and each.kinds[1]) and each.before.dtype == each.after.dtype
    return not is_same or cost.plan.mesh.device_count > 1


def _compiles_twice_finding(cost: Cost, found: Sequence[Returned]) -> Diagnostic:
    first = found[0].argument.path or "an argument"
    who = f"`{first}`" if len(found) == 1 else f"`{first}` and {counted(len(found) - 1, 'other')}"
    pairs = ((each.argument.is_donated, each.before.bytes, each.after.bytes) for each in found)
    lost = sum(after for is_donated, before, after in pairs if is_donated and before != after)
    notes = [
        f"{described(each.argument.path for each in alike)}: {change}"
        for change, alike in grouped(found, _change).items()
    ]
    ways = grouped(found, _way_out)
    names = {way: f" (`{alike[0].argument.path}`)" for way, alike in ways.items()}
    told = f"{binary_bytes(lost)} that were donated on each device are not reused"
    return point(
        codes.COMPILES_TWICE,
        f"the step gives {who} back with another type or layout, so its second call compiles again",
        cost.target.span,
        notes=(*notes[:_SHOWN], *([told] if lost else ())),
        help="; ".join(f"{way}{names[way] if len(ways) > 1 else ''}" for way in [*ways][:_SHOWN]),
    )


def _change(each: Returned) -> str:
    """Return what is given and what comes back: `bf16 P('fsdp', None), then f32 P(None, None)`."""
    before = each.kinds[0] or f"{each.before.dtype} {each.before.split}"
    after = each.kinds[1] or f"{each.after.dtype} {each.after.split}"
    return f"{before}, then {after}"


def _way_out(each: Returned) -> str:
    dtype = each.before.dtype
    was_on_host, is_on_host = (kind.endswith(ON_HOST) for kind in each.kinds)
    if was_on_host != is_on_host:
        kind = "pinned_host" if was_on_host else "device"
        return f"return it by `jax.device_put(x, sharding.with_memory_kind('{kind}'))`"
    if dtype != each.after.dtype:
        return f"cast it back to {dtype} before it is returned"
    if each.kinds[0]:
        name = {"s": "int", "f": "float", "u": "uint"}.get(dtype[0], "") + dtype[1:]
        return f"begin with an array of a stated type, as in `jnp.asarray(0, '{name}')`"
    if each.kinds[1]:
        return "return it with a stated type, as in `jnp.asarray(x, x.dtype)`"
    if each.after.bytes < each.before.bytes:
        return f"place it as {each.after.split} from the beginning"
    return f"let it come back as {each.before.split}, by `out_shardings` or the constraint on it"


# guessed-placement


def guessed_placement(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each argument of a step whose sharding is a guess."""
    guesses = [each for each in step.arguments if each.is_guess]
    if step.mesh.device_count == 1:
        return
    for found in grouped(guesses, lambda each: each.path.partition("/")[0]).values():
        size = sum(each.array.bytes * each.count for each in found)
        is_cache = any(each.role == "cache" for each in found)
        if is_cache or is_large(size, cost.memory.total.bytes):
            yield _guessed_placement_finding(cost, step, found, size)


def _guessed_placement_finding(
    cost: Cost, step: Step, found: Sequence[StepArgument], size: int
) -> Diagnostic:
    largest = max(found, key=lambda each: each.array.bytes)
    array, rest = largest.array, len(found) - 1
    who = f"`{largest.path}`" + (f" and {counted(rest, 'other')} beside it" if rest else "")
    is_batch = bool(array.split.dims[0])
    how = (
        "its first dimension is taken for the batch" if is_batch else "it is what XLA would choose"
    )
    names = " ".join(_names(cost, step, array))
    return point(
        codes.GUESSED_PLACEMENT,
        f"nothing says how {who} is sharded, {binary_bytes(size)} per device by a guess:"
        f" {array.split} for {array}, as {how}",
        cost.target.span,
        help=f'give it `sharding=resolver.sharding("{names}", {array.shape})`, and names for all'
        " dimensions that are to be sharded",
    )


def _names(cost: Cost, step: Step, array: StepArray) -> Iterator[str]:
    """Yield `batch` for the dimension of the batch's size; for others, what has their mesh axes."""
    given = (each for each in step.arguments if each.role == "batch" and not each.is_guess)
    sizes = {each.array.shape[0] for each in given if each.array.shape}
    batch = next((at for at, size in enumerate(array.shape) if size in sizes), None)
    by_axes = {rule.mesh_axes: rule.logical_axis for rule in cost.plan.spec.axis_rules[::-1]}
    for at, axes in enumerate(array.split.dims):
        other = by_axes.get(axes, "_") if axes and not array.split.dims[0] else "_"
        yield "batch" if at == batch else other
