"""Optimizer state on the devices: its shardings, and the plan that says why.

Shardings are made fast: parameters that nothing tells apart share an answer, and so does their
state. What stands in place of one parameter is a *node*: an array, a box, a hole, or several
arrays; nodes of which nothing tells their answers apart are asked about once. The plan takes the
arrays one by one, with their paths. Both ask the same `StateResolver`, and an error that the first
meets is told by the second.

State that belongs to no parameter is told, where every device would hold much of it: either it is
not the state of these parameters, or an optimizer keeps what has no dimensions of theirs, as
`optax.flatten` does with one vector of all moments. Counters and keys are small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax

from shardspec import pipeline
from shardspec.analysis.coverage import allowed_paths, is_large
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, quote
from shardspec.diagnostics import codes as c
from shardspec.diagnostics.words import binary_bytes, counted, listed
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Sums
from shardspec.jax_backend import trees
from shardspec.jax_backend.owners import (
    Loose,
    Owners,
    Part,
    alike_owners,
    each_owner,
    owners_of_plan,
    parts_of,
)
from shardspec.jax_backend.shardings import Bare, TreePlacer, collector_at_rest
from shardspec.jax_backend.tree_plan import raise_errors
from shardspec.language.reading import is_dsl
from shardspec.lints.checks import ambiguous_state, state_not_split, unrelated_state
from shardspec.report.plan import Plan
from shardspec.resolve import state as states
from shardspec.resolve.resolver import ArrayResolver

#: What a tree may hold beside state that belongs to a parameter.
_OF_NOTHING = {states.Relation.UNOWNED, states.Relation.SCALAR, states.Relation.PARAMETER}

_HELP = "name its dimensions in `params:`, by the path of the state, or allow it under `replicate:`"


def may_be_stray(answers: Iterable[states.StateSharding]) -> bool:
    """Say whether nothing of a state belongs to a parameter, and something might."""
    relations = {answer.relation for answer in answers}
    return states.Relation.UNOWNED in relations and relations <= _OF_NOTHING


def findings(plan: ShardingPlan, params: Sequence[ParamSharding]) -> Iterator[Diagnostic]:
    """Yield an error where no state is of these parameters, else a warning for what is large.

    Args:
      params: the parameters, or samples of them.
    """
    state = states.of_state(plan)
    lost = [found for found in state if found.relation is states.Relation.UNOWNED]
    allowed = allowed_paths(plan.spec, (found.path for found in lost))
    lost = [found for found in lost if found.path not in allowed]
    if not lost or plan.mesh.device_count == 1:
        return
    lost.sort(key=_bytes, reverse=True)
    most = max((owner.param.element_count for owner in params if owner.param.rank), default=0)
    if most and may_be_stray(state) and lost[0].param.element_count >= most:
        yield _of_others(lost, params)
        return
    held = sum(map(_bytes, state))
    large = [found for found in lost if is_large(_bytes(found), held)]
    if large:
        message = f"{_arrays(large)} of no parameter, and replicated on every device"
        note = f"{binary_bytes(sum(map(_bytes, large)))} on each"
        yield Diagnostic(codes.REPLICATED_LARGE, message, notes=(note,), help=_HELP)


def _of_others(lost: Sequence[states.StateSharding], params: Sequence[ParamSharding]) -> Diagnostic:
    owner = next(owner for owner in params if owner.param.rank).param
    size = binary_bytes(sum(map(_bytes, lost)))
    return Diagnostic(
        codes.UNNAMED_ARRAY,
        f"nothing in the state belongs to a parameter: {_arrays(lost)} replicated on every device",
        notes=(
            f"{size} on each",
            f"one of the parameters that were given: `{owner.path}` {owner}",
        ),
        help=f"pass the parameters that the state was made for; or {_HELP}",
    )


def _arrays(lost: Sequence[states.StateSharding]) -> str:
    """Return the first of the arrays and the number of the others, with a verb."""
    first = f"`{lost[0].path}` {lost[0].param}"
    return f"{first} and {counted(len(lost) - 1, 'more array')} are" if lost[1:] else f"{first} is"


def _bytes(found: states.StateSharding) -> int:
    return found.per_device_bytes


#: What stands for a leaf of a state; None for one that is no array.
Answer = states.StateSharding | None


def each_answer(
    state: Any, owners: Owners, resolver: states.StateResolver, params_at: trees.Place | None
) -> Iterator[Answer]:
    """Yield the answer for each leaf of a state, in the order in which JAX flattens it.

    Leaves that share an answer share the object.
    """
    for part in parts_of(state, owners, params_at):
        yield from _answers(part, owners, resolver)


def _answers(part: Part, owners: Owners, resolver: states.StateResolver) -> Iterator[Answer]:
    if isinstance(part, Loose):
        for leaf in trees.leaves_of(part.node):
            yield _loose(leaf, trees.joined(part.path, leaf.path), owners, resolver)
        return
    if part.nodes is None:
        params = [states.parameter(owner) for owner in owners.groups]
        yield from (None if at is None else params[at] for at in owners.of_nodes)
        return
    known: dict[Any, tuple[Answer, ...]] = {}
    for node, key in zip(part.nodes, part.keys, strict=True):
        answers = known.get(key)
        if answers is None:
            owner = None if key[0] is None else owners.groups[key[0]]
            answers = known[key] = tuple(
                _answer(leaf, owner, part.prefix, leaf.components, resolver)
                for leaf in trees.leaves_of(node)
            )
        yield from answers


def _loose(leaf: trees.Leaf, path: str, owners: Owners, resolver: states.StateResolver) -> Answer:
    found = owners.find(path) if leaf.shape else None
    if found is not None:
        return _answer(leaf, owners.owner(found.place), found.prefix, found.rest, resolver)
    return _answer(leaf, None, path, (), resolver)


def _answer(
    leaf: trees.Leaf,
    owner: ParamSharding | None,
    prefix: str,
    rest: trees.Place,
    resolver: states.StateResolver,
) -> Answer:
    """Return the answer for one leaf, None if it is no array."""
    shape = leaf.shape
    if shape is None:
        return None
    path = trees.joined(prefix, "" if owner is None else owner.param.path, *rest)
    param = trees.array_param(path, shape, leaf.value, leaf.names)
    return resolver.resolve(param, owner, _field(prefix), rest)


def _field(prefix: str) -> str:
    """Return what the optimizer calls the arrays under a path: its last component with a name."""
    return next((part for part in reversed(prefix.split("/")) if not part.isdecimal()), "")


#: Findings about an array of state that the spec, or the array itself, names.
_OF_OWN_NAMES = frozenset(
    (
        c.RANK_MISMATCH,
        c.REPEATED_AXIS,
        c.INDIVISIBLE,
        c.CUT_UNIT,
        c.CUT_PART,
        c.SIZE_MISMATCH,
        c.UNKNOWN_LOGICAL_AXIS,
        c.MISSING_PARENT,
        c.DERIVED_MISFIT,
    )
)
_OWN = frozenset((states.Relation.OWN, states.Relation.DERIVED))

#: Warnings about a state, which a spec may make errors.
_WARNED_OF = (c.STATE_NOT_SPLIT, c.UNRELATED_STATE, c.REPLICATED_LARGE)


class Accumulation(NamedTuple):
    """Shardings with which gradients of microbatches are added up before devices sum them up.

    Attributes:
      params: of the parameters as the loss takes them, `reduced` over the mesh axes that see other
        data: their gradients come unsummed.
      sums: of what the gradients are added to, `unreduced` over the same.
    """

    params: Any
    sums: Any


def _no_sums(automatic: Sequence[str], target: str) -> Diagnostic:
    if automatic:
        verb = "is" if len(automatic) == 1 else "are"
        message = (
            f"no sums of gradients on target `{target}`, where {listed(automatic)} {verb} `auto`"
        )
        help = f"make all its mesh axes explicit, as in {quote.size(automatic[0], '8 explicit')}"
        return Diagnostic(codes.SUMS_NOT_EXPLICIT, message, help=help)
    message = f"no mesh axis of target `{target}` is known to see other data"
    help = f"give `batch` a rule, or say {quote.setting('state', ('over', 'data'))}"
    return Diagnostic(codes.WRONG_TYPE, message, help=help)


@dataclass(frozen=True, slots=True)
class StatePlacer:
    """The state of one spec on one mesh."""

    arrays: ArrayResolver
    placer: TreePlacer

    def shardings(
        self, state: Any, params: Any, params_at: trees.Place | None = None, *, boxed: bool = True
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
            resolver = states.state_resolver(self.arrays, owners.groups)
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

    def plan(self, state: Any, params: Any, params_at: trees.Place | None = None) -> Plan:
        """Return the answer for every array of a state, with its reason and all findings."""
        arrays = self.arrays
        is_plan = isinstance(params, ShardingPlan)
        with collector_at_rest():
            owners = owners_of_plan(params) if is_plan else each_owner(arrays, params)
            resolver = states.state_resolver(arrays, owners.groups)
            answers = [*each_answer(state, owners, resolver, params_at)]
        found = Plan(arrays.spec, arrays.target, tuple(a for a in answers if a is not None))
        lost = pipeline.report(arrays.spec, findings(found, owners.groups)).shown
        return replace(found, told=(*lost, *state_findings(found)))

    def gradients(self, params: Any) -> Any:
        """Return `params` with the sharding of each gradient, None for a leaf that is no array."""
        if isinstance(params, ShardingPlan):
            raise TypeError("gradients have the structure of the parameters; a plan has none")
        owners = self._owners(params)
        resolver = states.state_resolver(self.arrays, owners.groups)
        known = [self.placer.named(resolver.gradient(owner)) for owner in owners.groups]
        structure: Any = jax.tree_util.tree_structure(params)
        return structure.unflatten(
            None if position is None else known[position] for position in owners.of_nodes
        )

    def accumulation(self, params: Any) -> Accumulation:
        """Return the shardings of parameters and of sums of their gradients over microbatches.

        Raises:
          ShardspecError: the mesh is not explicit, or the spec does not say what sees other data.
        """
        if isinstance(params, ShardingPlan):
            raise TypeError("gradients have the structure of the parameters; a plan has none")
        spec, target = self.arrays.spec, self.arrays.target
        over = [axis for axis in states.data_axes(spec, target.mesh) if target.mesh.sizes[axis] > 1]
        automatic = [axis.name for axis in target.mesh.axes if axis.axis_type == "auto"]
        if not over or automatic:
            fault = _no_sums(automatic, target.name)
            raise ShardspecError((fault.spelt(is_dsl=is_dsl(spec.source)),))
        owners = self._owners(params)
        free = [tuple(a for a in over if a not in each.mesh_axes) for each in owners.groups]
        pairs = list(zip(owners.groups, free, strict=True))
        reduced = [self.placer.placed(Bare(each.dims, Sums((), axes))) for each, axes in pairs]
        sums = [self.placer.placed(Bare(each.dims, Sums(axes))) for each, axes in pairs]
        structure: Any = jax.tree_util.tree_structure(params)
        return Accumulation(
            *(
                structure.unflatten(None if at is None else known[at] for at in owners.of_nodes)
                for known in (reduced, sums)
            )
        )

    def _owners(self, params: Any) -> Owners:
        if isinstance(params, ShardingPlan):
            return owners_of_plan(params)
        return alike_owners(self.placer, params)


def _put_back(state: Any, placed: list[Any], boxed: bool) -> Any:
    """Return `state` with `placed` in place of its leaves."""
    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(state, is_leaf=trees.box_test())
    makers = {kind: trees.box_maker(kind) for kind in set(map(type, nodes)) if trees.is_box(kind)}
    if makers and not boxed:
        structure = jax.tree_util.tree_structure(trees.unboxed(state))
    elif makers and all(isinstance(make, trees.VariableMaker) for make in makers.values()):
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
    for node in nodes:
        make = makers.get(type(node))
        if make is None:
            yield next(flat)
            continue
        content = trees.nnx_value(node)
        if hasattr(content, "shape"):
            yield make(node, next(flat), node.get_metadata())
            continue
        structure: Any = jax.tree_util.tree_structure(content)
        content = structure.unflatten([next(flat) for _ in range(structure.num_leaves)])
        yield make(node, content, node.get_metadata())


@dataclass(frozen=True, slots=True)
class _Shardings:
    """The shardings of one state, and the answers they come from.

    Attributes:
      distinct: the answers by their ids, which they keep.
    """

    placer: TreePlacer
    distinct: dict[int, states.StateSharding] = field(default_factory=dict)
    _by_id: dict[int, Any] = field(default_factory=dict)

    def of(self, answer: Answer) -> Any:
        """Return the sharding for an answer."""
        if answer is None:
            return None
        if id(answer) not in self.distinct:
            self.distinct[id(answer)] = answer
            self._by_id[id(answer)] = self.placer.placed(answer)
        return self._by_id[id(answer)]


def _may_be_at_fault(
    answers: Collection[states.StateSharding], resolver: states.StateResolver
) -> bool:
    """Say whether the findings about these answers may hold an error."""
    spec = resolver.arrays.spec
    doubts = [Diagnostic(code, "") for code in _WARNED_OF]
    if pipeline.report(spec, doubts).errors:
        return True
    if any(answer.relation is states.Relation.AMBIGUOUS for answer in answers):
        return True
    if may_be_stray(answers):
        return True
    own = tuple(answer for answer in answers if answer.relation in _OWN)
    sample = ShardingPlan(spec, resolver.arrays.target, own)
    return any(diagnostic.is_error for diagnostic in state_findings(sample)) if own else False


def state_findings(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return everything the checks have to say about the arrays of a state."""
    checks = (ambiguous_state, state_not_split, unrelated_state)
    about_state = [diagnostic for each in checks for diagnostic in each.findings(plan)]
    own = tuple(found for found in states.of_state(plan) if found.relation in _OWN)
    named = (
        pipeline.findings(plan.spec, [ShardingPlan(plan.spec, plan.target, own)]).shown
        if own
        else ()
    )
    kept = (diagnostic for diagnostic in named if diagnostic.code in _OF_OWN_NAMES)
    return (*pipeline.report(plan.spec, about_state).shown, *kept)
