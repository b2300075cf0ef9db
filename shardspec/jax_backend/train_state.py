"""Objects that hold parameters and their optimizer state together.

Flax's `TrainState` and every dict made in its image have `params` beside `opt_state`,
`nnx.ModelAndOptimizer` has `model`, and T5X's optimizer `target` beside `state/param_states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
