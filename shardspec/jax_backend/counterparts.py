"""The plan of a tree that has lost its names, by another tree that has them, or by its plan.

Linen's usual way is to read the names off the boxed shapes once, and to train without boxes. The
arrays keep their paths then, so each takes the answer of its counterpart: the array of the same
path. Where the other is parameters alone, optimizer state in the tree follows from those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import UNNAMED_ARRAY, WRONG_TYPE
from shardspec.diagnostics.suggest import did_you_mean
from shardspec.ir.grouping import counted
from shardspec.ir.param import Param
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.tree_path import rooted
from shardspec.jax_backend.arrays import params_of
from shardspec.jax_backend.state import StatePlacer
from shardspec.jax_backend.train_state import Held
from shardspec.jax_backend.tree_plan import TreePlan


def plan_like(
    tree: Any, like: ShardingPlan, held: Held | None, state: StatePlacer
) -> tuple[TreePlan, TreePlan]:
    """Return the plan of a tree, and that of its parameters, by a plan of other arrays.

    Args:
      held: the parameters in the tree, where it holds their optimizer state as well.
      state: plans that state, where `like` does not.

    Raises:
      ShardspecError: an array of the tree has no counterpart, or one of another shape.
    """
    known = {sharding.param.path: sharding for sharding in like.params}
    arrays = params_of(tree)
    if held is None:
        plan = _plan(like, tuple(_answer(array, known) for array in arrays))
        return plan, plan
    params = _plan(like, tuple(_answer(array, known) for array in params_of(held.params)))
    above = "/".join(held.place)
    answers = {rooted(f"{above}/{each.param.path}"): each for each in params.params}
    whole = f"{above}/params"  # a collection of Linen in a train state: `params/params/mlp/kernel`
    answers |= {rooted(f"{whole}/{each.param.path}"): each for each in params.params}
    rest = {array.path for array in arrays} - answers.keys()
    if not rest <= known.keys():
        planned = state.plan(tree, params).plan  # the parameters among it are not asked
        known = {sharding.param.path: sharding for sharding in planned.params}
    found = (_answer(array, known | answers) for array in arrays)
    return _plan(like, tuple(found)), params


def _plan(like: ShardingPlan, params: tuple[ParamSharding, ...]) -> TreePlan:
    return TreePlan(like.spec, like.target, params)


def _answer(array: Param, known: Mapping[str, ParamSharding]) -> ParamSharding:
    """Return the answer of an array's counterpart, for the array itself."""
    found = known.get(array.path)
    if found is None:
        raise ShardspecError((_no_counterpart(array, known),))
    if found.param.shape != array.shape:
        message = f"`{array.path}` is {array}, and its counterpart in `like` is {found.param}"
        help = "`like` is the boxed form of the same tree, or the plan of it"
        raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),))
    return replace(found, param=replace(found.param, path=array.path, dtype=array.dtype))


def _no_counterpart(array: Param, known: Mapping[str, ParamSharding]) -> Diagnostic:
    hint = did_you_mean(array.path, list(known))
    help = "`like` is the boxed form of the same tree, or the plan of it"
    return Diagnostic(
        UNNAMED_ARRAY,
        f"`{array.path}` {array} has no counterpart in `like`, which has"
        f" {counted(len(known), 'array')}",
        help=f"{hint}; {help}" if hint else help,
    )
