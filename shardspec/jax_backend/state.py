"""Optimizer state on the devices: its shardings, and the plan that says why.

Shardings are made fast: parameters that nothing tells apart share an answer, and so does their
state. The plan takes the arrays one by one, with their paths. Both ask the same `StateResolver`,
and an error that the first meets is told by the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics import codes as c
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.jax_backend import stray_state
from shardspec.jax_backend.boxes import (
    VariableMaker,
    box_maker,
    box_test,
    is_box,
    nnx_value,
    unboxed,
)
from shardspec.jax_backend.owners import Owners, alike_owners, each_owner, owners_of_plan
from shardspec.jax_backend.paths import Place
from shardspec.jax_backend.shardings import TreePlacer, collector_at_rest
from shardspec.jax_backend.state_answers import Answer, each_answer
from shardspec.jax_backend.tree_plan import raise_errors, raise_faults
from shardspec.lints import ambiguous_state, state_not_split, unrelated_state
from shardspec.resolve.resolver import ArrayResolver
from shardspec.resolve.state import Relation, StateSharding
from shardspec.resolve.state_plan import StatePlan
from shardspec.resolve.state_resolver import StateResolver, state_resolver

#: Findings about an array of state that the spec, or the array itself, names.
_OF_OWN_NAMES = frozenset(
    (
        c.RANK_MISMATCH,
        c.REPEATED_AXIS,
        c.INDIVISIBLE,
        c.CUT_UNIT,
        c.SIZE_MISMATCH,
        c.UNKNOWN_LOGICAL_AXIS,
    )
)

#: Warnings about a state, which a spec may make errors.
_WARNED_OF = (c.STATE_NOT_SPLIT, c.UNRELATED_STATE, c.REPLICATED_LARGE)


@dataclass(frozen=True, slots=True)
class StatePlacer:
    """The state of one spec on one mesh."""

    arrays: ArrayResolver
    placer: TreePlacer
    _params: dict[Any, ParamSharding | None] = field(default_factory=dict, repr=False)

    def shardings(
        self, state: Any, params: Any, params_at: Place | None = None, *, boxed: bool = True
    ) -> Any:
        """Return `state` with a sharding for every array, None for a leaf that is none.

        Args:
          params: a tree, or the plan of one.
          params_at: where they are in `state`, if it holds them as well.
          boxed: whether the boxes of Flax stay around the shardings.

        Raises:
          ShardspecError: a parameter is at fault, or an array of state is.
        """
        with collector_at_rest():
            owners = self._owners(params)
            resolver = state_resolver(self.arrays, owners.groups)
            found = _Shardings(self.placer)
            try:
                answers = each_answer(state, owners, resolver, params_at)
                placed = list(map(found.of, answers))
            except ShardspecError:
                self.plan(state, params, params_at)  # says which array
                raise
            result = _put_back(state, placed, boxed)
        if _may_be_at_fault(found.distinct.values(), resolver):
            raise_errors(self.plan(state, params, params_at).diagnostics)
        return result

    def plan(self, state: Any, params: Any, params_at: Place | None = None) -> StatePlan:
        """Return the answer for every array of a state, with its reason and all findings."""
        arrays = self.arrays
        is_plan = isinstance(params, ShardingPlan)
        with collector_at_rest():
            owners = owners_of_plan(params) if is_plan else each_owner(arrays, params)
            resolver = state_resolver(arrays, owners.groups)
            answers = [*each_answer(state, owners, resolver, params_at)]
        found = StatePlan(arrays.spec, arrays.target, tuple(a for a in answers if a is not None))
        lost = pipeline.leveled(arrays.spec, stray_state.findings(found, owners.groups))
        return replace(found, diagnostics=(*lost, *state_findings(found)))

    def gradients(self, params: Any) -> Any:
        """Return `params` with the sharding of each gradient, None for a leaf that is no array."""
        import jax

        if isinstance(params, ShardingPlan):
            raise TypeError("gradients have the structure of the parameters; a plan has none")
        owners = self._owners(params)
        resolver = state_resolver(self.arrays, owners.groups)
        known = [self.placer.named(resolver.gradient(owner)) for owner in owners.groups]
        structure: Any = jax.tree_util.tree_structure(params)
        return structure.unflatten(
            None if position is None else known[position] for position in owners.of_nodes
        )

    def _owners(self, params: Any) -> Owners:
        if isinstance(params, ShardingPlan):
            return owners_of_plan(params)
        arrays = self.arrays
        alike = alike_owners(arrays, self.placer.template, params, self._params)
        if alike is not None:
            return alike
        owners = each_owner(arrays, params)
        distinct = {(id(each.dims), each.origin, each.mismatch): each for each in owners.groups}
        raise_faults(arrays, tuple(distinct.values()), params)
        return owners


def _put_back(state: Any, placed: list[Any], boxed: bool) -> Any:
    """Return `state` with `placed` in place of its leaves."""
    import jax

    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(state, is_leaf=box_test())
    makers = {kind: box_maker(kind) for kind in set(map(type, nodes)) if is_box(kind)}
    if makers and not boxed:
        structure = jax.tree_util.tree_structure(unboxed(state))
    elif makers and all(isinstance(make, VariableMaker) for make in makers.values()):
        return structure.unflatten(_refilled(nodes, makers, iter(placed)))
    elif makers:
        structure = jax.tree_util.tree_structure(state)
    return structure.unflatten(placed)


def _refilled(
    nodes: Sequence[Any], makers: Mapping[type, Any], flat: Iterator[Any]
) -> Iterator[Any]:
    """Yield the nodes, Variables of NNX among them with what `flat` has for their leaves.

    Those are made faster one by one than by the structure of the tree.
    """
    import jax

    for node in nodes:
        make = makers.get(type(node))
        if make is None:
            yield next(flat)
            continue
        content = nnx_value(node)
        if hasattr(content, "shape"):
            yield make(node, next(flat))
            continue
        structure: Any = jax.tree_util.tree_structure(content)
        yield make(node, structure.unflatten([next(flat) for _ in range(structure.num_leaves)]))


@dataclass(frozen=True, slots=True)
class _Shardings:
    """The shardings of one state, and the answers they come from.

    Attributes:
      distinct: the answers by their ids, which they keep.
    """

    placer: TreePlacer
    distinct: dict[int, StateSharding] = field(default_factory=dict)
    _by_id: dict[int, Any] = field(default_factory=dict)

    def of(self, answer: Answer) -> Any:
        """Return the sharding for an answer."""
        if answer is None:
            return None
        if id(answer) not in self.distinct:
            self.distinct[id(answer)] = answer
            self._by_id[id(answer)] = self.placer.named(answer.sharding.dims)
        return self._by_id[id(answer)]


def _may_be_at_fault(answers: Collection[StateSharding], resolver: StateResolver) -> bool:
    """Say whether the findings about these answers may hold an error."""
    spec = resolver.arrays.spec
    doubts = [Diagnostic(code, "") for code in _WARNED_OF]
    if any(diagnostic.is_error for diagnostic in pipeline.leveled(spec, doubts)):
        return True
    if any(answer.relation is Relation.AMBIGUOUS for answer in answers):
        return True
    if stray_state.may_be_stray(answers):
        return True
    own = tuple(answer for answer in answers if answer.relation is Relation.OWN)
    sample = StatePlan(spec, resolver.arrays.target, own)
    return any(diagnostic.is_error for diagnostic in state_findings(sample)) if own else False


def state_findings(plan: StatePlan) -> tuple[Diagnostic, ...]:
    """Return everything the checks have to say about the arrays of a state."""
    checks = (ambiguous_state, state_not_split, unrelated_state)
    about_state = [diagnostic for each in checks for diagnostic in each.findings(plan)]
    own = tuple(found.sharding for found in plan.arrays if found.relation is Relation.OWN)
    named = pipeline.findings(plan.spec, [ShardingPlan(plan.spec, plan.target, own)]) if own else ()
    kept = (diagnostic for diagnostic in named if diagnostic.code in _OF_OWN_NAMES)
    return (*pipeline.leveled(plan.spec, about_state), *kept)
