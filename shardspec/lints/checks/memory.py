"""Arrays that take more memory than they need, and plans that do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import PARTS, Coverage, allowed_paths, is_large, limit_bytes
from shardspec.analysis.memory import Held, Memory, memory, room_text, share_notes
from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import (
    as_one,
    binary_bytes,
    by_key,
    counted,
    described,
    listed,
    named,
    natural,
    percent,
)
from shardspec.ir.plan import (
    Alike,
    Attempt,
    Derivation,
    DimSharding,
    Kind,
    Outcome,
    ParamSharding,
    ShardingPlan,
)
from shardspec.ir.spec import (
    CoverageGate,
    MemoryRule,
    Override,
    ParentDim,
    Pattern,
    Replicate,
    target_text,
)
from shardspec.ir.step import Step
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import (
    Layers,
    largest,
    one_axis_more,
    only,
    whole_layers,
    with_cost,
)
from shardspec.lints.evidence.steps import repeats, searchable
from shardspec.resolve.match import path_matcher
from shardspec.resolve.state import OPT_STATE, state_axes

# replicated-large


def replicated_large(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large array that is whole on a target without being meant to."""
    found: dict[tuple[str, ...], list[tuple[ShardingPlan, Layers]]] = {}
    for plan in context.shared_plans:
        for layers in whole_layers(context, plan, lambda sharding: not is_settled(sharding)):
            paths = tuple(sorted((sharding.param.path for sharding in layers), key=natural))
            found.setdefault(paths, []).append((plan, layers))
    for paths, targets in found.items():
        yield _replicated_large_finding(paths, targets[0][1], [plan for plan, _ in targets])


def is_settled(sharding: ParamSharding) -> bool:
    """Say whether rules that fired left the array whole: by `none`, or a mesh axis of size 1.

    What the policy keeps whole is small, each by itself; many of them are not.
    """
    if sharding.dims.is_kept_whole:
        return False
    return all(dim.taken is not None for dim in sharding.dims if dim.size != 1)


def _replicated_large_finding(
    paths: tuple[str, ...], layers: Layers, plans: Sequence[ShardingPlan]
) -> Diagnostic:
    first = layers[0]
    size = sum(sharding.param.bytes for sharding in layers)
    total = sum(sharding.param.bytes for sharding in plans[0].arrays)
    names = [plan.target.name for plan in plans]
    where = "this target" if len(names) == 1 else "these targets"
    axes = dict.fromkeys(axis for plan in plans for axis in plan.mesh.names)
    return point(
        codes.REPLICATED_LARGE,
        f"`{as_one(paths)}` {first.param} is replicated on {named('target', names)}",
        first.named_at,
        "named here" if first.matched else "this array",
        notes=(
            f"{counted(len(paths), 'array')}, {binary_bytes(size)} per device,"
            f" {percent(size, total)} of the model",
            *(_why(index, dim, first.derivation) for index, dim in enumerate(first.dims)),
        ),
        help=_way_out(first, f"mesh axes of {where} ({', '.join(axes)})"),
        target=only(names),
        arrays=paths,
        bytes=size,
    )


def _way_out(sharding: ParamSharding, mesh_axes: str) -> str:
    derivation = sharding.derivation
    if derivation is None or derivation.parent is None:
        return (
            f"add an alternative for {mesh_axes}, or say that this is intended: `AXIS -> none`, or"
            f" {quote.section('replicate:')} with a reason"
        )
    dims = [
        each
        for each in zip(sharding.dims, derivation.reading, strict=False)
        if each[0].size not in (None, 1)
    ]
    shared = [str(of.place) for _, of in dims if isinstance(of, ParentDim)]
    names = [f"give `{of}` a rule that fits" for _, of in dims if isinstance(of, str)]
    ways = [f"split dim {' or '.join(shared)} of it over {mesh_axes}"] if shared else []
    ways += names
    if any(of is None for _, of in dims):
        ways.append("write an axis that rules place for `_` in `dims`")
    whole = f"say that this is intended: {quote.section('replicate:')} with a reason"
    return f"it is sharded like `{derivation.parent.path}`: {'; or '.join((*ways, whole))}"


def _why(index: int, dim: DimSharding, derivation: Derivation | None) -> str:
    name = f"dim {index} ({dim.logical_axis or '_'}={dim.size})"
    if derivation is not None and derivation.parent is not None and not dim.attempts:
        of_parent = derivation.reading[index] if derivation.reading else None
        if isinstance(of_parent, ParentDim):
            return f"{name}: dim {of_parent.place} of `{derivation.parent.path}` is replicated"
        if dim.logical_axis is None:
            return f"{name} is not a dimension of `{derivation.parent.path}`"
    if dim.taken is not None and dim.taken.kind is Kind.SMALL:
        return f"{name}: the array is below `whole_below`"
    if dim.taken is not None:
        return f"{name}: a rule says `{target_text(dim.mesh_axes)}`"
    if dim.logical_axis is None:
        return f"{name} has no name"
    reasons = ", ".join(_outcome(attempt, dim) for attempt in dim.attempts)
    return f"{name}: {reasons or 'no rule is for it'}"


def _outcome(attempt: Attempt, dim: DimSharding) -> str:
    axes = f"`{target_text(attempt.mesh_axes or attempt.asked)}`"
    if attempt.outcome is Outcome.INDIVISIBLE:
        if dim.size is not None and dim.size % attempt.ways == 0:
            whole = "parts" if dim.cuts_parts(attempt.ways) else f"a unit of {dim.unit}"
            return f"{axes} = {attempt.ways} would cut {whole}"
        return f"{axes} = {attempt.ways} does not divide it"
    where = "no target" if attempt.outcome is Outcome.UNKNOWN else "other targets only"
    return f"{axes} is on {where}"


# replicated-over-budget


def replicated_over_budget(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each set of arrays that is too much; targets that agree share one."""
    gate = context.spec.coverage
    if gate is None:
        return
    cases: dict[tuple[str, ...], tuple[Coverage, list[str]]] = {}
    for plan in context.shared_plans:
        covered = context.covered[plan.target.name]
        if covered.counted_bytes > limit_bytes(gate, covered.total_bytes):
            paths = tuple(sharding.param.path for sharding in covered.counted)
            cases.setdefault(paths, (covered, []))[1].append(plan.target.name)
    for covered, targets in cases.values():
        yield _replicated_over_budget_finding(gate, covered, targets)


def _replicated_over_budget_finding(
    gate: CoverageGate, covered: Coverage, targets: list[str]
) -> Diagnostic:
    total, whole = covered.total_bytes, covered.counted_bytes
    limit = limit_bytes(gate, total)
    yaml, dsl = "`replicate: [{path: ..., because: ...}]`", '`replicate ... because "..."`'
    return point(
        codes.REPLICATED_OVER_BUDGET,
        f"{binary_bytes(whole)} of arrays, {percent(whole, total)} of the model, are replicated on"
        f" {named('target', targets)}",
        gate.span,
        f"allows {binary_bytes(limit)}",
        notes=(
            f"{counted(len(covered.counted), 'array')}: {binary_bytes(whole - limit)} per device"
            " too much",
            *largest((sharding.param.path, sharding.param.bytes) for sharding in covered.counted),
            *_allowed(covered),
        ),
        help=f"split them; or name those that should be replicated, {quote.either(yaml, dsl)};"
        f" or {quote.word('max_replicated_bytes', _enough(gate, whole, total), 'coverage ')}",
        target=only(targets),
    )


def _allowed(covered: Coverage) -> Iterator[str]:
    if covered.allowed:
        yield (
            f"{counted(len(covered.allowed), 'array')} more, {binary_bytes(covered.allowed_bytes)},"
            " by `replicate`"
        )


def _enough(gate: CoverageGate, whole: int, total: int) -> str:
    """Return a limit, as the gate spells it, that would not be exceeded."""
    if gate.max_share is None:
        kibibytes = -(-whole // 1024)
        return f"{kibibytes} KiB" if kibibytes < 1024 else f"{-(-kibibytes // 1024)} MiB"
    return f"{-(-1000 * whole // total) / 10:g}%"


# exceeds-memory


def exceeds_memory(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose devices have too little memory."""
    for plan in context.plans:
        held = memory(plan)
        if not held.fits:
            fits = _with_right_names(held).fits
            misnamed = (s.param.path for s in plan.arrays if fits and _is_misnamed(s))
            yield replace(_exceeds_memory_finding(plan, held), arrays=tuple(misnamed))


def _with_right_names(held: Memory) -> Memory:
    """Return what is held of arrays that have names: the others are whole by a mistake."""
    figures = (f for f in held.figures if not any(map(_is_misnamed, f.arrays.shardings)))
    return replace(held, figures=tuple(figures))


def _is_misnamed(sharding: ParamSharding) -> bool:
    return sharding.needs_names or sharding.mismatch is not None


def _exceeds_memory_finding(plan: ShardingPlan, held: Memory) -> Diagnostic:
    hardware = plan.target.hardware
    assert hardware is not None, "only hardware has a limit"
    assert held.hbm_bytes is not None
    what = " and ".join(part.value for part in Held if held.of(part))
    if what.count(" and ") == 2:
        what = what.replace(" and ", ", ", 1)
    has = f"a device of {hardware.chip.title} has {room_text(held.hbm_bytes, held.hbm_share)}"
    return point(
        codes.EXCEEDS_MEMORY,
        f"{what} take {binary_bytes(held.bytes)} per device of target `{plan.target.name}`; {has}",
        hardware.span or plan.target.span,
        f"{binary_bytes(held.hbm_bytes)} per device",
        notes=(
            *(_line(plan, held, part) for part in Held if held.of(part)),
            "a lower bound: activations and buffers come on top",
            *(f"of which {line}" for line in _exceeds_memory_largest(held)),
            *share_notes(plan.target),
        ),
        help=_exceeds_memory_help(plan, held),
        target=plan.target.name,
    )


def _line(plan: ShardingPlan, held: Memory, part: Held) -> str:
    """Return one line of the sum: "12.0 GiB  optimizer state: 32 arrays x2 of f32"."""
    figures = held.of(part)
    count = counted(sum(figure.arrays.count for figure in figures), "array")
    copies = f" x{figures[0].copies}" if figures[0].copies > 1 else ""
    dtypes = ", ".join(dict.fromkeys(figure.arrays.dtype for figure in figures))
    total = binary_bytes(sum(figure.bytes for figure in figures))
    return f"{total}  {part.value}: {count}{copies} of {dtypes}{_further(plan, part)}"


def _further(plan: ShardingPlan, part: Held) -> str:
    """Return how `state:` splits it further than the parameters, if it does."""
    state, axes = plan.spec.state, state_axes(plan.spec, plan.mesh)
    parts = {"zero1": {Held.MOMENTS}, "zero2": {Held.GRADIENTS, Held.MOMENTS}}
    if state is None or not axes or part not in parts.get(state.optimizer, set()):
        return ""
    return f", {state.optimizer} over {listed(axes)}"


def _exceeds_memory_largest(held: Memory) -> tuple[str, ...]:
    sizes: dict[str, int] = {}
    for figure in held.figures:
        for path in figure.arrays.paths:
            sizes[path] = sizes.get(path, 0) + figure.bytes // figure.arrays.count
    return largest(sizes.items(), least=held.bytes // PARTS)


def _exceeds_memory_help(plan: ShardingPlan, held: Memory) -> str:
    """Return what would fit, computed; or how many devices it takes at the least."""
    assert held.hbm_bytes is not None
    devices = plan.mesh.device_count
    if held.global_bytes > held.hbm_bytes * devices:
        least = -(-held.global_bytes // held.hbm_bytes)
        return (
            f"it needs at least {least} such devices, with every array sharded over all of them,"
            f" not {devices}"
        )
    options = [
        f"{text} makes it {binary_bytes(fit.bytes)}" for text, fit in _what_ifs(plan) if fit.fits
    ]
    if options:
        return "; or ".join(options[:3])
    axes = [axis.name for axis in plan.mesh.axes if axis.size > 1]
    further = memory(plan, over=axes)
    if further.fits:
        return f"splitting every array over all mesh axes makes it {binary_bytes(further.bytes)}"
    return (
        f"all arrays over all {devices} devices are {binary_bytes(held.global_bytes / devices)},"
        " but their dimensions do not divide so: change the sizes, or take more devices"
    )


def _what_ifs(plan: ShardingPlan) -> Iterator[tuple[str, Memory]]:
    """Yield what one change would make of it."""
    state = plan.spec.state
    if state is not None:
        for optimizer in ("zero1", "zero2"):
            if state.optimizer < optimizer:
                policy = replace(state, optimizer=optimizer)
                yield quote.setting("state", ("optimizer", optimizer)), memory(plan, state=policy)
    for axis in plan.mesh.axes:
        if axis.size > 1:
            what = f"splitting every array over `{axis.name}` as well"
            yield what, memory(plan, over=(axis.name,))
    if memory(plan).of(Held.MOMENTS):
        entry = MemoryRule(Pattern(f"{OPT_STATE}/**"), "pinned_host")
        spec = replace(plan.spec, memory=(entry, *plan.spec.memory))
        kind = entry.memory
        yaml, dsl = f'{{"{entry.pattern}": {kind}}}', f"{{ {entry.pattern} : {kind} }}"
        what = quote.either(f"`memory: {yaml}`", f"`memory {dsl}`")
        yield what, memory(replace(plan, spec=spec))


# dominant-array


class _Heavy(NamedTuple):
    """One array on one target where it outweighs all others.

    Attributes:
      held: bytes that a device holds.
      total: bytes of the model.
      free: mesh axes that would divide it: axis, dimension, bytes of a shard then.
    """

    plan: ShardingPlan
    arrays: Alike
    held: int
    total: int
    free: tuple[tuple[str, int, int], ...]

    @property
    def share(self) -> float:
        """Return the share of a device's bytes."""
        return self.arrays.shard_bytes / self.held


def dominant_array(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each array that outweighs all others, on the target where most."""
    found: dict[str, list[_Heavy]] = {}
    for plan in context.plans:
        groups = plan.alike
        held = sum(arrays.device_bytes for arrays in groups)
        total = sum(arrays.total_bytes for arrays in groups)
        for arrays in groups:
            is_most = 2 * arrays.shard_bytes > held and 2 * arrays.bytes < total
            if is_most and is_large(arrays.shard_bytes, held):
                free = tuple(one_axis_more(plan, arrays))
                if free and not _is_allowed(context, arrays):
                    heavy = _Heavy(plan, arrays, held, total, free)
                    found.setdefault(arrays.first.param.path, []).append(heavy)
    for targets in found.values():
        yield _dominant_array_finding(sorted(targets, key=lambda heavy: -heavy.share))


def _is_allowed(context: Context, arrays: Alike) -> bool:
    """Say whether the array is whole, and an entry of `replicate:` allows that."""
    path = arrays.first.param.path
    return arrays.is_replicated and path in allowed_paths(context.spec, [path])


def _dominant_array_finding(targets: Sequence[_Heavy]) -> Diagnostic:
    plan, arrays, held, total, free = targets[0]
    sharding = arrays.first
    axis, dim, then = min(free, key=lambda option: option[2])
    name = arrays.dims[dim].logical_axis or f"dim {dim}"
    return point(
        codes.DOMINANT_ARRAY,
        f"`{sharding.param.path}` {sharding.param} is {percent(arrays.bytes, total)} of the model,"
        f" and {percent(arrays.shard_bytes, held)} of what a device of target"
        f" `{plan.target.name}` holds",
        sharding.named_at,
        "named here" if sharding.matched else "this array",
        notes=(
            f"{binary_bytes(arrays.shard_bytes)} of {binary_bytes(held)} per device, as"
            f" {sharding.partition_spec}",
            f"not in use, and dividing it: {listed(option[0] for option in free)}",
            *_others(targets[1:]),
        ),
        help=f"split `{name}` over `{axis}` as well: {binary_bytes(then)} per device"
        + f"; or say under {quote.section('replicate:')} that it should be replicated"
        * arrays.is_replicated,
        target=plan.target.name if len(targets) == 1 else None,
        arrays=arrays.paths,
        bytes=arrays.device_bytes,
    )


def _others(targets: Sequence[_Heavy]) -> tuple[str, ...]:
    shares = (
        f"{percent(heavy.arrays.shard_bytes, heavy.held)} on `{heavy.plan.target.name}`"
        for heavy in targets
    )
    return (f"also {', '.join(shares)}",) if targets else ()


# needless-replicate


def needless_replicate(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of the spec itself whose arrays are all split."""
    entries, plans = context.spec.replicate, context.shared_plans
    if not entries or not plans:
        return
    whole = {
        path
        for plan in plans
        for arrays in plan.alike
        if arrays.is_replicated
        for path in arrays.paths
    }
    matcher = path_matcher(tuple(entry.pattern for entry in entries))
    matched = by_key((at, path) for path in context.paths for at in matcher.all_matches(path))
    for position, paths in sorted(matched.items()):
        if context.is_own(entries[position].pattern.span) and whole.isdisjoint(paths):
            yield _needless_replicate_finding(entries[position], paths, len(plans))


def _needless_replicate_finding(entry: Replicate, paths: list[str], targets: int) -> Diagnostic:
    where = " on every target" if targets > 1 else ""
    return point(
        codes.NEEDLESS_REPLICATE,
        f"`{entry.pattern}` allows replication, but every array it matches is sharded{where}",
        entry.pattern.span or entry.span,
        "allows nothing",
        notes=(described(paths),),
        help="remove it; to replicate the arrays, give their axes a rule `AXIS -> none`",
    )


# pinned-large


#: Places that are shown.
_PINNED_LARGE_SHOWN = 4


def pinned_large(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for all large arrays that are pinned; targets that agree share it."""
    found: dict[tuple[str, ...], list[tuple[ShardingPlan, tuple[Layers, ...]]]] = {}
    for plan in context.shared_plans:
        pinned = whole_layers(context, plan, _is_pinned)
        groups = tuple(tuple(sorted(layers, key=_order)) for layers in pinned)
        if groups:
            paths = tuple(each.param.path for group in groups for each in group)
            found.setdefault(paths, []).append((plan, groups))
    for paths, targets in found.items():
        plan, groups = targets[0]
        names = [each.target.name for each, _ in targets]
        yield with_cost(_pinned_large_finding(context, plan, groups, names), context, paths)


def _order(sharding: ParamSharding) -> tuple[tuple[int, int, str], ...]:
    return natural(sharding.param.path)


def _is_pinned(sharding: ParamSharding) -> bool:
    """Say whether `none` is the first that rules or an override say of every dimension."""
    matched = sharding.matched
    if isinstance(matched, Override) and matched.because:
        return False
    dims = [dim for dim in sharding.dims if dim.size != 1]
    return bool(dims) and all(map(_is_pin, dims))


def _is_pin(dim: DimSharding) -> bool:
    taken = dim.taken
    if taken is None or len(dim.attempts) > 1:
        return False
    return taken.is_none and taken.kind is not Kind.SMALL and not taken.is_of_preset


def _pinned_large_finding(
    context: Context, plan: ShardingPlan, groups: Sequence[Layers], names: Sequence[str]
) -> Diagnostic:
    arrays = [sharding for group in groups for sharding in group]
    size = sum(sharding.param.bytes for sharding in arrays)
    share = percent(size, plan.held_bytes)
    most = max(groups, key=lambda group: group[0].param.bytes * len(group))
    is_all = len(arrays) == len(plan.arrays)
    pattern = "**" if is_all else as_one(sharding.param.path for sharding in most)
    return Diagnostic(
        codes.PINNED_LARGE,
        f"{binary_bytes(size)} of arrays, {share} of what a device holds, are replicated by"
        f" `none` on {named('target', names)}",
        labels_at(
            *((span, "pinned here") for span in _places(context, groups)[:_PINNED_LARGE_SHOWN])
        ),
        notes=largest((sharding.param.path, sharding.param.bytes) for sharding in arrays),
        help=f"split an axis of them over {listed(a.name for a in plan.mesh.axes if a.size > 1)};"
        f" or say why: {quote.replicate(pattern, 'REASON')}",
        target=only(names),
    )


def _places(context: Context, groups: Sequence[Layers]) -> list[Span]:
    """Return where the rules and overrides stand, the spec's own first."""
    found: dict[Span | None, None] = {}
    for first, *_ in groups:
        if first.is_stated and first.named_at is not None:
            found.setdefault(first.named_at)
        else:
            found.update((dim.taken.span, None) for dim in first.dims if dim.taken is not None)
    places = (span for span in found if span is not None)
    return sorted(places, key=lambda span: (not context.is_own(span), span.start))


# step-exceeds-memory


_STEP_EXCEEDS_MEMORY_SHOWN = 5


def step_exceeds_memory(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose devices have too little memory for the step."""
    if cost.memory.fits is False and memory(cost.plan).fits:
        yield _step_exceeds_memory_finding(cost)


def _step_exceeds_memory_finding(cost: Cost) -> Diagnostic:
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
        notes=(", ".join(parts), *_step_exceeds_memory_largest(cost), *share_notes(cost.target)),
        help=searchable(_step_exceeds_memory_help(cost), cost),
    )


def _step_exceeds_memory_largest(cost: Cost) -> Iterator[str]:
    for tensor in cost.memory.peak[:_STEP_EXCEEDS_MEMORY_SHOWN]:
        name = f"{tensor.array.name} " if tensor.array.name else ""
        why = f": {tensor.why}" if tensor.why else ""
        yield f"{binary_bytes(tensor.bytes)}  {name}{tensor.array}, {tensor.place}{why}"


def _step_exceeds_memory_help(cost: Cost) -> str:
    """Return what would make room, by what the step makes."""
    held = cost.memory
    made = sum(part.bytes for part in (held.activations, held.temporaries) if part)
    room = (held.hbm_bytes or 0) - held.total.bytes + made
    kept = held.activations.bytes if held.activations else 0
    if (alike := _alike(cost)) is not None:
        return alike
    if room <= 0:
        return "shard the arguments of the step over more mesh axes, or use more devices"
    less = (
        f"use more microbatches: at most {percent(room, made)} of the batch fits by this estimate;"
        " or use more mesh axes in the rules of activations"
    )
    return f"{less}; or keep less for the backward pass (`jax.checkpoint`)" if kept else less


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
    if large is None or saved < held.total.bytes - (held.hbm_bytes or 0):
        return None
    tensor, whole, idle = large
    name = whole.name or str(whole)
    return (
        f"shard {name}, {tensor.place}, over {listed(idle)}: their devices all compute the same,"
        " and the rest fits by this estimate"
    )
