"""What a step holds on one device: what it is given, exactly, and what it makes.

The arguments of a step lie as they lie, tiles of a TPU filled up; that part is exact. What is alive
at once of the values that a traced step makes is a model of the compiler's fusion and order
(`programs/peak`); of a step that a spec states it is a floor: a compiler may hold more. A value
counts from the tick that makes it to the last that reads it, and the peak is the tick at which most
bytes are alive.

So the parts of the peak are floors together: a moment with more gradients may have fewer
activations.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from shardspec.analysis import accuracy
from shardspec.analysis import memory as memories
from shardspec.analysis.accuracy import EVEN, SURE, Interval, Mode, fits_probability, interval
from shardspec.analysis.memory import Figure, Held, limit, memory
from shardspec.diagnostics.words import binary_bytes, by_key
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Shape, Target, array_bytes
from shardspec.records import STATED

if TYPE_CHECKING:
    from shardspec.ir.step import Stages, StageTag, Step, StepArgument, StepTensor

#: How well a figure is known, the best first: counted, told by a compiler, worked out by a model
#: of the machine, of an array whose sharding nothing states, or at the least so much.
Basis = Literal["exact", "compiled", "modelled", "guess", "floor"]
_BASES: tuple[Basis, ...] = ("exact", "compiled", "modelled", "guess", "floor")
#: What marks a figure of each basis: `=`, `x` of a compiler, `~`.
MARKS: dict[Basis, str] = {
    "exact": "=",
    "compiled": "x",
    "modelled": "~",
    "guess": "~",
    "floor": "~",
}


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes on one device, and how well they are known."""

    bytes: int
    basis: Annotated[Basis, STATED] = "exact"

    @property
    def mark(self) -> str:
        """Return `=`, `~` or `x`."""
        return MARKS[self.basis]

    def times(self, share: float) -> Amount:
        """Return a share of it."""
        return self if share == 1 else Amount(round(self.bytes * share), self.basis)

    def __str__(self) -> str:
        """Return `= 1.25 GiB`, its basis before it."""
        return f"{self.mark} {binary_bytes(self.bytes)}"


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What one device holds while a step runs; None for what only a step could tell.

    Attributes:
      gradients: those alive at the peak; without a step, all of them by `state:`.
      activations: what the forward pass made and the backward pass will read, at the peak.
      temporaries: everything else that is alive at the peak.
      unstated: what a step that a spec states makes beside that, by others like it: norms,
        activation functions, copies.
      host: what lies in the memory of its host; no part of the total.
      hbm_bytes: what a device has for a program; None where that is not known, or is the host's.
      hbm_share: the share of the device that this is, where JAX allocates one.
      peak: what is alive at the peak, the largest first.
      is_partial: whether the step holds more, which could not be counted.
      is_refused: whether the compiler gave up for lack of memory.
      interval: where a compiler's total is in nine of ten steps; None where it is known, or nothing
        was learned of the target's devices.
      fits_probability: how likely a device has room, by the same rows.
      decided_at: how likely it has to be for `fits` to be said, and not to be for the contrary.
      pipeline: the schedule that this is under, and of which stage: of that which holds most.

    Invariants:
      sum: `total` is the sum of the parts; its basis is that of the part that is known worst.
    """

    parameters: Amount
    gradients: Amount | None = None
    optimizer: Amount | None = None
    batch: Amount | None = None
    caches: Amount | None = None
    other: Amount | None = None
    activations: Amount | None = None
    temporaries: Amount | None = None
    unstated: Amount | None = None
    host: Amount | None = None
    hbm_bytes: int | None = None
    hbm_share: float | None = None
    peak: tuple[StepTensor, ...] = ()
    is_partial: bool = False
    is_refused: bool = False
    interval: Interval | None = None
    fits_probability: float | None = None
    decided_at: float = SURE
    pipeline: str = ""

    @property
    def parts(self) -> dict[str, Amount]:
        """Return the parts that are known, by name, in the order in which they are shown."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        del found["host"]
        return {name: part for name, part in found.items() if isinstance(part, Amount)}

    @property
    def total(self) -> Amount:
        """Return the sum of the parts."""
        return _sum(self.parts.values())

    @property
    def is_empty(self) -> bool:
        """Say whether no array is counted, on the device or on its host."""
        return not self.total.bytes and self.host is None

    @property
    def is_too_large(self) -> bool:
        """Say whether what a step surely holds is more than a device has room for.

        What a model says that it makes may be too much.
        """
        sure = [each for each in self.parts.values() if each.basis != "modelled"]
        return self.is_refused or memories.has_room(_sum(sure).bytes, self.hbm_bytes) is False

    @property
    def fits(self) -> bool | None:
        """Say whether a device has room for the step; None where that is unknown.

        What is more than there is room for does not fit. Else `fits_probability` decides: of a
        traced step where nine in ten alike would go the same way, since a compiler can be asked of
        the others; of a stated one where most would. Nothing counted says nothing.
        """
        if self.is_too_large:
            return False
        if self.is_empty or self.is_partial or self.hbm_bytes is None:
            return None
        likely = self.fits_probability
        if likely is None or likely >= self.decided_at:
            return True
        return False if likely <= 1 - self.decided_at else None


def step_memory(plan: ShardingPlan, step: Step | None = None) -> StepMemory:
    """Return what a device holds: in a step, or else of parameters and the spec's `state:`."""
    if step is None:
        return _by_plan(plan)
    return _held(plan.target, step, step.stages, _fullest(plan.target, step))


def grown(held: StepMemory, more: int, mode: Mode, target: Target) -> StepMemory:
    """Return what a traced step holds that makes some bytes more."""
    made = 0 if held.temporaries is None else held.temporaries.bytes
    return _likely(replace(held, temporaries=Amount(made + more, "modelled")), mode, target)


def held_bytes(shape: Shape, dtype: str, target: Target) -> Amount:
    """Return what an array takes on a device: with its tiles filled up, where that is a TPU.

    A floor for the dtypes whose tiles are not known here.
    """
    return _held_by(shape, dtype, memories.is_tiled(target))


@lru_cache(maxsize=1 << 14)
def _held_by(shape: Shape, dtype: str, is_tiled: bool) -> Amount:
    bare = array_bytes(shape, dtype)
    if not is_tiled:
        return Amount(bare)
    tiled = memories.tiled_bytes(shape, dtype)
    return Amount(bare, "floor") if tiled is None else Amount(tiled)


def _sum(amounts: Iterable[Amount]) -> Amount:
    found = list(amounts)
    worst = max((_BASES.index(each.basis) for each in found), default=0)
    return Amount(sum(each.bytes for each in found), _BASES[worst])


def _by_plan(plan: ShardingPlan) -> StepMemory:
    held = memories.memory(plan)
    found: dict[memories.Held, Amount] = {}
    for kind in memories.Held:
        amounts = [_figure_amount(figure, plan.target) for figure in held.of(kind)]
        if amounts or plan.spec.state is not None:
            found[kind] = _sum(amounts)
    return StepMemory(
        found.get(memories.Held.PARAMETERS, Amount(0)),
        found.get(memories.Held.GRADIENTS),
        found.get(memories.Held.MOMENTS),
        caches=found.get(memories.Held.CACHES) if plan.spec.caches else None,
        host=Amount(held.host_bytes) if held.on_host else None,
        hbm_bytes=memories.limit(plan.target),
        hbm_share=memories.share_of(plan.target),
    )


def _figure_amount(figure: memories.Figure, target: Target) -> Amount:
    one = held_bytes(figure.arrays.shard_shape, figure.arrays.dtype, target)
    return Amount(one.bytes * figure.arrays.count * figure.copies, one.basis)


def _fullest(target: Target, step: Step) -> int:
    """Return the stage that has least room, of those that a device may be of."""
    if step.stages is None:
        return 0
    held = {each: _held(target, step, step.stages, each) for each in step.stages.extremes}
    return max(held, key=lambda s: (-(held[s].fits_probability or 1), held[s].total.bytes))


def _told(stages: Stages, stage: int) -> str:
    count = stages.in_flight(stage)
    kept = f"{count:.3g} {'microbatch' if count == 1 else 'microbatches'} in flight"
    return f"{stages.schedule}, stage {stage + 1} of {stages.count}, {kept}"


def _held(target: Target, step: Step, stages: Stages | None = None, stage: int = 0) -> StepMemory:
    """Return what a device of a stage holds, or a device where there are none."""

    def share(tag: StageTag) -> float:
        return 1 if stages is None else stages.held(tag, stage)

    given = [(each, share(each.stage)) for each in step.arguments]
    host = [round(e.array.bytes * e.count * part) for e, part in given if e.is_on_host]
    host += _moved(step, stages, stage)
    roles = by_key(
        (e.role, _argument_amount(e, target).times(part)) for e, part in given if not e.is_on_host
    )
    sizes = _sizes(target, step, stages, stage)
    at, _ = highest((each.born, each.dies, size) for each, size in sizes)
    alive = [(each, size) for each, size in sizes if each.born <= at <= each.dies and size]
    kinds = _Kinds(step)
    parts = kinds.sums(alive)
    parts["activations"] += kinds.kept(sizes, stages, stage)
    is_told = step.tensors or step.source != "compiler"
    basis: Basis = "modelled" if any(each.part for each in step.tensors) else "floor"
    made = {name: Amount(size, basis) for name, size in parts.items()} if is_told else {}
    found = StepMemory(
        parameters=_sum(roles.get("parameter", ())),
        optimizer=_sum(roles.get("optimizer", ())),
        batch=_sum(roles.get("batch", ())),
        caches=_sum(roles.get("cache", ())),
        other=_sum(roles.get("other", ())),
        host=Amount(sum(host)) if host else None,
        hbm_bytes=memories.limit(target),
        hbm_share=memories.share_of(target),
        peak=tuple(each for each, _ in sorted(alive, key=lambda pair: -pair[1])),
        is_partial=bool(step.uncounted("memory")),
        is_refused=False,
        pipeline="" if stages is None else _told(stages, stage),
        decided_at=EVEN if step.source == "spec" else SURE,
        interval=None,
        fits_probability=None,
        **made,
    )
    return _with_interval(found, step, target)


def _with_interval(held: StepMemory, step: Step, target: Target) -> StepMemory:
    """Return what a step holds, with how well such a figure is known."""
    if target.hardware is None or step.source == "compiler":
        return held
    if step.source == "spec":
        return _likely_stated(held, step, target.hardware.chip.platform)
    return _likely(held, mode_of(step), target)


def _likely(held: StepMemory, mode: Mode, target: Target) -> StepMemory:
    """Return what a traced step holds, with how well such a figure is known."""
    if target.hardware is None:
        return held
    platform, total = target.hardware.chip.platform, held.total.bytes
    within = interval(total, platform, mode, "memory")
    given = total - sum(held.parts[name].bytes for name in _MADE if name in held.parts)
    return replace(
        held,
        interval=within and within._replace(low=max(within.low, given)),
        fits_probability=fits_probability(total, held.hbm_bytes, platform, mode),
    )


def _likely_stated(held: StepMemory, step: Step, platform: str) -> StepMemory:
    """Return what a stated step holds, with how much more than its lines state.

    Layers that keep all they make keep as much again and more: norms, activation functions, copies.
    What is kept where layers are computed again is known; what one of them makes then is not.
    """
    keeps_all, mode = not any(op.phase == "remat" for op in step.ops), mode_of(step)
    parts = ["temporaries", "activations"] if keeps_all else ["temporaries"]
    made = sum(part.bytes for name, part in held.parts.items() if name in parts)
    within, known = interval(made, platform, mode, "made"), held.total.bytes - made
    often = accuracy.middle(platform, mode, "made")
    if within is None or often is None or not made:
        return held
    room = None if held.hbm_bytes is None else max(0, held.hbm_bytes - known)
    likely = fits_probability(made, room, platform, mode, "made")
    around = Interval(known + within.low, known + within.high)
    unstated = Amount(round(made * max(0.0, often - 1)), "modelled")
    return replace(held, unstated=unstated, interval=around, fits_probability=likely)


#: Parts that a model works out; what a step is given is known.
_MADE = ("gradients", "activations", "temporaries")


def mode_of(step: Step) -> Mode:
    """Return whether a step trains or serves: whether it has a backward pass."""
    return "train" if any(op.phase == "backward" for op in step.ops) else "serve"


def _argument_amount(argument: StepArgument, target: Target) -> Amount:
    one = held_bytes(argument.array.shard_shape, argument.array.dtype, target)
    basis: Basis = "guess" if argument.is_guess and one.basis == "exact" else one.basis
    return Amount(one.bytes * argument.count, basis)


def _tensor_bytes(tensor: StepTensor, target: Target) -> int:
    array = tensor.array
    held = held_bytes(array.shard_shape, array.dtype, target).bytes
    return (held if tensor.bytes == array.bytes else tensor.bytes) * tensor.count


def highest(lives: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the first tick at which most is alive, and how much, of lives as (born, dies, bytes).

    >>> highest([(0, 2, 10), (2, 5, 10), (4, 5, 5)])
    (2, 20)
    """
    changes: dict[int, int] = defaultdict(int)
    for born, dies, size in lives:
        changes[born] += size
        changes[dies + 1] -= size
    best = held = at = 0
    for tick in sorted(changes):
        held += changes[tick]
        if held > best:
            best, at = held, tick
    return at, best


class Life(NamedTuple):
    """A value that a step makes: alive from the tick `born` to before the tick `ends`."""

    tensor: StepTensor
    bytes: int
    part: str
    born: int
    ends: int


@dataclass(frozen=True, slots=True)
class Made:
    """What a step makes on one device, over its clock.

    Attributes:
      kept: bytes of activations that the other microbatches of a pipeline keep all the while.

    Invariants:
      peak: the most of them are those of `step_memory`.
    """

    lives: tuple[Life, ...]
    kept: int = 0

    def over(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield the bytes of each part, from each tick on at which one of them changes."""
        born = ((each.born, (each.part, each.bytes)) for each in self.lives)
        ends = ((each.ends, (each.part, -each.bytes)) for each in self.lives)
        changes = by_key((*born, *ends))
        held = dict.fromkeys(_MADE, 0) | {"activations": self.kept}
        for tick in sorted(changes):
            for part, size in changes[tick]:
                held[part] += size
            yield tick, dict(held)


def made_of(step: Step, target: Target) -> Made:
    """Return what a step makes on a device: of a pipeline, on one of its fullest stage."""
    stages, stage, kinds = step.stages, _fullest(target, step), _Kinds(step)
    sizes = _sizes(target, step, stages, stage)
    lives = (Life(each, size, kinds.of(each), each.born, each.dies + 1) for each, size in sizes)
    return Made(tuple(each for each in lives if each.bytes), kinds.kept(sizes, stages, stage))


def _sizes(
    target: Target, step: Step, stages: Stages | None, stage: int
) -> list[tuple[StepTensor, int]]:
    """Return the values that a step makes, each with its bytes on a device of a stage."""
    share = (lambda _: 1) if stages is None else (lambda tag: stages.held(tag, stage))
    return [
        (each, 0 if each.moves else round(_tensor_bytes(each, target) * share(each.stage)))
        for each in step.tensors
    ]


def _moved(step: Step, stages: Stages | None, stage: int) -> list[int]:
    """Return the bytes that are kept in the memory of the host until the backward pass."""
    kept = [each for each in step.tensors if each.moves]
    if stages is None:
        return [each.bytes for each in kept]
    flying = stages.in_flight(stage)
    return [round(each.bytes * stages.held(each.stage, stage) * flying) for each in kept]


class _Kinds:
    """What values are to the step: gradients of its parameters, kept activations, or neither."""

    def __init__(self, step: Step) -> None:
        """Note how parameters lie, and when the backward pass begins."""
        parameters = [each.array for each in step.arguments if each.role == "parameter"]
        self._weights = {(each.dtype, each.shape) for each in parameters}
        self._shapes = {each.shape for each in parameters}
        self._stated = {each.name for each in parameters} if step.source == "spec" else set()
        hosted = (each for each in step.arguments if each.is_on_host and each.role != "parameter")
        self._hosted = {each.path for each in hosted} - {""}
        backward = [op.at for op in step.ops if op.phase in ("backward", "remat")]
        self._backward = step.turned or min(backward, default=step.end + 1)

    def of(self, tensor: StepTensor) -> str:
        array = tensor.array
        if tensor.part:
            return tensor.part
        if array.name in self._hosted:
            return "temporaries"
        if tensor.phase in ("backward", "update"):
            is_kept = array.name in self._stated and tensor.born < tensor.dies  # in any dtype
            if is_kept or (array.dtype, array.shape) in self._weights:
                return "gradients"
        is_kept = tensor.phase == "forward" and tensor.dies >= self._backward
        is_weight = array.shape in self._shapes or array.name in self._stated
        return "activations" if is_kept and not is_weight else "temporaries"

    def sums(self, alive: Iterable[tuple[StepTensor, int]]) -> dict[str, int]:
        """Return the bytes of each part, of what is alive."""
        parts = dict.fromkeys(_MADE, 0)
        for tensor, size in alive:
            parts[self.of(tensor)] += size
        return parts

    def kept(
        self, every: Iterable[tuple[StepTensor, int]], stages: Stages | None, stage: int
    ) -> int:
        """Return what the microbatches keep that are in flight, and not at work."""
        others = 0.0 if stages is None else stages.in_flight(stage) - 1
        if others <= 0:
            return 0
        return round(sum(size for each, size in every if self.is_kept(each)) * others)

    def is_kept(self, tensor: StepTensor) -> bool:
        """Say whether a value is kept from the forward pass of a microbatch to its backward."""
        return tensor.born < self._backward and self.of(tensor) == "activations"


# How many sequences fit: the largest caches that a device's memory has room for.
#
# Parameters stay as they are, and one axis of the caches grows, in whole shards, until the next
# would not fit. Tiles of TPUs are filled up, as they are in `cost`. It is a ceiling: what a step
# makes counts as it is today where the step is known, and what the compiler needs comes on top.


#: Axes along which caches grow, and what one of each is.
GROWING = ("batch", "cache_batch", "pages", "cache_length", "cache_sequence")

_PAGES, _PAGE_SIZE, _LENGTH = "pages", "page_size", "cache_length"

#: Beyond any cache: a search ends there.
_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Room:
    """The largest size of one axis of the caches at which a device holds all.

    Attributes:
      axis: one of `GROWING`.
      size: what it is.
      most: whole shards; 0 where not even one has room.
      tokens: in so many pages, where the caches have a dimension `page_size`.
      sequences: of the `cache_length` that `axes` states, in so many pages.
    """

    axis: str
    size: int
    most: int
    tokens: int | None = None
    sequences: int | None = None

    def __str__(self) -> str:
        """Return `batch up to 1,216 (is 256)`."""
        what = f"{self.axis} up to {self.most:,}"
        if self.tokens is not None:
            what += f", {self.tokens:,} tokens"
        if self.sequences is not None:
            what += f", {self.sequences:,} sequences"
        return f"{what} (is {self.size:,})"


def rooms(plan: ShardingPlan, step: StepMemory | None = None) -> tuple[Room, ...]:
    """Return how far each axis of the caches may grow alone; () where memory is not known.

    What lies in the memory of a host counts on neither side.

    Args:
      step: what a device holds in a step, where that is known.

    Invariants:
      fits: a device holds caches of `most`, and not of one shard more.
    """
    most = limit(plan.target)
    figures = memory(plan).on_device
    caches = tuple(figure for figure in figures if figure.held is Held.CACHES)
    if most is None or not caches:
        return ()
    free = most - sum(_figure_bytes(figure, plan) for figure in figures if figure not in caches)
    if step is not None and step.caches is not None:
        free = most - (step.total.bytes - step.caches.bytes)
    names = dict.fromkeys(name for each in caches for name in each.arrays.dims.logical_axes)
    return tuple(_room(axis, caches, free, plan) for axis in GROWING if axis in names)


def room_lines(plan: ShardingPlan, step: StepMemory | None = None) -> Iterator[str]:
    """Yield `room for batch up to 1,216 (is 256)`, a line for each axis."""
    for room in rooms(plan, step):
        yield f"room for {room}"


def _room(axis: str, caches: tuple[Figure, ...], free: int, plan: ShardingPlan) -> Room:
    dims = [dim for each in caches for dim in each.arrays.dims if dim.logical_axis == axis]
    step = math.lcm(*(dim.ways * dim.unit for dim in dims))
    counts = range(step, _MOST, step)
    fit = bisect_right(counts, free, key=lambda count: _cache_bytes(axis, count, caches, plan))
    most, sizes = fit * step, {axis.name: axis.size for axis in plan.spec.logical_axes}
    tokens = _page_size(caches) * most if axis == _PAGES and _page_size(caches) else None
    length = sizes.get(_LENGTH)
    sequences = tokens // length if tokens is not None and length else None
    return Room(axis, dims[0].size or 0, most, tokens, sequences)


def _page_size(caches: tuple[Figure, ...]) -> int:
    """Return the tokens of a page, 0 where the caches do not say."""
    dims = (dim for each in caches for dim in each.arrays.dims)
    return next((dim.size or 0 for dim in dims if dim.logical_axis == _PAGE_SIZE), 0)


def _cache_bytes(axis: str, size: int, caches: tuple[Figure, ...], plan: ShardingPlan) -> int:
    """Return the bytes of the caches on a device with an axis of another size."""
    return sum(_figure_bytes(figure, plan, axis, size) for figure in caches)


def _figure_bytes(figure: Figure, plan: ShardingPlan, axis: str = "", size: int = 0) -> int:
    arrays = figure.arrays
    dims = (
        replace(dim, size=size) if axis and dim.logical_axis == axis else dim for dim in arrays.dims
    )
    shape = tuple(dim.shard_size or 0 for dim in dims)
    return held_bytes(shape, arrays.dtype, plan.target).bytes * arrays.count * figure.copies
