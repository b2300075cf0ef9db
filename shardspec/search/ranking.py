"""What candidates cost, the best first, beside what the spec has today.

Plain enumeration: a bound by FLOPs is the same for all meshes of a machine, and one by compute and
memory comes after most of the work is done; it would save a third of the time at most, and leave
out the rows below the best (docs/search.md). Of placements of the same sizes the fastest stands for
all.

A search: what is asked, and what was found; the one way in for the command line and Python.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from shardspec.analysis import spec_step
from shardspec.analysis import step_time as times
from shardspec.analysis.comparison import Change, changes, group
from shardspec.analysis.cost import Cost
from shardspec.analysis.memory import Gradients, gradients_of
from shardspec.analysis.spec_step import stated_cost
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import StepLayout
from shardspec.analysis.step_memory import Amount, StepMemory, step_memory
from shardspec.analysis.step_time import Scale, StepTime, Work, scaled, step_time, step_work
from shardspec.analysis.step_values import Flow
from shardspec.diagnostics.words import by_key, counted, grouped, listed
from shardspec.ir.calibration import Calibration
from shardspec.ir.plan import Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Params, Spec, Target
from shardspec.ir.step import Unknown
from shardspec.resolve.resolver import ArrayResolver, array_resolver, padded, pads, resolve
from shardspec.search import variants as space
from shardspec.search.roles import RoleSet
from shardspec.search.variants import Candidate, Freedom, Over, Refusal, Variant, variants
from shardspec.topology.placement import Order, Placement, place


class Share(NamedTuple):
    """The part of a microbatch that a device has.

    Attributes:
      sequences: of the microbatch.
      copies: how many devices have the same ones, and compute the same, since the mesh axes that a
        rule asks for do not divide the microbatch.
    """

    sequences: float
    copies: int = 1


class _Known(NamedTuple):
    """What is known of all placements of a mesh.

    Attributes:
      p99: the same under the load of the 99th percentile, where experts are uneven.
    """

    plan: ShardingPlan
    stated: spec_step.Stated
    memory: StepMemory
    work: Work | None
    share: Share | None
    spread: spec_step.Spread | None = None
    p99: _Known | None = None


@dataclass(slots=True, eq=False)
class Evaluator:
    """A spec with a step, asked what it costs on one target after the other.

    A program with faults costs nothing.
    """

    spec: Spec
    params: Params
    flow: Flow = field(init=False)
    _layouts: dict[tuple[Gradients, float], StepLayout] = field(default_factory=dict)
    _plans: dict[Mesh, tuple[ArrayResolver, ShardingPlan]] = field(default_factory=dict)
    _kinds: Params = field(init=False)
    _counts: Mapping[str, int] = field(init=False)
    _resolver: ArrayResolver = field(init=False)
    _arrays: tuple[ParamSharding, ...] = field(init=False)
    _flows: dict[float, Flow] = field(default_factory=dict)
    _last: tuple[Target | None, _Known | None] = (None, None)

    def __post_init__(self) -> None:
        self._resolver = array_resolver(self.spec, Target("", Mesh()))
        self._arrays = arrays = self._resolver.resolve_all(self.params)
        self.flow = self._flows[1.0] = flow_of(self.spec, arrays)
        kinds = grouped(arrays, _kinds(self.spec, self.flow))
        self._kinds = tuple(alike[0].param for alike in kinds.values())
        self._counts = {alike[0].path: len(alike) for alike in kinds.values()}

    def under(self, spec: Spec, is_laid_alike: bool) -> Evaluator:
        """Return one for a spec whose program is the same, and perhaps all of its layouts."""
        made = copy(self)
        made.spec, made._last = spec, (None, None)
        made.flow = replace(self.flow, step=spec.step or self.flow.step)
        if not is_laid_alike:
            made._resolver = array_resolver(spec, Target("", Mesh()))
            made._layouts, made._plans = {}, {}
        return made

    def beside(self, other: Evaluator) -> None:
        """Lay arrays out once for another program of the same rules and arrays."""
        if other._kinds == self._kinds:
            self._plans = other._plans

    def cost(self, target: Target, order: Order | None = None) -> Cost | None:
        """Return what a step costs on a target; None where the spec has no step that can be.

        The plan has one array of each kind, and the step counts them.

        Args:
          order: in place of that of the policy.
        """
        unplaced = _unplaced(target)
        if unplaced != self._last[0]:
            self._last = unplaced, self._worked_out(unplaced)
        known = self._last[1]
        if known is None:
            return None
        spec, policy = self.spec, self.spec.policy
        if order not in (None, policy.order):
            spec = replace(spec, policy=replace(policy, order=order))
        plan = replace(known.plan, target=target, spec=spec)
        made, p99 = _timed(plan, known), known.p99
        if known.spread is None or p99 is None:
            return made
        return spec_step.unevenly(known.spread, made, _timed(plan, p99))

    def _worked_out(self, target: Target) -> _Known | None:
        layout, balance = self._layout(target), spec_step.balance_of(self.spec)
        spread = None if balance is None else spec_step.spread_on(layout, balance)
        if spread is None:
            return self._laid(layout)
        expected, p99 = (self._laid(self._layout(target, load)) for load in spread.balance)
        return expected and expected._replace(spread=spread, p99=p99)

    def _layout(self, target: Target, load: float = 1.0) -> StepLayout:
        """Return how the program lies, of a device with so many even shares of experts' tokens."""
        key = gradients_of(self.spec, target.mesh), load
        found = self._layouts.get(key)
        if found is None or found.plan.target != target:
            if load not in self._flows:
                self._flows[load] = flow_of(self.spec, self._arrays, load)
            resolver, plan = self._plan(target)
            plan = replace(plan, spec=self.spec)
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = StepLayout(plan, self._flows[load], resolver, self._counts, is_told=False)
            self._layouts[key] = found
        return found.under(self.spec)

    def _plan(self, target: Target) -> tuple[ArrayResolver, ShardingPlan]:
        """Return how arrays lie, and what lays out more of them."""
        found = self._plans.get(target.mesh)
        if found is None or found[1].target != target:
            resolver = self._resolver.on(target)
            plan = ShardingPlan(self.spec, target, resolver.resolve_all(self._kinds))
            if len(self._plans) >= _MOST_LAYOUTS:
                self._plans.clear()
            found = self._plans[target.mesh] = resolver, plan
        return found

    def _laid(self, layout: StepLayout) -> _Known | None:
        plan = layout.plan
        stated = spec_step.stated_step(plan, layout)
        if stated is None:
            return None
        memory, hardware = step_memory(plan, stated.step), plan.target.hardware
        work = (
            None if hardware is None else step_work(stated.step, hardware.chip, known=layout.taken)
        )
        return _Known(plan, stated, memory, work, self._share_of(layout))

    @property
    def share(self) -> Share | None:
        """Return what a device of the last target has of a microbatch; None where there is none."""
        known = self._last[1]
        return None if known is None else known.share

    def _share_of(self, layout: StepLayout) -> Share | None:
        flow = layout.flow
        for value in (*flow.inputs, *(op.result for op in flow.ops)):
            if "batch" in value.names:
                at = value.names.index("batch")
                dim = layout.dims(value)[at]
                refused = [a.ways for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE]
                copies = max(refused, default=1) // dim.ways
                return Share(value.shape[at] / dim.ways, max(1, copies))
        return None


#: What differs from the spec, by word.
Changes = tuple[tuple[str, str], ...]
#: Words of `--over` that no layout goes by, beside how it holds gradients; those that no program
#: does, and those that change neither rules nor arrays.
_SAME_LAYOUTS = ("remat", "gather", "reduce")
_SAME_PROGRAM = (*_SAME_LAYOUTS, "roles", "rules", "rule", "state")
_SAME_ARRAYS = (*_SAME_LAYOUTS, "state", "microbatches", "dtype")
#: Layouts that are kept of a program: those of the sizes that are looked at.
_MOST_LAYOUTS = 8


def _timed(plan: ShardingPlan, known: _Known) -> Cost:
    """Return what a step costs where its mesh lies."""
    time = step_time(plan, known.stated.step, work=known.work)
    return Cost(plan, known.stated.step, known.memory, time, known.stated.tokens)


def _unplaced(target: Target) -> Target:
    """Return a target without what says where on the machine the axes of its mesh lie.

    What is worked out once is worked out of this target, so it can go by nothing that is left out.
    Which axis crosses the network changes what is sent on TPUs alone (`across_slices`).
    """
    is_tpu = target.is_tpu
    axes = (
        MeshAxis(each.name, each.size, each.network if is_tpu else "ici", axis_type=each.axis_type)
        for each in target.mesh.axes
    )
    return replace(target, mesh=Mesh(tuple(axes), target.mesh.wholes), devices=())


def _kinds(spec: Spec, flow: Flow) -> Callable[[ParamSharding], Hashable]:
    """Return what tells arrays apart of which a mesh may make something else.

    What an array derives from, where its state lies, and whether it is trained goes by its path.
    """
    if spec.derives or spec.memory or spec.training:
        return lambda each: each.path
    weights = dict.fromkeys(op.weight for op in flow.ops if op.weight is not None)
    readers = by_key((each.path, at) for at, weight in enumerate(weights) for each in weight.arrays)

    def kind(each: ParamSharding) -> Hashable:
        param = each.param
        named = (each.origin, each.matched, each.logical_axes, each.mismatch)
        read_by = tuple(readers.get(each.path, ()))
        return (param.shape, param.dtype, param.is_cache, named, read_by)

    return kind


By = Literal["time", "latency", "cost", "memory"]

#: How far apart the times of two meshes of one model and machine have to lie, as a share, so that
#: the order is known. What a model gets wrong of both alike does not count, so it is less than
#: `step_time.SPREAD`.
#: Source: measured throughputs of T5 11B (see `topology.walk`), by the step of the example: of 78
#: pairs of runs whose batch divides 65 are in their order, and the other 13 within 6 %.
SAME_MACHINE_SPREAD = 0.06
#: Why a row with an unknown has no rank.
UNKNOWN_ROWS = "something in the step is unknown, so their times are lower bounds"


@dataclass(frozen=True, slots=True)
class SearchRow:
    """What a step costs on one candidate.

    Attributes:
      share: what a device has of a microbatch; None for a step without a batch.
      dollars_per_hour: of the whole machine, where a price is known.
      placements: how many ways to lay these sizes out were looked at.
      unknown: what of the step could not be counted: such a row is never the best.
      pipeline: whose memory it is: the schedule, and the stage that has least room.
      fits: whether a device has room; `fits_probability` how likely it has, where that is known.
    """

    candidate: Candidate
    time: StepTime
    memory: Amount
    hbm_bytes: int | None
    tokens: int | None
    share: Share | None = None
    dollars_per_hour: float | None = None
    placements: int = 1
    unknown: tuple[Unknown, ...] = ()
    fits: bool | None = None
    fits_probability: float | None = None
    pipeline: str = ""

    @property
    def seconds(self) -> float:
        """Return the time of a step."""
        return self.time.step_seconds

    @property
    def pace(self) -> float:
        """Return the seconds of a token, or of a step that has none: what rows are compared by."""
        return self.seconds / (self.tokens or 1)

    @property
    def expected_pace(self) -> float:
        """Return the same by how likely the step runs: what rows are ranked by."""
        return self.pace / (self.fits_probability or 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Return how many tokens all devices go through in a second."""
        is_known = self.tokens and self.seconds and not self.unknown
        return self.tokens / self.seconds if self.tokens and is_known else None

    @property
    def chips(self) -> int:
        """Return the chips of the machine."""
        return self.candidate.hardware.chip_count

    @property
    def calibration(self) -> Calibration | None:
        """Return the measurements that the time stands on; None where it is the catalogue's."""
        made = self.candidate.hardware.chip.calibration
        return made if made is not None and made.is_own else None

    @property
    def dollars_per_step(self) -> float | None:
        """Return what a step costs in money."""
        price = self.dollars_per_hour
        return None if price is None or self.unknown else price * self.seconds / 3600

    @property
    def dollars_per_token(self) -> float | None:
        """Return the same of a token, or of a step that has none."""
        price = self.dollars_per_step
        return None if price is None else price / (self.tokens or 1)

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of a step by what takes them: compute, and each mesh axis."""
        found = {"compute": self.time.compute_seconds}
        for axis in self.time.axes:
            found[axis.mesh_axis] = axis.exposed_seconds
        if self.time.waits_seconds:
            found["waiting stages"] = self.time.waits_seconds
        return found


@dataclass(slots=True, eq=False)
class Searched:
    """How much of one kind of mesh was looked at.

    Attributes:
      sizes: the sizes of its axes that were tried, each in several placements or variants.
    """

    candidates: int = 0
    sizes: set[tuple[tuple[str, int], ...]] = field(default_factory=set)


class Wanted(NamedTuple):
    """What a layout must keep to.

    Attributes:
      fits: whether what is certain not to fit is left out.
      per_device_batch: sequences of a microbatch that a device must have at least.
      latency: seconds that a step may take: of one that serves, those until its tokens are there.
      prices: dollars of a chip hour, by the name of the chip.
      scale: by what all times are multiplied, so that a step that was measured takes what it did.
    """

    fits: bool = False
    max_chips: int | None = None
    per_device_batch: float | None = None
    prices: Mapping[str, float] = {}
    scale: Scale = Scale()
    latency: float | None = None


@dataclass(slots=True, eq=False)
class Ranking:
    """Rows as they come in, and what became of the rest.

    Attributes:
      seen: how many candidates were looked at.
      kinds: the same by roles, None for the axes of the spec's own mesh.
      misplaced: those that cannot lie on their machine.
      unlinked: those that send over links whose speed is not known.
      too_large: those that do not fit, as far as is known, counted with those that stay.
      refused: those with too few sequences on a device.
      too_slow: those whose step takes longer than it may.
      untimed: machines of which the catalogue has no speeds.
    """

    params: Params
    wanted: Wanted
    seen: int = 0
    misplaced: int = 0
    unlinked: int = 0
    too_large: int = 0
    refused: int = 0
    too_slow: int = 0
    untimed: dict[str, None] = field(default_factory=dict)
    kinds: dict[RoleSet | None, Searched] = field(default_factory=dict)
    _evaluators: dict[Changes, Evaluator] = field(default_factory=dict)
    _alike: dict[object, Evaluator] = field(default_factory=dict)
    _paddings: dict[object, Evaluator] = field(default_factory=dict)
    _best: dict[object, SearchRow] = field(default_factory=dict)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return what a copy has: all but the compiled patterns of the evaluators."""
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return None, {**state, "_evaluators": {}, "_alike": {}, "_paddings": {}}

    def row(self, candidate: Candidate) -> SearchRow | None:
        """Return what a candidate costs; None where that is not known."""
        evaluator = self._evaluator(candidate)
        cost = evaluator.cost(candidate.target, candidate.order)
        if cost is None or cost.time is None:
            return None
        price = self.wanted.prices.get(candidate.hardware.chip.name)
        return SearchRow(
            candidate,
            scaled(cost.time, self.wanted.scale.share),
            cost.memory.total,
            cost.memory.hbm_bytes,
            cost.tokens,
            evaluator.share,
            None if price is None else price * candidate.hardware.chip_count,
            unknown=() if cost.step is None else cost.step.unknown,
            fits=cost.memory.fits,
            fits_probability=cost.memory.fits_probability,
            pipeline=cost.memory.pipeline,
        )

    def _evaluator(self, candidate: Candidate) -> Evaluator:
        variant = candidate.variant
        if pads(variant.spec):
            return self._padded(candidate)
        return self._made(variant.changes, variant.spec, candidate.arrays(self.params))

    def _made(self, changes: Changes, spec: Spec, params: Params) -> Evaluator:
        """Return one for a spec: that of the same program, if there is one, and of its layouts.

        A spec that keeps results by their names says what its program may not have.
        """
        known, kept = self._evaluators, () if spec.step is None else spec.step.remat
        if changes in known:
            return known[changes]
        keys = [
            (words, tuple(each for each in changes if each[0] not in words))
            for words in (_SAME_LAYOUTS, _SAME_PROGRAM, _SAME_ARRAYS)
        ]
        layouts, program, arrays = map(self._alike.get, keys)
        is_plain = {*kept} <= {"none", "full", "dots"}
        like = (layouts or program) if is_plain else None
        made = Evaluator(spec, params) if like is None else like.under(spec, like is layouts)
        if arrays is not None and like is not layouts:
            made.beside(arrays)
        known[changes] = made
        if is_plain or not changes:
            self._alike = dict.fromkeys(keys, made) | self._alike
        return made

    def _padded(self, candidate: Candidate) -> Evaluator:
        """Return one for the sizes that a spec which pads has on a mesh."""
        spec, changes = candidate.variant.spec, candidate.variant.changes
        sizes = tuple(candidate.mesh.sizes.items())
        made = self._paddings.get((changes, sizes))
        if made is None:
            own = candidate.arrays(self.params)
            spec, params = padded(spec, own, [candidate.target])
            made = self._made((*changes, ("", f"{spec.multiples}")), spec, params)
            self._paddings[changes, sizes] = made
        return made

    def take(self, candidate: Candidate) -> None:
        """Look at a candidate."""
        self.seen += 1
        kind = self.kinds.setdefault(candidate.variant.roles, Searched())
        kind.candidates += 1
        sizes = tuple(sorted(candidate.mesh.sizes.items()))
        kind.sizes.add(sizes)
        row = self.row(candidate)
        if row is None:
            if not times.is_timed(candidate.hardware.chip):
                self.untimed[str(candidate.hardware)] = None
            elif isinstance(place(candidate.target, candidate.order), Placement):
                self.unlinked += 1
            else:
                self.misplaced += 1
            return
        least = self.wanted.per_device_batch
        if least is not None and row.share is not None and row.share.sequences < least:
            self.refused += 1
            return
        if self.wanted.latency is not None and row.seconds > self.wanted.latency:
            self.too_slow += 1
            return
        self.too_large += row.fits is False
        if row.fits is False and self.wanted.fits:
            return
        key = (sizes, candidate.hardware, candidate.variant.changes)
        best = self._best.get(key)
        count = 1 + (best.placements if best is not None else 0)
        if best is None or _order(row) < _order(best):
            best = row
        self._best[key] = replace(best, placements=count)

    def rows(self, by: By = "time") -> tuple[SearchRow, ...]:
        """Return the rows, the best first; what does not fit, then what is unknown, comes last.

        Of equal layouts under the rules of several roles the spec's own stand, or the first.
        """
        known: dict[object, SearchRow] = {}
        for row in sorted(self._best.values(), key=lambda row: bool(row.candidate.variant.roles)):
            known.setdefault(_layout(row), row)
        rows = sorted(known.values(), key=_KEYS[by])
        return tuple(sorted(rows, key=lambda row: bool(row.unknown)))


def _layout(row: SearchRow) -> object:
    """Return what rows agree in that are one layout: axes larger than 1, time and memory."""
    candidate = row.candidate
    sizes = frozenset((axis.name, axis.size) for axis in candidate.mesh.axes if axis.size > 1)
    beside = tuple(each for each in candidate.variant.changes if each[0] != "roles")
    return sizes, candidate.hardware, beside, f"{row.seconds:.9g}", row.memory.bytes


def _order(row: SearchRow) -> tuple[bool, float, int, str]:
    """Return what placements of the same sizes are chosen by: the plainest of the fastest."""
    asked = sum(axis.submesh is not None for axis in row.candidate.mesh.axes)
    changed = row.candidate.order != row.candidate.variant.spec.policy.order
    return bool(row.unknown), row.seconds, asked + changed, row.candidate.mesh_text


def _by_time(row: SearchRow) -> tuple[object, ...]:
    if row.fits is False:  # by what comes nearest to fitting
        return (True, row.memory.bytes, row.pace, str(row.candidate))
    return (False, row.expected_pace, row.memory.bytes, row.chips, str(row.candidate))


def _by_cost(row: SearchRow) -> tuple[object, ...]:
    price = row.dollars_per_token
    return (row.fits is False, math.inf if price is None else price, *_by_time(row)[1:])


def _by_latency(row: SearchRow) -> tuple[object, ...]:
    return (row.fits is False, row.seconds, *_by_time(row)[1:])


_KEYS: dict[By, Callable[[SearchRow], tuple[object, ...]]] = {
    "time": _by_time,
    "latency": _by_latency,
    "cost": _by_cost,
    "memory": lambda row: (row.memory.bytes, row.pace, row.chips, str(row.candidate)),
}


def pareto(rows: Sequence[SearchRow]) -> tuple[SearchRow, ...]:
    """Return the rows that no other beats in time, memory and chips at once; in their order.

    Invariants:
      front: of two that stay, neither is at least as good in everything and better in something.
      known: what has an unknown beats none.
    """
    front = unbeaten(map(_point, rows), {_point(row) for row in rows if not row.unknown})
    return tuple(row for row in rows if _point(row) in front)


#: What a row takes of time, memory and chips.
Point = tuple[float, int, int]


def unbeaten(points: Iterable[Point], known: Collection[Point]) -> set[Point]:
    """Return the points that no other is as good as in everything, and better in something.

    What beats a point comes before it in order.

    Args:
      known: those that can beat others.
    """
    found: set[Point] = set()
    least: dict[int, int] = {}  # memory of those before, by chips
    for point in sorted(set(points)):
        _, size, chips = point
        if all(size < memory or chips < count for count, memory in least.items()):
            found.add(point)
            if point in known:
                least[chips] = size
    return found


def _point(row: SearchRow) -> Point:
    return row.pace, row.memory.bytes, row.chips


def spread(one: SearchRow, other: SearchRow) -> float:
    """Return how far apart, as a share, two times must lie for their order to be known."""
    same = one.candidate.hardware.chip == other.candidate.hardware.chip
    return SAME_MACHINE_SPREAD if same else max(one.time.spread, other.time.spread)


def is_tie(one: SearchRow, other: SearchRow) -> bool:
    """Say whether the model cannot tell which of two is faster."""
    less, more = sorted((one.pace, other.pace))
    if one.unknown or other.unknown:
        return False
    return more <= less * (1 + spread(one, other))


# beside today's


def parts_changed(before: SearchRow, after: SearchRow) -> tuple[Change, ...]:
    """Return how the parts of the time change, the largest change first.

    Invariants:
      sum: the changes sum to the difference of the steps.
    """
    return changes(before.parts, after.parts)


class Sent(NamedTuple):
    """What is sent for one reason, on two layouts: bytes of a device in a step."""

    kind: str
    mesh_axes: tuple[str, ...]
    carries: str
    before: int
    after: int


def sends(before: Cost, after: Cost) -> tuple[Sent, ...]:
    """Return what is sent otherwise, by operation, axis and array; the largest change first."""
    sides = [_by_reason(cost) for cost in (before, after)]
    names = dict.fromkeys((*sides[0], *sides[1]))
    found = [Sent(*name, sides[0].get(name, 0), sides[1].get(name, 0)) for name in names]
    changed = (each for each in found if each.before != each.after)
    return tuple(sorted(changed, key=lambda each: (-abs(each.after - each.before), each)))


def _by_reason(cost: Cost) -> dict[tuple[str, tuple[str, ...], str], int]:
    found: dict[tuple[str, tuple[str, ...], str], int] = {}
    for row in group(cost.step.collectives if cost.step is not None else ()):
        first = row.collectives[0]
        key = (str(first.kind), first.axes, row.carries[0])
        found[key] = found.get(key, 0) + row.wire_bytes
    return found


#: Candidates that are looked at where nobody says how many.
MOST = 20_000
_MOST_AXES = 16
_NO_STEP = (
    "add `step: {extends: decoder}`, or another of its library: decoder-tied, moe, t5, vit, decode"
    " (`shardspec explain step`)"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a search is asked.

    Attributes:
      target: the mesh and machine of today.
      machines: those to look at; that of the target, where none is named.
      variants: the spec, and what else it might be; the spec as it is comes first.
      most: how many candidates are looked at, at most.
      is_of_code: whether code says what a step computes, and not the spec.
    """

    spec: Spec = field(repr=False)
    params: Params = field(repr=False)
    target: Target
    machines: tuple[Hardware, ...]
    variants: tuple[Variant, ...]
    freedom: Freedom = field(default_factory=Freedom)
    wanted: Wanted = field(default_factory=Wanted)
    most: int = MOST
    by: By = "time"
    is_of_code: bool = False

    def refusal(self) -> Refusal | None:
        """Return why there is nothing to search; None where there is."""
        target, hardware = self.target, self.target.hardware
        if self.spec.step is None and not self.is_of_code:
            return Refusal("the spec does not say what a step computes", _NO_STEP)
        if hardware is None:
            help = "add `hardware: tpu v5p 4x4x4` (or `4 * h100`) to it"
            return Refusal(f"target `{target.name}` is a mesh without a machine", help)
        if len(target.mesh.axes) > _MOST_AXES:
            count = counted(len(target.mesh.axes), "mesh axis")
            return Refusal(f"{count} are too many to choose sizes for", f"at most {_MOST_AXES}")
        if not self.params and not self.is_of_code:
            return Refusal("the spec lists no arrays", "add `arrays:` or `manifest:`")
        largest = max(self.machines, key=lambda each: each.device_count)
        if largest.device_count > space.MOST_DEVICES:
            return Refusal(
                f"`{largest}` has {largest.device_count:,} devices",
                f"a search looks at machines of {space.MOST_DEVICES:,} at most",
            )
        return self._wrong_keep() or (None if self.is_of_code else self._no_program())

    def _wrong_keep(self) -> Refusal | None:
        of_roles = (each.roles.mesh_axes for each in self.variants if each.roles is not None)
        names = dict.fromkeys((*self.target.mesh.names, *itertools.chain(*of_roles)))
        for name in self.freedom.keep:
            if name not in names:
                return Refusal(f"--keep {name}: no mesh axis", f"there are {listed(names)}")
        return None

    def _no_program(self) -> Refusal | None:
        faults = Evaluator(self.spec, self.params).flow.faults
        if not faults:
            return None
        help = faults[0].help or "`shardspec check` says more"
        return Refusal(f"`step:` cannot be read: {faults[0].message}", help)

    @property
    def today(self) -> Candidate:
        """Return the layout that the spec states."""
        return Candidate(self.target, self.spec.policy.order, Variant(self.spec))

    def candidates(self) -> Iterator[Candidate]:
        """Yield the layouts to look at, those nearest to today's first on each machine."""
        most_chips = self.wanted.max_chips
        for hardware in self.machines:
            if most_chips is None or hardware.chip_count <= most_chips:
                yield from space.candidates(self.target, hardware, self.variants, self.freedom)

    @property
    def count(self) -> int:
        """Return how many candidates are looked at."""
        return sum(1 for _ in itertools.islice(self.candidates(), self.most))

    @property
    def is_cut(self) -> bool:
        """Say whether there are more sizes than are ever looked at."""
        roles = dict.fromkeys(each.roles for each in self.variants)
        return any(
            space.mesh_sizes(self.target, machine, self.freedom, each).is_cut
            for machine in self.machines
            for each in roles
        )


class Choice(NamedTuple):
    """What a search may choose, in the words of the command line.

    Attributes:
      over: `mesh,order,remat=full|dots`.
      keep: sizes of mesh axes that stay; none of an axis for today's.
      machines: `tpu v5p 4x4x8`; the target's own where none is named.
      most: how many candidates are looked at, at most.
    """

    over: str = "mesh,order"
    keep: Mapping[str, Sequence[int]] = {}
    machines: Sequence[str] = ()
    most: int = MOST
    by: By = "time"


def asked(
    spec: Spec,
    params: Params,
    target: Target,
    choice: Choice,
    wanted: Wanted | None = None,
    *,
    is_of_code: bool = False,
) -> Question | Refusal:
    """Return what is searched, or why it cannot be.

    Args:
      is_of_code: see `Question`.
    """
    words = space.parse_over(choice.over)
    if isinstance(words, Refusal):
        return words
    made = _variants(spec, words, target.mesh, is_of_code=is_of_code)
    if isinstance(made, Refusal):
        return made
    machines: list[Hardware] = []
    for text in choice.machines:
        machine = space.machine_of(text)
        if isinstance(machine, Refusal):
            return Refusal(f"machine `{text}`: {machine.message}", machine.help)
        machines.append(machine)
    if not machines and target.hardware is not None:
        machines = [target.hardware]
        if "hardware" in words:
            machines += [each.hardware for each in spec.targets if each.hardware is not None]
    freedom = _freedom(spec, target.mesh, words, choice.keep)
    chosen = tuple(dict.fromkeys(machines))
    wanted = wanted or Wanted()
    found = Question(
        spec, params, target, chosen, made, freedom, wanted, choice.most, choice.by, is_of_code
    )
    return found.refusal() or found


def _freedom(spec: Spec, today: Mesh, words: Over, keep: Mapping[str, Sequence[int]]) -> Freedom:
    """Return what is chosen of a mesh: roles choose its sizes and the order of chips, too."""
    sizes = today.sizes
    kept = {axis: found or (sizes.get(axis, 1),) for axis, found in keep.items()}
    if "stages" in words and "mesh" not in words:
        moved = {*space.stage_axes(spec), *space.batch_axes(spec)}
        kept = {axis: (size,) for axis, size in sizes.items() if axis not in moved} | kept
    return Freedom(
        not words.keys().isdisjoint(("mesh", "stages", "roles")),
        not words.keys().isdisjoint(("order", "roles")),
        kept,
        "axes" in words,
    )


def _variants(
    spec: Spec, words: Over, today: Mesh, *, is_of_code: bool
) -> tuple[Variant, ...] | Refusal:
    """Return what a spec might be; code is told numbers of microbatches, and no spec."""
    if not is_of_code:
        return variants(spec, words, today) if spec.step is not None else (Variant(spec),)
    others = {word: each for word, each in words.items() if word != "microbatches"}
    made = variants(spec, others, today)
    if isinstance(made, Refusal) or "microbatches" not in words:
        return made
    return space.with_counts(made, words["microbatches"])


def held_to(question: Question, plan: ShardingPlan, seconds: float) -> Question:
    """Return a search whose times are scaled by what a step took over its prediction.

    Args:
      plan: of the step that was measured.

    Raises:
      ValueError: no time is predicted of it.
    """
    scale = stated_cost(plan).scale(seconds)
    return replace(question, wanted=question.wanted._replace(scale=scale))


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
      today: what the spec's own mesh costs; None where that is not known.
      rows: the best first.
      ranking: what became of all candidates.
      left: whether candidates were left out, since there are more than were to be looked at.
      is_stopped: whether somebody ended the search before its end.
    """

    question: Question
    today: SearchRow | None
    rows: tuple[SearchRow, ...]
    ranking: Ranking = field(repr=False)
    left: bool = False
    is_stopped: bool = False

    def plan(self, row: SearchRow) -> ShardingPlan:
        """Return the layout of every array under a row."""
        candidate = row.candidate
        return resolve(candidate.spec, candidate.target, candidate.arrays(self.question.params))

    def cost(self, row: SearchRow) -> Cost | None:
        """Return the whole of what a row costs, each array by its name."""
        cost = stated_cost(self.plan(row))
        if cost.step is None:
            return None
        share = self.question.wanted.scale.share
        return cost if cost.time is None else replace(cost, time=scaled(cost.time, share))

    def sends(self, row: SearchRow) -> tuple[Sent, ...]:
        """Return what is sent otherwise than today, the largest change first."""
        now = self.today and self.cost(self.today)
        then = self.cost(row)
        return sends(now, then) if now and then else ()

    def best_of_machines(self) -> tuple[SearchRow, ...]:
        """Return the best row of each machine."""
        found: dict[Hardware, SearchRow] = {}
        for row in self.rows:
            found.setdefault(row.candidate.hardware, row)
        return tuple(found.values())


#: Called with the number of each candidate that was looked at.
Tell = Callable[[int], None]


def search(question: Question, tell: Tell | None = None) -> Found:
    """Return what the layouts cost that a question asks about.

    A `KeyboardInterrupt` ends it early, with what is known by then.
    """
    ranking = Ranking(question.params, question.wanted)
    today = ranking.row(question.today)
    left, is_stopped = False, False
    try:
        for number, candidate in enumerate(question.candidates(), 1):
            if number > question.most:
                left = True
                break
            ranking.take(candidate)
            if tell is not None:
                tell(number)
    except KeyboardInterrupt:
        is_stopped = True
    left = left or question.is_cut
    return Found(question, today, ranking.rows(question.by), ranking, left, is_stopped)
