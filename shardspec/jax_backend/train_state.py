"""Objects that hold parameters and their optimizer state together.

Flax's `TrainState` and every dict made in its image have `params` beside `opt_state`,
`nnx.ModelAndOptimizer` has `model`, and T5X's optimizer `target` beside `state/param_states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import WRONG_TYPE
from shardspec.ir.spec import StatePolicy
from shardspec.jax_backend.paths import component

#: What the parameters are called where the optimizer state is called thus.
_PARAMS = {"opt_state": ("params", "model"), "param_states": ("params",), "state": ("target",)}


def own_params(tree: Any) -> Any:
    """Return the parameters that a tree holds beside their optimizer state, None where it is none.

    What comes back is the node that JAX finds in the tree.
    """
    for holder in (tree, _part(tree, "_optimizer")):
        for state, names in _PARAMS.items():
            found = next((name for name in names if _part(holder, name) is not None), None)
            if found is not None and _holds_state(_part(holder, state), state):
                return _child(holder, found)
    return None


def refuse_lone_state(tree: Any, policy: StatePolicy | None) -> None:
    """Raise for optimizer state taken for parameters where ZeRO is asked for.

    Its boxes may well name its dimensions, and then it would be laid out without ZeRO.

    Raises:
      ShardspecError: state of optax, or of an `nnx.Optimizer`, is in the tree.
    """
    if policy is None or policy.optimizer == "same":
        return
    nodes = tree.values() if isinstance(tree, Mapping) else (tree,)
    if _part(tree, "opt_state") is None and not any(map(is_optax_state, nodes)):
        return
    message = f"optimizer state, and not the parameters by which `{policy.optimizer}` splits it"
    help = (
        "`resolver.state_shardings(state, params)`, `resolver.check(params, state)`; or one tree"
        " of both, called `params` and `opt_state`"
    )
    raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),))


def refuse_state_as_params(params: Any) -> None:
    """Raise where optimizer state stands for its parameters, as in arguments that are swapped.

    Raises:
      ShardspecError: it is state of optax, or of an `nnx.Optimizer`.
    """
    is_lone = _part(params, "opt_state") is not None and own_params(params) is None
    if is_lone or is_optax_state(params):
        message = "`params` is optimizer state, and not the parameters that it was made for"
        help = "the state comes first: `resolver.state_shardings(state, params)`"
        raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),))


def is_optax_state(node: Any) -> bool:
    """Say whether a node is the state of an optax transformation, or of a chain of them."""
    kind = type(node)
    if kind.__module__.partition(".")[0] == "optax":
        return kind.__name__.endswith("State")
    return isinstance(node, tuple | list) and any(map(is_optax_state, node))


def _holds_state(node: Any, name: str) -> bool:
    """Say whether a node of this name is optimizer state; `state` alone might be anything."""
    return node is not None and (name != "state" or _part(node, "param_states") is not None)


def _part(node: Any, name: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(name)
    return getattr(node, name, None)


def _child(node: Any, name: str) -> Any:
    import jax

    flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda other: other is not node)
    return next((child for keys, child in flat if keys and component(keys[0]) == name), None)
