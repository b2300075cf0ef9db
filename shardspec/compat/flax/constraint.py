"""`with_logical_constraint` of Flax Linen: constraints on activations by logical names.

It does what Linen's does (0.12), and where Linen's would do nothing or fail without need, it
does what the caller asked for: the older `with mesh:` counts as a mesh, as it did before Flax
0.12.2, and under explicit mesh axes the array is resharded.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from functools import lru_cache
from typing import Any

from shardspec.compat.flax.resolver import UNASSIGNED, context_rules, logical_to_mesh_values


class RulesFallback(enum.Enum):
    """What becomes of a constraint in which a dimension has no rule that fires."""

    AXIS_IS_UNSHARDED = "axis_is_unsharded"
    RAISE_ERROR = "raise_error"
    NO_CONSTRAINT = "no_constraint"


def with_logical_constraint(
    x: Any,
    logical_axis_resources: Any,
    rules: Any = None,
    mesh: Any = None,
    fallback: Any = RulesFallback.AXIS_IS_UNSHARDED,
) -> Any:
    """Return `x`, an array or a tree of them, with a sharding constraint by logical names.

    There is none without rules, names or a mesh.

    Args:
      logical_axis_resources: a tuple of names or a `PartitionSpec`, or a tree of them.
      rules: None takes those of the `flax.linen.logical_axis_rules` context.
      mesh: None takes that of `jax.set_mesh` or of `with mesh:`.
      fallback: ours or Flax's `RulesFallback`.
    """
    found = context_rules() if rules is None else rules
    if not found or logical_axis_resources is None:
        return x
    mode = RulesFallback(getattr(fallback, "value", fallback))
    if _is_names(logical_axis_resources):
        return _constrained(x, logical_axis_resources, found, mesh, mode)
    import jax

    def one(names: Any, array: Any) -> Any:
        return _constrained(array, names, found, mesh, mode)

    return jax.tree_util.tree_map(one, logical_axis_resources, x, is_leaf=_is_names)


def _is_names(node: Any) -> bool:
    import jax

    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    if node is None or isinstance(node, jax.sharding.PartitionSpec):
        return True
    return isinstance(node, tuple) and all(
        name is None or name is free or isinstance(name, str) for name in node
    )


def _constrained(array: Any, names: Any, rules: Any, mesh: Any, mode: RulesFallback) -> Any:
    """Return one array with its constraint, or what the fallback asks for."""
    spec = _spec(names, rules, mode)
    return array if spec is None else _placed(array, spec, mesh)


def _placed(array: Any, spec: Any, mesh: Any) -> Any:
    import jax

    from shardspec.jax_backend.surroundings import constrained, context

    constraint: Any = jax.lax.with_sharding_constraint
    around = context(array) if mesh is None else mesh
    if around.empty:
        try:
            return constraint(array, spec)
        except RuntimeError:  # neither `jax.set_mesh` nor `with mesh:`
            return array
    types: tuple[Any, ...] = around.axis_types
    if types.count(jax.sharding.AxisType.Auto) == len(types):
        return constraint(array, spec if mesh is None else _sharding(mesh, spec))
    return constrained(array, _sharding(around, spec))


def _spec(names: Any, rules: Any, mode: RulesFallback) -> Any:
    """Return the `PartitionSpec` of an array with these names, None where it stays as it is.

    A model asks for the same few in every layer and every trace, so answers are kept.
    """
    if type(rules) is tuple:
        with suppress(TypeError):  # not hashable, or an error that comes again below
            return _remembered(names, rules, mode)
    return _found(names, rules, mode)


def _found(names: Any, rules: Any, mode: RulesFallback) -> Any:
    import jax

    values = logical_to_mesh_values(names, rules)
    if values is None:
        return None
    if any(value is UNASSIGNED for value in values) and mode is not RulesFallback.AXIS_IS_UNSHARDED:
        if mode is RulesFallback.NO_CONSTRAINT:
            return None
        raise ValueError(f"Axis names {names} did not match a rule")
    make: Any = jax.sharding.PartitionSpec
    return make(*(None if value is UNASSIGNED else value for value in values))


_remembered = lru_cache(maxsize=4096)(_found)


@lru_cache(maxsize=4096)
def _sharding(mesh: Any, spec: Any) -> Any:
    import jax

    return jax.sharding.NamedSharding(mesh, spec)
