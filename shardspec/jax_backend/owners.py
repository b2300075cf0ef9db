"""The parameters of a model, asked which of them an array of state belongs to.

Optimizers map over the parameters, so their state holds trees of the same structure: those are
looked for first, by `jax.tree_util`, whatever the nodes are. Holes (`optax.MaskedNode`, None)
may stand in such a tree, and boxes may be there or not. What is left is found by its path,
which ends in the parameter's (`0/mu` + `mlp/kernel`), or goes on below it (`mlp/kernel` + `v_row`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import jax

from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import PARAMS
from shardspec.jax_backend import trees
from shardspec.jax_backend.arguments import opened
from shardspec.jax_backend.shardings import Question, TreePlacer, Walk
from shardspec.resolve.resolver import ArrayResolver


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


def alike_owners(placer: TreePlacer, params: Any) -> Owners:
    """Return the parameters of a tree, those that nothing tells apart as one.

    Raises:
      ShardspecError: a parameter has no names, too few, or sizes that do not divide.
    """
    places: dict[Question, int] = {}
    groups: list[ParamSharding] = []

    def place(question: Question, answer: ParamSharding) -> int:
        found = places.setdefault(question, len(places))
        groups.extend([answer] if found == len(groups) else [])
        return found

    spec = placer.arrays.spec
    # they may be about state by its path
    by_path = bool(spec.overrides or spec.derives or spec.path_rules or spec.memory)
    walk = Walk(placer, params, place, nothing=_NO_ARRAY, by_path=by_path)
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
