"""Objects that hold parameters and their optimizer state together, and trees without names.

Flax's `TrainState` and every dict made in its image have `params` beside `opt_state`,
`nnx.ModelAndOptimizer` has `model`, and T5X's optimizer `target` beside `state/param_states`.
Under other names optimizer state is known by its types: those of optax, and the Variables that
an `nnx.Optimizer` keeps. Its parameters are then what stands beside it and has its paths.

A tree that has lost its names is planned by another that has them, or by its plan. Linen's usual
way is to read the names off the boxed shapes once, and to train without boxes. The arrays keep
their paths then, so each takes the answer of its counterpart: the array of the same path. Where the
other is parameters alone, optimizer state in the tree follows from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import counted, did_you_mean, grouped
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import PARAMS, Param, Params, StatePolicy, rooted
from shardspec.jax_backend import trees
from shardspec.jax_backend.state import StatePlacer
from shardspec.jax_backend.trees import STATE_NAMES, is_state, names_state, opened, refuse_no_arrays
from shardspec.report.plan import Plan

#: What the parameters are called where the optimizer state is called thus.
_BESIDE = {
    "opt_state": ("params", "model"),
    "optimizer_state": ("params", "model"),
    "optimizer": ("params", "model"),
    "param_states": ("params",),
    "state": ("target",),
}
#: The collection with the names of parameters.
_NAMES = "params_axes"
#: What parameters are called.
_PARAM_NAMES = ("params", "model")


class Held(NamedTuple):
    """The parameters in a tree that holds their optimizer state as well.

    Attributes:
      params: the node that JAX finds in the tree.
      place: the components of the path from the root to them.
    """

    params: Any
    place: trees.Place


class Contents(NamedTuple):
    """What a tree holds, as far as it is or may be optimizer state.

    Attributes:
      held: the parameters, where they stand beside their state.
      states: optimizer state without them.
    """

    held: Held | None = None
    states: tuple[_Part, ...] = ()


def contents_of(tree: Any) -> Contents:
    """Return the parameters that a tree holds beside their optimizer state, or lone state."""
    held = named_params(tree)
    if held is not None:
        return Contents(held)
    parts = _parts(tree)
    if parts is None:
        return Contents()
    place = _params_place(parts)
    if place is None:
        return Contents(None, tuple(part for part in parts if part.is_state))
    return Contents(Held(reduce(_child, place, tree), place))


def named_params(tree: Any) -> Held | None:
    """Return the parameters that a tree holds beside their optimizer state, by their names."""
    for above in ((), ("_optimizer",)):
        holder = _part_of(tree, *above)
        for state, names in _BESIDE.items():
            found = next((name for name in names if _part_of(holder, name) is not None), None)
            inner = ("param_states",) if state == "state" else ()  # `state` might be anything
            if found is not None and _part_of(holder, state, *inner) is not None:
                params = _child(holder, found)
                if params is not None:
                    return Held(_with_names(params, tree), (*above, found))
    return None


def _with_names(params: Any, tree: Any) -> Any:
    """Return parameters with the names that `params_axes` beside them has, as T5X keeps it."""
    names = None if _part_of(params, PARAMS) is not None else _part_of(tree, _NAMES)
    return {PARAMS: params, _NAMES: names} if names else params


def refuse_lone_state(states: Sequence[_Part], policy: StatePolicy | None) -> None:
    """Raise for optimizer state taken for parameters where ZeRO is asked for.

    Its boxes may well name its dimensions, and then it would be laid out without ZeRO. State
    without dimensions, as `optax.sgd` has, is none that ZeRO could split.

    Raises:
      ShardspecError: there is some.
    """
    states = [part for part in states if part.arrays]
    if policy is None or policy.optimizer == "same" or not states:
        return
    where = "/".join(states[0].place)
    whose = f"optimizer state in `{where}`" if where else "optimizer state"
    message = f"{whose}, and not the parameters by which `{policy.optimizer}` splits it"
    help = (
        "`resolver.state_shardings(state, params)`, `resolver.verify_placement(params,"
        " state=state)`; or one tree of both, called `params` and `opt_state`"
    )
    raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),))


def is_state_of(tree: Any, other: Any) -> bool:
    """Say whether a tree is optimizer state by its types, and the other has none in it."""
    return bool(contents_of(tree).states) and contents_of(other) == Contents()


def arrays_alone(tree: Any, policy: StatePolicy | None) -> Params:
    """Return the arrays of a tree that is compiled as parameters, each by its own names.

    Raises:
      ShardspecError: it holds optimizer state, which ZeRO lays out otherwise.
    """
    found = contents_of(tree)
    refuse_lone_state(found.states, policy)
    if found.held is not None and policy is not None and policy.optimizer != "same":
        where = "/".join(found.held.place)
        message = f"optimizer state beside the parameters `{where}`: `{policy.optimizer}` splits it"
        help = f"give `{where}` alone; `shardspec.Resolver(spec).plan(tree)` plans both"
        raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),))
    return trees.params_of(tree)


def params_alone(params: Any) -> Any:
    """Return the parameters of what was given as such, which may hold their state as well.

    Raises:
      ShardspecError: it is optimizer state, as in arguments that are swapped.
    """
    if isinstance(params, ShardingPlan):
        return params
    refuse_no_arrays(params, "params")
    found = contents_of(params)
    if found.states:
        message = "`params` is optimizer state, and not the parameters that it was made for"
        help = "the state comes first: `resolver.state_shardings(state, params)`"
        raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),))
    return params if found.held is None else found.held.params


class _Part(NamedTuple):
    """A leaf or a box of a tree, or a node that is optimizer state.

    Attributes:
      is_chained: whether it may stand in a chain of optax, beside states of one's own.
    """

    place: trees.Place
    node: Any
    is_state: bool
    is_chained: bool = False

    @property
    def arrays(self) -> list[trees.Place]:
        """Return the places of its arrays that have dimensions."""
        paths = [leaf.path for leaf in trees.leaves_of(self.node) if leaf.shape]
        return [(*self.place, *path.split("/")) if path else self.place for path in paths]


def _parts(tree: Any) -> list[_Part] | None:
    """Return what a tree is made of, None where no part of it is optimizer state."""
    naming: list[type] = []

    def is_end(node: Any) -> bool:
        """Say whether a tree is not looked into below a node: a box, or optimizer state."""
        if names_state(node):
            naming.append(type(node))
        return trees.is_box(type(node)) or is_state(node)

    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_end)
    if not naming and not any(is_state(node) for _, node in flat):
        return None
    return [_part(tuple(map(trees.component, keys)), node) for keys, node in flat]


def _part(place: trees.Place, node: Any) -> _Part:
    if not is_state(node):
        return _Part(place, node, not STATE_NAMES.isdisjoint(place))
    inner = set(map(type, jax.tree_util.tree_leaves(node, is_leaf=trees.box_test())))
    return _Part(place, node, True, not any(map(trees.is_optimizer_variable, inner)))


def _params_place(parts: Sequence[_Part], depth: int = 0) -> trees.Place | None:
    """Return where the parameters are that the state among these parts was made for.

    They stand beside the state. Two train states in one tree are none.

    Args:
      depth: how many components all parts have in common.
    """
    if any(len(part.place) <= depth for part in parts):
        return None
    below = grouped(parts, lambda part: part.place[depth])
    loose = [name for name, group in below.items() if any(part.is_state for part in group)]
    rest = {name: group for name, group in below.items() if name not in loose}
    others = [name for name, group in rest.items() if any(part.arrays for part in group)]
    inner = [_params_place(below[name], depth + 1) for name in loose]
    if any(place is not None for place in inner):
        return (loose[0], *inner[0]) if len(loose) == 1 and not others and inner[0] else None
    named = next((name for name in _PARAM_NAMES if name in others), None)
    if named is not None:
        return (named,) if loose else None
    return _owner_place({name: below[name] for name in others}, parts, depth)


def _owner_place(
    candidates: Mapping[str, Sequence[_Part]], parts: Sequence[_Part], depth: int
) -> trees.Place | None:
    """Return which of several nodes most arrays of state belong to, None where two are equal.

    A chain of optax may hold states of one's own, whose arrays have paths of their own. NNX tells
    all state by its type: what stands alone beside it are the parameters, or holds them.
    """
    states = [place[depth:] for part in parts if part.is_state for place in part.arrays]
    is_told = not any(part.is_chained for part in parts)
    if not states and len(candidates) == 1:
        return (*candidates,)
    found = []
    for name, group in candidates.items():
        paths = {place[depth + 1 :] for part in group for place in part.arrays}
        above: trees.Place = ()
        count = _owned(paths, states)
        while is_told and not count and () not in paths and len({path[0] for path in paths}) == 1:
            (head,) = {path[0] for path in paths}
            above, paths = (*above, head), {path[1:] for path in paths}
            count = _owned(paths, states)
        if count:
            found.append((count, (name, *above)))
    most = max((count for count, _ in found), default=0)
    best = [place for count, place in found if count == most]
    return best[0] if len(best) == 1 else None


def _owned(arrays: set[trees.Place], states: Sequence[trees.Place]) -> int:
    """Return how many arrays of state have the path of one of `arrays` at their end."""
    paths = arrays | {path[1:] for path in arrays if path[:1] == (PARAMS,)}
    return sum(any(state[at:] in paths for at in range(1, len(state) + 1)) for state in states)


def _part_of(node: Any, *names: str) -> Any:
    """Return what a node has under these names, one below the other, or None."""
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
    return node


def _child(node: Any, name: str) -> Any:
    found = (child for keys, child in opened(node)[0] if keys and trees.component(keys[0]) == name)
    return next(found, None)


def plan_like(
    tree: Any, like: ShardingPlan, held: Held | None, state: StatePlacer
) -> tuple[Plan, Plan]:
    """Return the plan of a tree, and that of its parameters, by a plan of other arrays.

    Args:
      held: the parameters in the tree, where it holds their optimizer state as well.
      state: plans that state, where `like` does not.

    Raises:
      ShardspecError: an array of the tree has no counterpart, or one of another shape.
    """
    known = {sharding.param.path: sharding for sharding in like.arrays}
    arrays = trees.params_of(tree)
    if held is None:
        plan = _plan(like, tuple(_answer(array, known) for array in arrays))
        return plan, plan
    params = _plan(like, tuple(_answer(array, known) for array in trees.params_of(held.params)))
    above = "/".join(held.place)
    answers = {rooted(f"{above}/{each.param.path}"): each for each in params.arrays}
    whole = f"{above}/params"  # a collection of Linen in a train state: `params/params/mlp/kernel`
    answers |= {rooted(f"{whole}/{each.param.path}"): each for each in params.arrays}
    rest = {array.path for array in arrays} - answers.keys()
    if not rest <= known.keys():
        planned = state.plan(tree, params)  # the parameters among it are not asked
        known = {sharding.param.path: sharding for sharding in planned.arrays}
    found = (_answer(array, known | answers) for array in arrays)
    return _plan(like, tuple(found)), params


def _plan(like: ShardingPlan, params: tuple[ParamSharding, ...]) -> Plan:
    return Plan(like.spec, like.target, params)


_LIKE = "`like` is the boxed form of the same tree, or the plan of it"


def _answer(array: Param, known: Mapping[str, ParamSharding]) -> ParamSharding:
    """Return the answer of an array's counterpart, for the array itself."""
    found = known.get(array.path)
    if found is None:
        raise ShardspecError((_no_counterpart(array, known),))
    if found.param.shape != array.shape:
        message = f"`{array.path}` is {array}, and its counterpart in `like` is {found.param}"
        raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=_LIKE),))
    return replace(found, param=replace(found.param, path=array.path, dtype=array.dtype))


def _no_counterpart(array: Param, known: Mapping[str, ParamSharding]) -> Diagnostic:
    hint = did_you_mean(array.path, list(known))
    return Diagnostic(
        codes.UNNAMED_ARRAY,
        f"`{array.path}` {array} has no counterpart in `like`, which has"
        f" {counted(len(known), 'array')}",
        help=f"{hint}; {_LIKE}" if hint else _LIKE,
    )
