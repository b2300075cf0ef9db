"""What a check may read: one spec, and its plan on each target that is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from shardspec.analysis.coverage import Coverage, coverage, held_bytes, is_large
from shardspec.diagnostics import Span
from shardspec.diagnostics.words import by_key
from shardspec.ir.plan import Dims, ParamSharding, ShardingPlan
from shardspec.ir.spec import LogicalAxis, Param, Spec
from shardspec.language.settings import names_in

if TYPE_CHECKING:
    from shardspec.analysis.cost import Cost
    from shardspec.analysis.step_values import Flow
    from shardspec.ir.step import Step

Given = ParamSpec("Given")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Context:
    """A spec with its plans; what checks ask for again and again is worked out once.

    Attributes:
      all_plans: one per target, all over the same arrays; empty where the spec has no target.
      costs: those of a step on targets that it was traced for; without a step, none.
    """

    spec: Spec
    all_plans: tuple[ShardingPlan, ...] = field(repr=False)
    costs: tuple[Cost, ...] = field(default=(), repr=False)

    @cached_property
    def plans(self) -> tuple[ShardingPlan, ...]:
        """Return the plans whose mesh is sound: what a faulty one leads to is no finding."""
        return tuple(plan for plan in self.all_plans if plan.target.is_sound)

    @cached_property
    def held(self) -> dict[str, int]:
        """Return what a device of each target holds, as `held_bytes` counts; asked for often."""
        return {plan.target.name: held_bytes(plan) for plan in self.all_plans}

    @cached_property
    def covered(self) -> dict[str, Coverage]:
        """Return what each target leaves whole."""
        return {plan.target.name: coverage(plan) for plan in self.all_plans}

    @cached_property
    def steps(self) -> tuple[tuple[Cost, Step], ...]:
        """Return the costs of steps, each with its step."""
        return tuple((cost, cost.step) for cost in self.costs if cost.step is not None)

    @cached_property
    def flow(self) -> Flow:
        """Return `step:` held against the arrays."""
        from shardspec.analysis.step_flow import flow_of  # most specs have no step

        return flow_of(self.spec, self.first)

    @cached_property
    def padded_axes(self) -> frozenset[str]:
        """Return the logical axes that `policy: {indivisible: pad}` pads, or would."""
        from shardspec.resolve.resolver import padded, padding  # asked for by few findings

        arrays = next((plan.arrays for plan in self.all_plans), ())
        made, _ = padded(padding(self.spec), tuple(each.param for each in arrays))
        return frozenset(axis.name for axis in made.logical_axes if axis.padding)

    def is_large(self, size: int, target: str) -> bool:
        """Say whether so many bytes are large beside all that a device of a target holds."""
        return is_large(size, self.held[target])

    @cached_property
    def shared_plans(self) -> tuple[ShardingPlan, ...]:
        """Return those of the plans that have several devices to share the arrays."""
        return tuple(plan for plan in self.plans if plan.mesh.device_count > 1)

    def once(
        self,
        work: Callable[Concatenate[Context, Given], Found],
        *given: Given.args,
        **rest: Given.kwargs,
    ) -> Found:
        """Return what a function makes of this context; it is called once."""
        key = (work, given, *rest.items())
        if key not in self._worked_out:
            self._worked_out[key] = work(self, *given, **rest)
        return cast("Found", self._worked_out[key])

    @cached_property
    def _worked_out(self) -> dict[object, object]:
        return {}

    def own_first(self, *places: tuple[Span | None, str]) -> list[tuple[Span | None, str]]:
        """Return places with what to say of them, those in the spec itself first."""
        return sorted(places, key=lambda place: not self.is_own(place[0]))

    @cached_property
    def first(self) -> tuple[ParamSharding, ...]:
        """Return the arrays of one plan: for checks that no mesh can change."""
        return self.all_plans[0].arrays if self.all_plans else ()

    def having(self, is_wanted: Callable[[Dims], bool]) -> tuple[ParamSharding, ...]:
        """Return those arrays of one plan whose dimensions are wanted."""
        return self.all_plans[0].having(is_wanted) if self.all_plans else ()

    @cached_property
    def params(self) -> tuple[Param, ...]:
        """Return the arrays."""
        return tuple(sharding.param for sharding in self.first)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the arrays."""
        return tuple(sharding.param.path for sharding in self.first)

    @cached_property
    def axes(self) -> dict[str, LogicalAxis]:
        """Return the logical axes that the spec declares, by name."""
        return {axis.name: axis for axis in self.spec.logical_axes}

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Return the names of `let`."""
        return frozenset(number.name for number in self.spec.lets)

    def is_own(self, span: Span | None) -> bool:
        """Say whether something stands in the spec itself, and not in what it extends."""
        return span is not None and span.source == self.spec.source

    @cached_property
    def axes_in_rules(self) -> frozenset[str]:
        """Return every logical axis that has a rule."""
        return frozenset(rule.logical_axis for rule in self.spec.axis_rules)

    @cached_property
    def axes_in_use(self) -> frozenset[str]:
        """Return every logical axis that an array, a pattern or an activation names."""
        return frozenset(name for names in self._given_names() for name in names if name)

    @cached_property
    def axes_stated(self) -> frozenset[str]:
        """Return every logical axis that `axes` declares, here or in what the spec extends."""
        return frozenset((*self.axes, *self.spec.inherited_axes, *self.spec.axes_of_code))

    @cached_property
    def axes_heard_of(self) -> frozenset[str]:
        """Return the logical axes that something has, or that a rule may be for all the same."""
        return self.axes_in_use | self.axes_stated

    @cached_property
    def axes_placeable(self) -> frozenset[str]:
        """Return every logical axis that a rule or an `axes` entry of the spec knows."""
        return self.axes_in_rules | frozenset(self.axes)

    def paths_with(self, axis: str) -> list[str]:
        """Return the paths of the arrays with a dimension of a logical axis."""
        return self._paths_by_axis.get(axis, [])

    @cached_property
    def _paths_by_axis(self) -> dict[str, list[str]]:
        return _by_axis((each.param.path, each.dims.named) for each in self.first)

    def may_be_same(self, axis: str, other: str) -> bool:
        """Say whether two axes have a size in common, or one has none that is known."""
        sizes, others = self._sizes.get(axis), self._sizes.get(other)
        return not sizes or not others or not sizes.isdisjoint(others)

    @cached_property
    def _sizes(self) -> dict[str, set[int]]:
        sizes: dict[str, set[int]] = {}
        for name, stated in self.axes.items():
            if stated.size is not None:
                sizes.setdefault(name, set()).add(stated.size)
        for dims in dict.fromkeys(sharding.dims for sharding in self.first):
            for dim in dims:
                if dim.logical_axis and dim.size is not None:
                    sizes.setdefault(dim.logical_axis, set()).add(dim.size)
        return sizes

    def activations_with(self, axis: str) -> list[str]:
        """Return the names of the activations with a dimension of a logical axis."""
        return self._activations_by_axis.get(axis, [])

    @cached_property
    def _activations_by_axis(self) -> dict[str, list[str]]:
        named = ((each.name, each.logical_axes) for each in self.spec.activations)
        return _by_axis((name, tuple(dict.fromkeys(filter(None, axes)))) for name, axes in named)

    def _given_names(self) -> Iterator[tuple[str | None, ...]]:
        yield from names_in(self.spec)
        yield from {sharding.dims.logical_axes for sharding in self.first}


def _by_axis(named: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Return the names of what has each logical axis."""
    return by_key((axis, name) for name, axes in named for axis in axes)
