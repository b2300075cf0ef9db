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
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import jax

from shardspec import pipeline
from shardspec.analysis.coverage import allowed_paths, is_large
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, quote
from shardspec.diagnostics import codes as c
from shardspec.diagnostics.words import binary_bytes, counted, listed
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import PARAMS, Sums
from shardspec.jax_backend import shardings as placements
from shardspec.jax_backend import trees
from shardspec.jax_backend.trees import opened
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
_OF_OWN_NAMES = placements.OF_ONE_ARRAY - {c.UNNAMED_ARRAY} | {c.UNKNOWN_LOGICAL_AXIS}
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
    placer: placements.TreePlacer

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
        with placements.collector_at_rest():
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
            placements.raise_errors(self.plan(state, params, params_at).diagnostics)
        return result

    def plan(self, state: Any, params: Any, params_at: trees.Place | None = None) -> Plan:
        """Return the answer for every array of a state, with its reason and all findings."""
        arrays = self.arrays
        is_plan = isinstance(params, ShardingPlan)
        with placements.collector_at_rest():
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
        reduced = [
            self.placer.placed(placements.Bare(each.dims, Sums((), axes))) for each, axes in pairs
        ]
        sums = [self.placer.placed(placements.Bare(each.dims, Sums(axes))) for each, axes in pairs]
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

    placer: placements.TreePlacer
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


# The parameters of a model, asked which of them an array of state belongs to.
#
# Optimizers map over the parameters, so their state holds trees of the same structure: those are
# looked for first, by `jax.tree_util`, whatever the nodes are. Holes (`optax.MaskedNode`, None) may
# stand in such a tree, and boxes may be there or not. What is left is found by its path, which ends
# in the parameter's (`0/mu` + `mlp/kernel`), or goes on below it (`mlp/kernel` + `v_row`).


class Found(NamedTuple):
    """Which parameter an array of state belongs to.

    Attributes:
      place: the leaf or box of the parameters that it is.
      prefix: the path above the parameter's.
      rest: the components below it.
    """

    place: int
    prefix: str
    rest: trees.Place = ()


class Aligned(NamedTuple):
    """A part of a state that has the structure of the parameters.

    Attributes:
      nodes: what stands in place of each parameter: an array, a box, a hole, several arrays; None
        where it is the parameters themselves, which a train state holds as well.
      keys: what decides the answers of each node: whose state it is, and its key.
    """

    prefix: str
    nodes: Sequence[Any] | None
    keys: Sequence[trees.Key] = ()


class Loose(NamedTuple):
    """A leaf or a box of a state outside of such parts."""

    path: str
    node: Any


#: One of the parts of a state, in which JAX flattens one after the other.
Part = Aligned | Loose


@dataclass(frozen=True)
class Owners:
    """The parameters of one model.

    Attributes:
      groups: their answers: one for each, or for each set of parameters that nothing tells apart.
      of_nodes: for each leaf or box of the parameters the position in `groups`, None where it is
        no array.
      structures: their structure with boxes as leaves, by the type of the root.
      tree: the parameters; None where only a plan of them is known.
      known_paths: of each leaf or box, `()` where nobody has asked for them yet.
    """

    groups: Sequence[ParamSharding]
    of_nodes: Sequence[int | None] = ()
    structures: Mapping[type, Any] = field(default_factory=dict, repr=False)
    tree: Any = field(default=None, repr=False)
    known_paths: Sequence[str] = field(default=(), repr=False)

    def owner(self, place: int) -> ParamSharding | None:
        """Return the parameter at one leaf or box of their tree, None for what is no array."""
        position = self.of_nodes[place]
        return None if position is None else self.groups[position]

    def find(self, path: str) -> Found | None:
        """Return the parameter in whose path this one ends, or that it goes on from.

        The longest wins. Numbers alone are no path to go on from: `0/0` is anything.
        """
        parts = tuple(path.split("/")) if path else ()
        for start in range(len(parts) + 1):
            place = self._by_path.get("/".join(parts[start:]))
            if place is not None:
                return Found(place, _prefix(parts[:start]))
        for end in range(len(parts) - 1, 0, -1):
            for start in range(end):
                inner = parts[start:end]
                place = self._by_path.get("/".join(inner))
                if place is not None and not all(map(str.isdecimal, inner)):
                    return Found(place, _prefix(parts[:start]), parts[end:])
        return None

    def structure(self, node: Any) -> Any:
        """Return the structure of the parameters under a root like this, None if there is none.

        A FrozenDict may be thawed, and a State be part of another, where it is a dict.
        """
        kind = type(node)
        is_mapping = isinstance(node, Mapping) and isinstance(self.tree, Mapping)
        if is_mapping and len(node) != len(self.tree):  # JAX would print all keys that it expects
            return None
        if kind is dict and dict not in self.structures and self.structures:
            return self._thawed
        return self.structures.get(kind)

    def nodes_in(self, tree: Any) -> list[Any] | None:
        """Return what stands in a tree in place of each parameter; None if it is another tree.

        It is taken apart as far as theirs is, and no further; then the two structures are compared.
        """
        structure = self.structure(tree)
        if structure is None:
            return None
        ends = chain(self._ends, repeat(True)).__next__
        nodes, found = jax.tree_util.tree_flatten(tree, is_leaf=lambda _: ends())
        return nodes if found == structure else None

    @cached_property
    def _ends(self) -> Sequence[bool]:
        """Return of each node of the structure, as JAX meets them, whether a parameter is there."""
        structure = next(iter(self.structures.values()))
        ends: list[bool] = []

        def note(node: Any) -> bool:
            ends.append(type(node) is int)
            return ends[-1]

        numbered = structure.unflatten(range(structure.num_leaves))
        jax.tree_util.tree_leaves(numbered, is_leaf=note)
        return ends

    @cached_property
    def _thawed(self) -> Any:
        return _as_dict(self.tree) if isinstance(self.tree, Mapping) else None

    @cached_property
    def paths(self) -> Sequence[str]:
        """Return the path of each leaf or box of the parameters."""
        return self.known_paths or _paths(self.tree)

    @cached_property
    def _by_path(self) -> Mapping[str, int]:
        places = enumerate(zip(self.paths, self.of_nodes, strict=True))
        return {path: place for place, (path, position) in places if position is not None}


def parts_of(state: Any, owners: Owners, params_at: trees.Place | None = None) -> Iterator[Part]:
    """Yield the parts of a state, in the order in which JAX flattens it.

    Args:
      params_at: where the parameters themselves are in it. Any other copy of them is state, be
        it the same object or not: under `jax.eval_shape` there are no same objects.
    """
    return _below(state, "", owners, params_at)


def _below(node: Any, path: str, owners: Owners, params_at: trees.Place | None) -> Iterator[Part]:
    """Yield the parts of a node; `params_at` is None where the parameters are not below it."""
    if params_at == ():
        yield Aligned(path, None)
        return
    aligned = _aligned(node, path, owners) if params_at is None else None
    if aligned is not None:
        yield aligned
        return
    if trees.is_box(type(node)):
        yield Loose(path, node)
        return
    for keys, child in opened(node)[0]:
        if keys:
            text = trees.component(keys[0])
            inner = params_at[1:] if params_at is not None and params_at[0] == text else None
            yield from _below(child, trees.joined(path, text), owners, inner)
        else:
            yield Loose(path, node)


def _aligned(node: Any, path: str, owners: Owners) -> Aligned | None:
    """Return a node as a part in the structure of the parameters; None if it is not in that."""
    nodes = owners.nodes_in(node)
    if nodes is None:
        return None
    keys = list(map(trees.key_of, nodes))
    samples = dict(zip(keys, range(len(keys)), strict=True)).values()
    if all(_is_of(nodes[place], place, path, owners) for place in samples):
        return Aligned(path, nodes, list(zip(owners.of_nodes, keys, strict=True)))
    return None


def _is_of(node: Any, place: int, prefix: str, owners: Owners) -> bool:
    """Say whether what stands in place of a parameter is of it: a box, an array, a hole.

    Several arrays are if their paths say so: in a small tree they may be a state in a chain of
    optax.
    """
    if trees.is_box(type(node)) or jax.tree_util.all_leaves([node]):
        return True
    return all(
        (found := owners.find(trees.joined(prefix, owners.paths[place], leaf.path))) is not None
        and (found.place, found.rest) == (place, leaf.components)
        for leaf in trees.leaves_of(node)
    )


def _prefix(parts: trees.Place) -> str:
    """Return the path above a parameter's, without the collection `params` of its own tree."""
    if len(parts) > 1 and parts[-1] == PARAMS and not parts[-2].isdecimal():
        parts = parts[:-1]
    return "/".join(parts)


def owners_of_plan(plan: ShardingPlan) -> Owners:
    """Return the parameters of a plan, which are known by their paths alone."""
    paths = [sharding.param.path for sharding in plan.arrays]
    return Owners(plan.arrays, range(len(paths)), known_paths=paths)


def each_owner(arrays: ArrayResolver, params: Any) -> Owners:
    """Return the parameters of a tree one by one, with their paths."""
    leaves = trees.leaves_of(params)
    made = [leaf.param for leaf in leaves]
    groups = arrays.resolve_all(param for param in made if param is not None)
    positions = iter(range(len(groups)))
    nodes, structures = _structures(params)
    return Owners(
        groups,
        [None if param is None else next(positions) for param in made],
        structures if len(nodes) == len(leaves) else {},
        params,
        [leaf.path for leaf in leaves],
    )


#: Stands for a leaf that is no array.
_NO_ARRAY = -1


def alike_owners(placer: placements.TreePlacer, params: Any) -> Owners:
    """Return the parameters of a tree, those that nothing tells apart as one.

    Raises:
      ShardspecError: a parameter has no names, too few, or sizes that do not divide.
    """
    places: dict[placements.Question, int] = {}
    groups: list[ParamSharding] = []

    def place(question: placements.Question, answer: ParamSharding) -> int:
        found = places.setdefault(question, len(places))
        groups.extend([answer] if found == len(groups) else [])
        return found

    spec = placer.arrays.spec
    # they may be about state by its path
    by_path = bool(spec.overrides or spec.derives or spec.path_rules or spec.memory)
    walk = placements.Walk(placer, params, place, nothing=_NO_ARRAY, by_path=by_path)
    placed = jax.tree_util.tree_leaves(walk.placed(params))
    nodes, structures = _structures(params)
    if walk.has_wide_boxes or len(placed) != len(nodes):
        return each_owner(placer.arrays, params)
    of_nodes = [None if at == _NO_ARRAY else at for at in placed]
    return Owners(groups, of_nodes, structures, params)


def _paths(tree: Any) -> list[str]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=trees.box_test())
    return [trees.path_of(keys) for keys, _ in flat]


def _structures(params: Any) -> tuple[list[Any], dict[type, Any]]:
    """Return the leaves and boxes of the parameters, and their structure by the type of the root.

    A lone array has no structure to look for.
    """
    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(params, is_leaf=trees.box_test())
    return nodes, {} if structure.num_nodes == 1 else {type(params): structure}


def _as_dict(params: Any) -> Any:
    """Return the structure of parameters whose root is another mapping, as if it were a dict.

    A State of NNX becomes a dict where it is part of another State.
    """
    plain = {getattr(keys[0], "key", None): child for keys, child in opened(params)[0]}
    inner, structure = jax.tree_util.tree_flatten(plain, is_leaf=trees.box_test())
    nodes = jax.tree_util.tree_leaves(params, is_leaf=trees.box_test())
    return structure if list(map(id, inner)) == list(map(id, nodes)) else None
