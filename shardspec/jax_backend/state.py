"""Optimizer state on the devices: its shardings, and the plan that says why.

Shardings are made fast: parameters that nothing tells apart share an answer, and so does their
state. The plan takes the arrays one by one, with their paths. Both ask the same `StateResolver`,
and an error that the first meets is told by the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics import codes as c
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.jax_backend import stray_state
from shardspec.jax_backend.boxes import box_maker, box_test, box_value, is_box, is_nnx, nnx_value
from shardspec.jax_backend.owners import (
    Aligned,
    Owners,
    alike_owners,
    each_owner,
    owners_of_plan,
    segments,
)
from shardspec.jax_backend.paths import Place
from shardspec.jax_backend.shardings import TreePlacer, collector_at_rest
from shardspec.jax_backend.state_answers import Answer, alike_answers, answers_of, each_answer
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
                placed = _placed(state, owners, resolver, found, params_at)
            except ShardspecError:
                self.plan(state, params, params_at)  # says which array
                raise
            result = _put_back(state, placed, boxed)
        if _may_be_at_fault(found.distinct, resolver):
            raise_errors(self.plan(state, params, params_at).diagnostics)
        return result

    def plan(self, state: Any, params: Any, params_at: Place | None = None) -> StatePlan:
        """Return the answer for every array of a state, with its reason and all findings."""
        arrays = self.arrays
        is_plan = isinstance(params, ShardingPlan)
        owners = owners_of_plan(params) if is_plan else each_owner(arrays, params)
        resolver = state_resolver(arrays, owners.groups)
        answers = each_answer(state, owners, resolver, params_at)
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
    boxes = {kind for kind in set(map(type, nodes)) if is_box(kind)}
    if boxes and not boxed:
        contents = (box_value(node) if is_box(type(node)) else node for node in nodes)
        structure = jax.tree_util.tree_structure(structure.unflatten(contents))
    elif boxes and not _hold_one_array(nodes, boxes):
        structure = jax.tree_util.tree_structure(state)
    elif boxes:
        makers = {kind: box_maker(kind) for kind in boxes}
        placed = [
            make(node, sharding) if (make := makers.get(type(node))) else sharding
            for node, sharding in zip(nodes, placed, strict=True)
        ]
    return structure.unflatten(placed)


def _hold_one_array(nodes: list[Any], boxes: set[type]) -> bool:
    """Say whether all boxes are Variables of NNX that hold one array each.

    Those are made faster one by one than by the structure of the tree.
    """
    import jax

    if not all(map(is_nnx, boxes)):
        return False
    values = [nnx_value(node) for node in nodes if type(node) in boxes]
    return bool(jax.tree_util.all_leaves({type(value): value for value in values}.values()))


def _placed(
    state: Any,
    owners: Owners,
    resolver: StateResolver,
    found: _Shardings,
    params_at: Place | None,
) -> list[Any]:
    """Return the sharding of each leaf of a state, None for one that is no array."""
    placed: list[Any] = []
    for segment in segments(state, owners, params_at):
        alike = alike_answers(segment, owners, resolver) if isinstance(segment, Aligned) else None
        if alike is None:
            placed += map(found.of, answers_of(segment, owners, resolver))
        else:
            by_key = {key: found.of(answer) for key, answer in alike.answers.items()}
            placed += [by_key[key] for key in alike.keys]
    return placed


@dataclass(frozen=True, slots=True)
class _Shardings:
    """The shardings of one state, and the answers they come from."""

    placer: TreePlacer
    distinct: list[StateSharding] = field(default_factory=list)
    _by_dims: dict[int, Any] = field(default_factory=dict)

    def of(self, answer: Answer) -> Any:
        """Return the sharding for an answer."""
        if answer is None:
            return None
        self.distinct.append(answer)  # keeps its dims alive, and so their id
        dims = answer.sharding.dims
        found = self._by_dims.get(id(dims))
        if found is None:
            found = self._by_dims[id(dims)] = self.placer.named(dims)
        return found


def _may_be_at_fault(answers: list[StateSharding], resolver: StateResolver) -> bool:
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
