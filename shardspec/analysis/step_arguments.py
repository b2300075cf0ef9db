"""What a step is given: arrays, what the optimizer keeps, a batch; and what no line reads of it."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.analysis.memory import Held, memory
from shardspec.analysis.step_layout import StepLayout, stacked_array, step_array
from shardspec.diagnostics.words import counted, percent
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.step import Role, StepArgument


def arguments(layout: StepLayout) -> Iterator[StepArgument]:
    """Yield what a step is given: what of it is on the host, and what it may overwrite."""
    plan, flow = layout.plan, layout.flow
    is_training = flow.step.mode == "train"
    for each in plan.arrays:
        array = step_array(each.dims, each.param.shape, each.param.dtype, each.path)
        is_cache, count = each.param.is_cache, layout.count_of(each.path)
        role: Role = "optimizer" if each.is_state else "cache" if is_cache else "parameter"
        is_frozen = each.training is not None and not each.is_trained
        is_donated = (is_training and not is_frozen) or is_cache
        is_on_host = each.memory_kind is not None
        yield StepArgument(each.path, role, array, is_donated, True, is_on_host, count)
    if is_training and plan.spec.state is not None:
        yield from _moments(layout)
    for value in flow.inputs:
        dtype = "s32" if flow.is_index(value) else None
        role = "batch" if is_training or dtype is not None else "cache"
        if role == "cache" and flow.is_one_of(plan.spec.caches, value):
            continue
        array = layout.array(value, dtype)
        array = stacked_array(array, value.rounds) if value.rounds > 1 else array
        yield StepArgument(value.name, role, array, role == "cache", True)


def _moments(layout: StepLayout) -> Iterator[StepArgument]:
    """Yield what the optimizer keeps, by `state:`, where the plan lists none of it."""
    plan = layout.plan
    for figure in memory(plan).figures:
        alike = figure.arrays
        if figure.held is not Held.MOMENTS or alike.first.is_state:
            continue
        is_on_host = alike.memory_kind is not None
        for each in alike.shardings * figure.copies:
            array = step_array(alike.dims, alike.shape, alike.dtype, each.path)
            path = f"opt_state/{each.path}" if is_on_host else each.path
            count = layout.count_of(each.path)
            yield StepArgument(path, "optimizer", array, True, True, is_on_host, count)


def notes(layout: StepLayout) -> Iterator[str]:
    """Yield what is not counted: optimizer state, sends of stages, arrays that no line reads."""
    flow, arrays = layout.flow, parameters_of(layout.plan)
    if flow.step.mode == "train" and not _has_state(layout.plan):
        yield (
            "no optimizer state is counted, since the spec has no `state:`;"
            " `state: {optimizer: same}` counts Adam's moments in f32, `state: {moments: 0}` none"
        )
    loops = dict.fromkeys(op.loop for op in flow.ops)
    stages = dict.fromkeys(axis for loop in loops for axis in layout.stages(loop))
    for axis in stages if flow.step.pipeline is None else ():
        yield (
            f"layers are split over `{axis}`: what stages pass on and wait for is not counted"
            " without `pipeline` in `step`"
        )
    for loop in loops:
        turns, microbatches = layout.turns(loop), flow.microbatches
        if layout.stages(loop) and turns > 1:
            yield (
                f"{turns} turns of {turns - microbatches + 1} stages for {microbatches}"
                f" microbatches: each works for nothing in {1 - microbatches / turns:.0%}"
            )
    count_of = layout.count_of
    sizes = {each.path: each.param.bytes * count_of(each.path) for each in arrays}
    left = [each for each in arrays if each.path not in flow.used]
    size, whole = sum(sizes[each.path] for each in left), sum(sizes.values())
    if 100 * size > whole:
        count = sum(count_of(each.path) for each in left)
        largest = max(left, key=lambda each: each.param.bytes)
        yield (
            f"no line of `step:` reads {counted(count, 'array')}, {percent(size, whole)} of"
            " the bytes,"
            f" {largest.path} the largest: what they compute is not counted"
        )


def _has_state(plan: ShardingPlan) -> bool:
    return plan.spec.state is not None or any(each.is_state for each in plan.arrays)


def parameters_of(plan: ShardingPlan) -> tuple[ParamSharding, ...]:
    """Return the arrays of a plan but for caches."""
    return tuple(each for each in plan.arrays if not each.param.is_cache)
