"""What one step costs on one of many meshes, quickly: what no mesh changes is worked out once.

The program of `step:` is read once. Arrays that no mesh tells apart - those of layers, of one shape
and with names from one entry - are resolved and counted as one. Meshes that differ in where they
lie inside their slices alone have the same step, in memory and in what operations take, and only
the walks of its collectives anew. So the figures are those of `cost_of`, up to the rounding of sums
in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import Stated, stated_step
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import StepLayout
from shardspec.analysis.step_memory import StepMemory, step_memory
from shardspec.analysis.step_time import Work, step_time, step_work
from shardspec.analysis.step_values import Flow
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import grouped
from shardspec.ir.plan import Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import Mesh, Params, Spec, Target
from shardspec.resolve.resolver import ArrayResolver, array_resolver
from shardspec.topology.placement import Order


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
    """What is known of all placements of a mesh."""

    plan: ShardingPlan
    stated: Stated
    memory: StepMemory
    work: Work | None
    share: Share | None


@dataclass(slots=True, eq=False)
class Evaluator:
    """A spec with a step, asked what it costs on one target after the other.

    Attributes:
      faults: of the program, which then costs nothing.
    """

    spec: Spec
    params: Params
    flow: Flow = field(init=False)
    _kinds: Params = field(init=False)
    _counts: Mapping[str, int] = field(init=False)
    _resolver: ArrayResolver = field(init=False)
    _last: tuple[Target | None, _Known | None] = (None, None)

    def __post_init__(self) -> None:
        self._resolver = array_resolver(self.spec, Target("", Mesh()))
        arrays = self._resolver.resolve_all(self.params)
        self.flow = flow_of(self.spec, arrays)
        kinds = grouped(arrays, _kinds(self.spec, self.flow))
        self._kinds = tuple(alike[0].param for alike in kinds.values())
        self._counts = {alike[0].path: len(alike) for alike in kinds.values()}

    @property
    def faults(self) -> tuple[Diagnostic, ...]:
        """Return the lines of the program that cannot be."""
        return self.flow.faults

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
        spec = self.spec
        if order is not None and order != spec.policy.order:
            spec = replace(spec, policy=replace(spec.policy, order=order))
        plan = replace(known.plan, target=target, spec=spec)
        time = step_time(plan, known.stated.step, work=known.work)
        return Cost(plan, known.stated.step, known.memory, time, known.stated.tokens)

    def _worked_out(self, target: Target) -> _Known | None:
        resolver = self._resolver.on(target)
        plan = ShardingPlan(self.spec, target, resolver.resolve_all(self._kinds))
        layout = StepLayout(plan, self.flow, resolver, self._counts)
        stated = stated_step(plan, layout)
        if stated is None:
            return None
        memory, hardware = step_memory(plan, stated.step), target.hardware
        work = None if hardware is None else step_work(stated.step, hardware.chip)
        return _Known(plan, stated, memory, work, self._share_of(layout))

    @property
    def share(self) -> Share | None:
        """Return what a device of the last target has of a microbatch; None where there is none."""
        known = self._last[1]
        return None if known is None else known.share

    def _share_of(self, layout: StepLayout) -> Share | None:
        values = [*self.flow.inputs, *(op.result for op in self.flow.ops)]
        for value in values:
            if "batch" in value.names:
                at = value.names.index("batch")
                dim = layout.dims(value)[at]
                refused = [a.ways for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE]
                copies = max(refused, default=1) // dim.ways
                return Share(value.shape[at] / dim.ways, max(1, copies))
        return None


def _unplaced(target: Target) -> Target:
    """Return a target without what says where on the machine the axes of its mesh lie.

    What is worked out once is worked out of this target, so it can go by nothing that is left out.
    """
    axes = (replace(each, submesh=None, over=(), auto=False) for each in target.mesh.axes)
    return replace(target, mesh=replace(target.mesh, axes=tuple(axes)), devices=())


def _kinds(spec: Spec, flow: Flow) -> Callable[[ParamSharding], Hashable]:
    """Return what tells arrays apart of which a mesh may make something else.

    What an array derives from, where its state lies, and whether it is trained goes by its path.
    """
    if spec.derives or spec.memory or spec.training:
        return lambda each: each.path
    readers: dict[str, list[int]] = {}
    weights = dict.fromkeys(op.weight for op in flow.ops if op.weight is not None)
    for number, weight in enumerate(weights):
        for each in weight.arrays:
            readers.setdefault(each.path, []).append(number)

    def kind(each: ParamSharding) -> Hashable:
        param = each.param
        named = (each.origin, each.matched, each.logical_axes, each.mismatch)
        read_by = tuple(readers.get(each.path, ()))
        return (param.shape, param.dtype, param.is_cache, named, read_by)

    return kind
