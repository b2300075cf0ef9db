"""Flax Linen's resolver by its own names.

`logical_to_mesh_axes`, `logical_to_mesh` and `logical_to_mesh_sharding` have the signatures,
results and errors of `flax.linen.spmd` (0.12), and the answer comes from the resolver that
specs go through, `resolve.assign`. Linen resolves without a mesh, so every mesh axis that a
rule names is taken to exist, and sizes are not known.

What Linen allows beyond our language is translated, not special: dimensions that are no names
(None, `UNCONSTRAINED`, a tuple of mesh axes) keep their value, and the mesh axes among them
are taken before the first rule is tried.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from shardspec.ir.mesh import Mesh, MeshAxis
from shardspec.ir.spec import AxisRule, Policy
from shardspec.resolve.assign import assign_axes, rule_table

if TYPE_CHECKING:
    import jax

Names = Any
Rules = Any

#: Stands for a dimension of its own that holds the mesh axes in use from the start.
_TAKEN_BEFORE = "taken before"


class Unassigned:
    """The value of a dimension that no rule placed; as in Linen it is false."""

    def __repr__(self) -> str:
        """Return the name that Linen prints."""
        return "UnassignedAxis"

    def __bool__(self) -> bool:
        """Say that there is no assignment."""
        return False


UNASSIGNED = Unassigned()


def logical_to_mesh_axes(
    array_dim_names: Names, rules: Rules | None = None
) -> jax.sharding.PartitionSpec | None:
    """Return the `PartitionSpec` for the logical axes of one array, None for None.

    Args:
      array_dim_names: a name, None, `UNCONSTRAINED` or a tuple of mesh axes per dimension.
      rules: pairs of logical axis and mesh axes, first come first served; None takes those of
        the `flax.linen.logical_axis_rules` context around the call.
    """
    found = context_rules() if rules is None else rules
    if isinstance(found, (tuple, list)):
        names = tuple(array_dim_names) if isinstance(array_dim_names, list) else array_dim_names
        with suppress(TypeError):  # not hashable, or an error that comes again below
            return _remembered(names, tuple(found))
    return _partition_spec(logical_to_mesh_values(array_dim_names, found))


@lru_cache(maxsize=4096)
def _remembered(names: Names, rules: tuple[Any, ...]) -> jax.sharding.PartitionSpec | None:
    """Return the answer for one pair of names and rules."""
    return _partition_spec(logical_to_mesh_values(names, rules))


def logical_to_mesh(tree: Any, rules: Rules | None = None) -> Any:
    """Return `tree` with every logical `PartitionSpec` resolved."""
    return _mapped(tree, rules, lambda spec: spec)


def logical_to_mesh_sharding(tree: Any, mesh: jax.sharding.Mesh, rules: Rules | None = None) -> Any:
    """Return `tree` with a `NamedSharding` for every logical `PartitionSpec`.

    Equal specs share one object.
    """
    import jax

    known: dict[Any, Any] = {}

    def sharding(spec: Any) -> Any:
        if spec not in known:
            known[spec] = jax.sharding.NamedSharding(mesh, spec)
        return known[spec]

    return _mapped(tree, rules, sharding)


def _mapped(tree: Any, rules: Rules | None, finish: Callable[[Any], Any]) -> Any:
    """Return `tree` with each leaf resolved and finished, equal specs once."""
    import jax

    found = context_rules() if rules is None else rules
    known: dict[Any, Any] = {}
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=_spec_test())
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, jax.sharding.PartitionSpec):
            leaves[place] = finish(logical_to_mesh_axes(leaf, found))
            continue
        if leaf not in known:
            known[leaf] = finish(logical_to_mesh_axes(leaf, found))
        leaves[place] = known[leaf]
    return treedef.unflatten(leaves)


def _partition_spec(raw: list[Any] | None) -> jax.sharding.PartitionSpec | None:
    import jax

    if raw is None:
        return None
    make: Any = jax.sharding.PartitionSpec
    return cast("jax.sharding.PartitionSpec", make(*(None if x is UNASSIGNED else x for x in raw)))


def _spec_test() -> Any:
    """Return the `is_leaf` for a `PartitionSpec`; None where JAX takes it for a leaf itself."""
    import jax

    kind: Any = jax.sharding.PartitionSpec
    structure = jax.tree_util.tree_structure(kind("axis"))
    is_leaf = jax.tree_util.treedef_is_leaf(structure)
    return None if is_leaf else lambda node: isinstance(node, kind)


def context_rules() -> Rules:
    """Return the rules of Flax's context; it has none as long as Flax is not imported."""
    spmd = sys.modules.get("flax.core.spmd")
    return () if spmd is None else spmd.get_logical_axis_rules()


def logical_to_mesh_values(names: Names, rules: Rules | None = None) -> list[Any] | None:
    """Return one value per dimension: as it was, as its rule says, or `UNASSIGNED`."""
    if names is None:
        return None
    pairs = context_rules() if rules is None else rules
    _refuse_duplicates(names)
    if not isinstance(pairs, (tuple, list)):
        raise ValueError("Unknown axis rule specification type.")
    values: dict[AxisRule, Any] = {}
    before = [axis for name in names if not isinstance(name, str) for axis in _mesh_axes(name)]
    ordered = [_rule(_TAKEN_BEFORE, before, 0)]
    for priority, (axis, value) in enumerate(pairs, 1):
        if axis in names and isinstance(axis, str):
            rule = _rule(str(names.index(axis)), _mesh_axes(value), priority)
            values[rule] = value
            ordered.append(rule)
    taken = _taken(len(names), ordered)
    return [
        values.get(cast("AxisRule", rule), UNASSIGNED) if isinstance(name, str) else name
        for name, rule in zip(names, taken, strict=True)
    ]


def _refuse_duplicates(names: Sequence[Any]) -> None:
    counts = Counter(names)
    twice = tuple(name for name, count in counts.items() if count > 1 and isinstance(name, str))
    if twice:
        raise ValueError(f"Unsupported: Dimensions {twice} occur more than once in array names.")


def _mesh_axes(value: Any) -> Iterator[Any]:
    """Yield the mesh axes in a value of a rule, however it nests them."""
    import jax

    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    return (axis for axis in jax.tree_util.tree_leaves(value) if axis is not free)


def _rule(place: str, mesh_axes: Iterator[Any] | list[Any], priority: int) -> AxisRule:
    # an axis twice in one value is left to `NamedSharding` to refuse
    return AxisRule(place, tuple(dict.fromkeys(mesh_axes)), priority)


def _taken(rank: int, rules: list[AxisRule]) -> list[AxisRule | None]:
    """Return the rule that placed each dimension; logical axes are their positions."""
    used = dict.fromkeys(axis for rule in rules for axis in rule.mesh_axes)
    mesh = Mesh(tuple(MeshAxis(axis, 1) for axis in used))
    table = rule_table(rules, mesh, policy=Policy("keep"))
    places = (_TAKEN_BEFORE, *map(str, range(rank)))
    dims = assign_axes((None,) * len(places), places, table)
    return [dim.rule for dim in dims[1:]]
