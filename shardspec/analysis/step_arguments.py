"""What a step is given: arrays, what the optimizer keeps, a batch; and what no line reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from shardspec.analysis.memory import Held, memory
from shardspec.analysis.step_layout import StepLayout, place_of, stacked_array, step_array
from shardspec.analysis.step_values import APART, Flow
from shardspec.diagnostics.words import binary_bytes, counted, percent
from shardspec.ir.plan import ParamSharding, ShardingPlan, stacked_names
from shardspec.ir.spec import Spec
from shardspec.ir.step import Figure, Place, Role, StepArgument, Unknown

#: Dimensions of an array that products read, beside those of stacked layers.
_MATRIX = 2


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
        yield StepArgument(
            *(each.path, role, array, is_donated, True, is_on_host, count),
            stage=layout.tag_of(each.path),
        )
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
            yield StepArgument(
                *(path, "optimizer", array, True, True, is_on_host, count),
                stage=layout.tag_of(each.path),
            )


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
    for axis in stages if layout.pipeline is None and not flow.step.is_buffered else ():
        if layout.plan.mesh.sizes[axis] > 1:
            yield (
                f"layers are split over `{axis}`, and so are activations: how layers come to the"
                " devices that run them is not counted"
            )
    if layout.pipeline is not None and layout.pipeline.is_assumed:
        yield (
            f"{layout.pipeline.count} stages of layers are taken for a pipeline that runs as"
            f" {layout.pipeline.schedule}: `pipeline` in `step` says another schedule"
        )
    for loop in loops:
        turns, microbatches = layout.turns(loop), flow.microbatches
        if layout.stages(loop) and turns > 1:
            yield (
                f"{turns} turns of {turns - microbatches + 1} stages for {microbatches}"
                f" microbatches: each is idle in {1 - microbatches / turns:.0%}"
            )
    left = unread(layout.plan.spec, flow, arrays, layout.counts)
    if left.arrays and not left.is_much:
        yield f"{left.told}: what they compute is not counted"


@dataclass(frozen=True, slots=True)
class Unread:
    """Matrices that no line of `step:` reads, so that nothing of what they compute is counted.

    Attributes:
      count: how many, those that one stands for among them.
      bytes: of them that a token meets; `whole_bytes` of all matrices. An expert counts by the
        tokens that it takes.
    """

    arrays: tuple[ParamSharding, ...]
    count: int
    bytes: float
    whole_bytes: float

    @property
    def is_much(self) -> bool:
        """Say whether figures without them say nothing of the step."""
        return self.bytes > MOST_UNREAD * self.whole_bytes

    @property
    def told(self) -> str:
        """Return how many there are, and the largest."""
        return (
            f"no line of `step` reads {counted(self.count, 'array')},"
            f" {percent(self.bytes, self.whole_bytes)} of the bytes of all matrices,"
            f" {max(self.arrays, key=lambda each: each.param.bytes).path} the largest"
        )


#: The share of the bytes of matrices above which what no line reads makes figures lower bounds.
MOST_UNREAD = 0.05


def unread(
    spec: Spec, flow: Flow, arrays: Iterable[ParamSharding], counts: Mapping[str, int] = {}
) -> Unread:
    """Return the matrices that no line of a step reads.

    A matrix has two dimensions beside those of stacked layers. Vectors, such as norms and biases,
    multiply nothing that counts.

    Args:
      counts: how many arrays one of them stands for; one where it is not there.
    """
    stacked = stacked_names(spec)
    found = [
        (each, counts.get(each.path, 1))
        for each in arrays
        if not (each.is_state or each.param.is_cache)
        and sum(name not in stacked for name in each.logical_axes) >= _MATRIX
    ]
    left = [pair for pair in found if pair[0].path not in flow.used]
    shares = _shares(spec, flow, [each for each, _ in found])
    sizes = [
        sum(each.param.bytes * count * shares(each) for each, count in some)
        for some in (left, found)
    ]
    return Unread(tuple(each for each, _ in left), sum(count for _, count in left), *sizes)


def _shares(
    spec: Spec, flow: Flow, arrays: Sequence[ParamSharding]
) -> Callable[[ParamSharding], float]:
    """Return what says which share of the tokens of a step an array multiplies."""
    experts = spec.step.experts if spec.step is not None else None
    apart = len({found[0] for each in arrays if (found := APART.search(each.path))})

    def share(each: ParamSharding) -> float:
        count = apart if APART.search(each.path) else 1
        for name, size in zip(each.logical_axes, each.param.shape, strict=True):
            count = size if name in flow.experts else count
        return 1 if experts is None or not count else min(1, experts.choices / count)

    return share


def unknown(layout: StepLayout, given: Iterable[StepArgument]) -> Iterator[Unknown]:
    """Yield what makes the figures of a step lower bounds: much that no line of it reads."""
    plan, flow = layout.plan, layout.flow
    left = unread(plan.spec, flow, plan.arrays, layout.counts)
    if left.is_much:
        what = f"the work of {counted(left.count, 'array')}"
        yield Unknown(what, left.told, get_args(Figure), place_of(flow.step.span))
    yield from transfers(given, place_of(flow.step.span))


def transfers(given: Iterable[StepArgument], place: Place) -> Iterator[Unknown]:
    """Yield what a step moves between a device and its host: no link's speed is known."""
    held = [each for each in given if each.is_on_host]
    if held:
        sizes = (
            sum(each.array.bytes * each.count for each in held if each.is_donated or not is_written)
            for is_written in (False, True)
        )
        read, written = map(binary_bytes, sizes)
        reason = (
            f"{read} are read from the host's memory and {written} written back per device, and the"
            " speed of the link to the host is not known"
        )
        yield Unknown("transfers to and from the host", reason, ("time",), place)


def _has_state(plan: ShardingPlan) -> bool:
    return plan.spec.state is not None or any(each.is_state for each in plan.arrays)


def parameters_of(plan: ShardingPlan) -> tuple[ParamSharding, ...]:
    """Return the arrays of a plan but for caches."""
    return tuple(each for each in plan.arrays if not each.param.is_cache)
