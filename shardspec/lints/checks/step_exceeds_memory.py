"""A step needs more memory than a device has.

The arguments of the step are exact. What the step makes is predicted: which values the compiler
keeps in memory and when each dies, by the program of one device. This finding appears if at most
one in ten such steps fits. A line for each of the largest values says why it is in memory.
`shardspec verify` compiles the step and proves it. If parameters and state alone are too much,
SHD402 says so. docs/does-it-fit.md lists the ways out, and what each costs.

Bad:
    # def loss(params, x):
    #     def layer(x, w):
    #         return resolver.constrain(jnp.tanh(x @ w), activation="x"), None
    #     return jnp.sum(jax.lax.scan(layer, x, params["w"])[0])
    # step = jax.grad(loss)
    shardspec: 1
    hardware: tpu v5e 2x4
    mesh: {fsdp: 8}
    axes: {batch: 262144, features: 4096}
    rules:
      - batch -> fsdp
      - embed -> fsdp
      - features, layers -> none
    params:
      w: layers embed features
    arrays:
      w: bf16[64, 4096, 4096]
    activations:
      x: batch features

Good:
    -axes: {batch: 262144, features: 4096}
    +axes: {batch: 65536, features: 4096}
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardspec.analysis.cost import Cost
from shardspec.analysis.memory import memory, room_text, share_notes
from shardspec.analysis.step_memory import StepMemory
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import (
    binary_bytes,
    grouped,
    listed,
    pattern_of,
    percent,
    template,
)
from shardspec.ir.step import OF_RANDOM_BITS, Step, StepTensor, rows_of
from shardspec.lints.evidence.constraints import batch_rules, names_of, with_rows
from shardspec.lints.evidence.steps import repeats, searchable

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose devices have too little memory for the step."""
    if cost.memory.fits is False and memory(cost.plan).fits:
        yield _finding(cost)


def _finding(cost: Cost) -> Diagnostic:
    held, hardware = cost.memory, cost.target.hardware
    assert hardware is not None, "only hardware has a limit"
    assert held.hbm_bytes is not None
    parts = [
        f"{binary_bytes(part.bytes)} {part.mark} {name}"
        for name, part in held.parts.items()
        if part.bytes
    ]
    least = "at least " if held.total.basis == "floor" else ""
    return point(
        codes.STEP_EXCEEDS_MEMORY,
        f"the step holds {least}{binary_bytes(held.total.bytes)} per device of target"
        f" `{cost.target.name}`; a device of {hardware.chip.title} has"
        f" {room_text(held.hbm_bytes, held.hbm_share)}",
        hardware.span or cost.target.span,
        f"{binary_bytes(held.hbm_bytes)} per device",
        notes=(", ".join(parts), *_largest(cost), *share_notes(cost.target)),
        help=_help(cost),
    )


def _largest(cost: Cost) -> Iterator[str]:
    held, shown = cost.memory, grouped(cost.memory.peak, _told)
    alike = [*shown.items()][:_SHOWN]
    yield from (f"{text}  x{len(each)}" if len(each) > 1 else text for text, each in alike)
    made = _made(held)
    rest = made - sum(each.bytes for _, several in alike for each in several)
    if 20 * rest > made:
        yield f"{binary_bytes(rest)}  in smaller values"


def _told(tensor: StepTensor) -> str:
    name = f"{tensor.array.name} " if tensor.array.name else ""
    why = f": {tensor.reason}" if tensor.reason else ""
    return f"{binary_bytes(tensor.bytes)}  {name}{tensor.array}, {tensor.place}{why}"


def _help(cost: Cost) -> str:
    """Return what would make room, by what the step makes."""
    held = cost.memory
    made = _made(held)
    room = made - _excess(cost)
    bits = [each for each in held.peak if each.why == OF_RANDOM_BITS]
    drawn = sum(each.bytes * each.count for each in bits)
    if drawn and 2 * drawn > _excess(cost):
        return f"draw fewer random bits, as SHD523 says: {binary_bytes(drawn)} are theirs"
    if (way_out := _alike(cost) or _whole_rows(cost)) is not None:
        return searchable(way_out, cost)
    if room <= 0:
        more = "shard the arguments of the step over more mesh axes"
        return searchable(f"{more}{_first(cost)}, or use more devices", cost)
    trains = any(op.phase == "backward" for op in cost.step.ops) if cost.step else True
    less = f"use {'more microbatches' if trains else 'a smaller batch'}: at most"
    ways = [f"{less} {percent(room, made)} of the batch fits by this estimate"]
    if _is_sharded(cost):  # no constraint makes a device hold less
        return "; or ".join(_with_checkpoint(ways, cost))
    ways.append("use more mesh axes in the rules of activations")
    return searchable("; or ".join(_with_checkpoint(ways, cost)), cost)


def _made(held: StepMemory) -> int:
    """Return the bytes of what the step makes."""
    return sum(part.bytes for part in (held.activations, held.temporaries) if part)


def _excess(cost: Cost) -> int:
    """Return by how many bytes the step is too large."""
    return cost.memory.total.bytes - (cost.memory.hbm_bytes or 0)


def _with_checkpoint(ways: list[str], cost: Cost) -> list[str]:
    """Return ways out and `jax.checkpoint`, if it is not there: first where it frees most."""
    held, known = cost.memory, (cost.predicted or cost).memory
    kept = known.activations.bytes if known.activations else 0
    if cost.step is not None and any(op.phase == "remat" for op in cost.step.ops):
        return ways
    if 2 * kept <= _made(known):
        has_some = kept or any(map(_is_again, held.peak))
        own = "keep less for the backward pass (`jax.checkpoint`)"
        return [*ways, own] if has_some else ways
    own = "put `jax.checkpoint` around each layer (`nn.remat`, `nnx.remat` in Flax): "
    return [f"{own}{binary_bytes(kept)} are kept for the backward pass", *ways]


def _is_sharded(cost: Cost) -> bool:
    """Say whether the batch is sharded over every device, but of less than is too much."""
    step, ways = cost.step, cost.plan.mesh.ways(_batch_axes(cost))
    assert step is not None, "only a step is too large"
    if ways < cost.plan.mesh.device_count:
        return False
    parts = {rows: rows // ways for rows in rows_of(step.arguments)}
    whole = 0
    for each in (cost.predicted or cost).memory.peak:
        shape = each.array.shard_shape
        if any(size in parts and parts[size] not in shape for size in shape):
            whole += each.bytes * each.count
    return whole < _excess(cost)


def _batch_axes(cost: Cost) -> list[str]:
    """Return the mesh axes of the rule of the batch that this mesh has."""
    rule = next(iter(batch_rules(cost.plan)), None)
    return [axis for axis in (rule.mesh_axes if rule else ()) if axis in cost.plan.mesh.sizes]


def _is_again(tensor: StepTensor) -> bool:
    """Say whether a compiler found no room for what the backward pass needs."""
    return tensor.why == "computed again"


def _first(cost: Cost) -> str:
    """Return the arguments that take most of a device and are not sharded over every mesh axis."""
    mesh, step = cost.plan.mesh, cost.step
    assert step is not None, "only a step is too large"
    part = (a for a in step.arguments if mesh.ways(a.array.split.mesh_axes) < mesh.device_count)
    alike = grouped(part, lambda each: template(each.path)).values()
    sizes = [(sum(each.array.bytes * each.count for each in some), some) for some in alike]
    if not sizes:
        return ""
    size, some = max(sizes, key=lambda pair: pair[0])
    name = pattern_of(each.path for each in some)
    return f", first `{name}` ({binary_bytes(size)} per device, {some[0].array.split})"


def _alike(cost: Cost) -> str | None:
    """Return what to split, where all that is too much is made by several devices alike.

    A smaller batch is no cure there: the devices would go on to make the same.
    """
    step, held = cost.step, cost.memory
    assert step is not None, "only a step is too large"
    found = {op.result.shard_shape: (op, repeats(op, step.mesh)) for op in step.ops}
    large, saved = None, 0.0
    for tensor in held.peak:
        op, repeated = found.get(tensor.array.shard_shape, (None, {}))
        idle = [axis for axis in repeated if axis not in tensor.array.split.mesh_axes]
        ways = math.prod(repeated[axis] for axis in idle)
        if op is not None and any(
            size % ways == 0 and 1 < ways < size for size in op.result.shard_shape
        ):
            saved += tensor.bytes * tensor.count * (1 - 1 / ways)
            large = large or (tensor, op.result, idle)
    if large is None or saved < _excess(cost):
        return None
    tensor, whole, idle = large
    name = whole.name or str(whole)
    rows = with_rows(cost.plan, step, whole.shape, whole.split, idle)
    names = None if rows is None else names_of(cost.plan, whole.shape, rows)
    batch = next((name for name in names or () if "batch" in name), None)
    what, how = f"shard {name}", ""
    if batch is not None:
        what = f"shard the batch of {name}"
        how = f", by `{batch}` in a constraint on what that line reads"
    return (
        f"{what}, {tensor.place}, over {listed(idle)}{how}: their devices all compute the same,"
        " and the rest fits by this estimate"
    )


def _whole_rows(cost: Cost) -> str | None:
    """Return what to split, where devices hold all rows of what the batch's rule would shard.

    A smaller batch is no cure there, either: each device would go on to hold all of it.
    """
    step, held, plan = cost.step, cost.memory, cost.plan
    assert step is not None, "only a step is too large"
    rows = rows_of(step.arguments)
    rule, axes = next(iter(batch_rules(plan)), None), _batch_axes(cost)
    ways = plan.mesh.ways(axes)
    found = [
        each
        for each in held.peak
        if any(size in rows and size % ways == 0 for size in each.array.shard_shape)
        and not {*axes} & {*each.array.split.mesh_axes}
    ]
    saved = sum(each.bytes * each.count for each in found) * (1 - 1 / ways)
    if rule is None or not found or saved < _excess(cost):
        return None
    return (
        f"shard the batch of {found[0].array}, {found[0].place}, over {listed(axes)}, by"
        f" `{rule.logical_axis}` in a constraint on what that line reads: each device holds all"
        " rows, and the rest fits by this estimate"
    )
