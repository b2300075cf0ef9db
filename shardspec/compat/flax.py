"""Flax Linen's partitioning functions by their own names, answered by our own stages.

One changed import moves a code base over: `from shardspec.compat import flax as partitioning`
for `from flax.linen import partitioning`. What resolves names is ours and needs no Flax. What
belongs to Flax's modules and scopes (`param_with_axes`, `scan_with_axes`, `AxisMetadata`, the
context `axis_rules`, ...) is handed on from Flax itself.

`logical_to_mesh_axes`, `logical_to_mesh` and `logical_to_mesh_sharding` have the signatures,
results and errors of `flax.linen.spmd` (0.12), and the answer comes from the resolver that
specs go through, `resolve.match`. Linen resolves without a mesh, so every mesh axis that a
rule names is taken to exist, and sizes are not known. What Linen allows beyond our language is
translated, not special: dimensions that are no names (None, `UNCONSTRAINED`, a tuple of mesh axes)
keep their value, and the mesh axes among them are taken before the first rule is tried.

`with_logical_constraint` does what Linen's does, and where Linen's would do nothing or fail without
need, it does what the caller asked for: the older `with mesh:` counts as a mesh, as it did before
Flax 0.12.2, and under explicit mesh axes the array is resharded.

Packages that only some names here need: an absent one says what to install.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, Policy
from shardspec.jax_backend.constrain import constrained, context
from shardspec.jax_backend.shardings import collector_at_rest
from shardspec.resolve.match import assign_axes, rule_table


def required(module: str, *, extra: str, for_what: str) -> Any:
    """Return a module of an optional dependency.

    Args:
      extra: the extra of shardspec that brings it.
      for_what: what cannot be done without it, as the subject of a sentence.

    Raises:
      ImportError: it is not installed; says what is.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{for_what} needs `{package}`: pip install 'shardspec[{extra}]'"
        raise ImportError(message, name=package) from None
    return import_module(module)


__all__ = [
    "UNASSIGNED",
    "RulesFallback",
    "Unassigned",
    "_logical_to_mesh_axes",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "logical_to_mesh_values",
    "with_logical_constraint",
    "with_sharding_constraint",
]

Names = Any
Rules = Any
_SPEC: Any = PartitionSpec
_CONSTRAINT: Any = jax.lax.with_sharding_constraint
_FREE = PartitionSpec.UNCONSTRAINED
_UNSHARDED = "axis_is_unsharded"

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
) -> PartitionSpec | None:
    """Return the `PartitionSpec` for the logical axes of one array, None for None.

    Args:
      array_dim_names: a name, None, `UNCONSTRAINED` or a tuple of mesh axes per dimension.
      rules: pairs of logical axis and mesh axes, first come first served; None takes those of
        the `flax.linen.logical_axis_rules` context around the call.
    """
    found = context_rules() if rules is None else rules
    return cast("PartitionSpec | None", _spec(array_dim_names, found, _UNSHARDED))


def _spec(names: Names, rules: Rules, fallback: str) -> Any:
    """Return the `PartitionSpec` of an array with these names, None where there is none to give.

    A model asks for the same few in every layer and every trace, so answers are kept.
    """
    if isinstance(rules, (tuple, list)):
        hashable = tuple(names) if isinstance(names, list) else names
        with suppress(TypeError):  # not hashable, or an error that comes again below
            return _remembered(hashable, tuple(rules), fallback)
    return _found(names, rules, fallback)


def _found(names: Names, rules: Rules, fallback: str) -> Any:
    values = logical_to_mesh_values(names, rules)
    if values is None:
        return None
    if fallback != _UNSHARDED and any(value is UNASSIGNED for value in values):
        if fallback == RulesFallback.NO_CONSTRAINT.value:
            return None
        raise ValueError(f"Axis names {names} did not match a rule")
    return _SPEC(*(None if value is UNASSIGNED else value for value in values))


_remembered = lru_cache(maxsize=4096)(_found)


def logical_to_mesh(tree: Any, rules: Rules | None = None) -> Any:
    """Return `tree` with every logical `PartitionSpec` resolved."""
    return _mapped(tree, rules, lambda spec: spec)


def logical_to_mesh_sharding(tree: Any, mesh: jax.sharding.Mesh, rules: Rules | None = None) -> Any:
    """Return `tree` with a `NamedSharding` for every logical `PartitionSpec`.

    Equal specs share one object.
    """
    known: dict[Any, Any] = {}

    def sharding(spec: Any) -> Any:
        if spec not in known:
            known[spec] = NamedSharding(mesh, spec)
        return known[spec]

    return _mapped(tree, rules, sharding)


def _mapped(tree: Any, rules: Rules | None, finish: Callable[[Any], Any]) -> Any:
    """Return `tree` with each leaf resolved and finished, equal specs once."""
    found = context_rules() if rules is None else rules
    known: dict[Any, Any] = {}
    treedef: Any
    with collector_at_rest():
        leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=_spec_test())
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, PartitionSpec):
                leaves[place] = finish(logical_to_mesh_axes(leaf, found))
                continue
            if leaf not in known:
                known[leaf] = finish(logical_to_mesh_axes(leaf, found))
            leaves[place] = known[leaf]
        return treedef.unflatten(leaves)


def _spec_test() -> Any:
    """Return the `is_leaf` for a `PartitionSpec`; None where JAX takes it for a leaf itself."""
    structure = jax.tree_util.tree_structure(_SPEC("axis"))
    is_leaf = jax.tree_util.treedef_is_leaf(structure)
    return None if is_leaf else lambda node: isinstance(node, PartitionSpec)


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
    return (axis for axis in jax.tree_util.tree_leaves(value) if axis is not _FREE)


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


class RulesFallback(enum.Enum):
    """What becomes of a constraint in which a dimension has no rule that fires."""

    AXIS_IS_UNSHARDED = _UNSHARDED
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
    mode = RulesFallback(getattr(fallback, "value", fallback)).value
    if _is_names(logical_axis_resources):
        return _constrained(x, logical_axis_resources, found, mesh, mode)

    def one(names: Any, array: Any) -> Any:
        return _constrained(array, names, found, mesh, mode)

    return jax.tree_util.tree_map(one, logical_axis_resources, x, is_leaf=_is_names)


def _is_names(node: Any) -> bool:
    if node is None or isinstance(node, PartitionSpec):
        return True
    return isinstance(node, tuple) and all(
        name is None or name is _FREE or isinstance(name, str) for name in node
    )


def _constrained(array: Any, names: Any, rules: Any, mesh: Any, mode: str) -> Any:
    """Return one array with its constraint, or what the fallback asks for."""
    spec = _spec(names, rules, mode)
    return array if spec is None else _placed(array, spec, mesh)


def _placed(array: Any, spec: Any, mesh: Any) -> Any:
    around = context(array) if mesh is None else mesh
    if around.empty:
        try:
            return _CONSTRAINT(array, spec)
        except RuntimeError:  # neither `jax.set_mesh` nor `with mesh:`
            return array
    types: tuple[Any, ...] = around.axis_types
    if types.count(jax.sharding.AxisType.Auto) == len(types):
        return _CONSTRAINT(array, spec if mesh is None else _sharding(mesh, spec))
    return constrained(array, _sharding(around, spec))


@lru_cache(maxsize=4096)
def _sharding(mesh: Any, spec: Any) -> Any:
    return NamedSharding(mesh, spec)


with_sharding_constraint = with_logical_constraint
_logical_to_mesh_axes = logical_to_mesh_values

#: Where Flax keeps the names that are handed on.
_HOMES = ("flax.linen.partitioning", "flax.linen.spmd", "flax.linen")


def __getattr__(name: str) -> Any:
    """Return a name of Flax's that has nothing to resolve."""
    if not name.startswith("_"):
        for home in _HOMES:
            module = required(home, extra="flax", for_what=f"`shardspec.compat.flax.{name}`")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'shardspec.compat.flax' has no attribute '{name}'")
