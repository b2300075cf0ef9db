"""Flax Linen's own resolver as the oracle, on random names, rules, sizes and meshes."""

from __future__ import annotations

import math
from typing import Any

import jax
from flax import linen as nn
from flax.linen import spmd
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.compat.flax import UNASSIGNED, _logical_to_mesh_axes, logical_to_mesh_axes
from shardspec.ir.plan import divides
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, Policy
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.shardings import partition_entries
from shardspec.resolve.match import assign_axes, rule_table
from tests.jax_backend.specs import make_spec

FREE = P.UNCONSTRAINED
NAMES = ("batch", "embed", "mlp", "heads", "kv", "vocab", "", "Embed")
MESH_AXES = ("data", "model", "expert", "replica")

mesh_axis = st.sampled_from(MESH_AXES)
axis_tuples = st.lists(mesh_axis, max_size=3).map(tuple)
entries = st.one_of(
    st.sampled_from(NAMES), st.sampled_from(NAMES), st.none(), st.just(FREE), axis_tuples
)
values = st.one_of(
    mesh_axis,
    st.none(),
    st.just(FREE),
    axis_tuples,
    st.lists(st.one_of(mesh_axis, st.none(), st.just(FREE)), max_size=3),
    st.lists(mesh_axis, max_size=2),
    st.tuples(mesh_axis, axis_tuples),
    st.just("no such axis"),
)
keys = st.one_of(st.sampled_from(NAMES), st.none(), st.just(FREE))
odd_items = st.sampled_from(["ab", "", "abc", ("a",), ("a", "x", "y"), 3, None, ["batch", "data"]])
rule_lists = st.lists(st.tuples(keys, values), max_size=10)
rules_of_any_kind = st.one_of(
    rule_lists,
    rule_lists.map(tuple),
    st.lists(st.one_of(st.tuples(keys, values), odd_items), max_size=6),
    st.just({"batch": "data"}),
    st.just(()),
)
names_of_any_kind = st.one_of(
    st.lists(entries, max_size=6).map(tuple),
    st.lists(entries, max_size=6),
    st.lists(st.sampled_from(NAMES), max_size=6, unique=True).map(lambda names: P(*names)),
    st.text("ab", min_size=1, max_size=3),
    st.none(),
)


def outcome(function: Any, *args: Any) -> Any:
    """Return what a call gives, or the type and text of what it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def linens(function: Any, *args: Any) -> Any:
    """Return the outcome of a function of Linen.

    Flax 0.12.4 hands jax 0.10.0 its own mark for "undecided", where a rule is for no name.
    """
    found = outcome(function, *args)
    assume(not (isinstance(found, tuple) and "canonicalize_partition" in str(found[1:])))
    return found


def plain(raw: Any) -> Any:
    """Return a raw answer with each library's mark for "no rule" replaced by one string."""
    if not isinstance(raw, list):
        return raw
    marks = (UNASSIGNED, spmd._unassigned_axis)
    return ["unassigned" if any(x is mark for mark in marks) else x for x in raw]


@given(names_of_any_kind, rules_of_any_kind)
def test_the_drop_in_is_linen(names: Any, rules: Any) -> None:
    assert outcome(logical_to_mesh_axes, names, rules) == linens(
        nn.logical_to_mesh_axes, names, rules
    )
    assert plain(outcome(_logical_to_mesh_axes, names, rules)) == plain(
        outcome(spmd._logical_to_mesh_axes, names, rules)
    )


@given(names_of_any_kind, rules_of_any_kind)
def test_the_drop_in_is_linen_in_a_context(names: Any, rules: Any) -> None:
    with nn.logical_axis_rules(rules):
        assert outcome(logical_to_mesh_axes, names) == linens(nn.logical_to_mesh_axes, names)


#: Linen has an IndexError for a leaf that is "" under a rule for ""; we have an empty spec.
trees = st.lists(names_of_any_kind, max_size=4).filter(
    lambda tree: "" not in jax.tree_util.tree_leaves(tree)
)


@given(trees, rule_lists)
def test_the_drop_in_is_linen_on_trees(tree: Any, rules: Any) -> None:
    from shardspec.compat.flax import logical_to_mesh

    assert outcome(logical_to_mesh, tree, rules) == linens(nn.logical_to_mesh, tree, rules)


#: Only what our own language can say: names or None, no axis twice, every mesh axis known.
own_names = st.lists(
    st.one_of(st.sampled_from(NAMES), st.none()),
    max_size=5,
    unique_by=lambda name: object() if name is None else name,
).map(tuple)
own_values = st.one_of(
    mesh_axis, st.none(), st.lists(mesh_axis, max_size=3, unique=True).map(tuple)
)
own_rules = st.lists(st.tuples(st.sampled_from(NAMES), own_values, st.integers(-1, 2)), max_size=10)
meshes = st.fixed_dictionaries({axis: st.sampled_from([1, 1, 2, 3, 4]) for axis in MESH_AXES})
sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 7, 8, 12, 24, 48, 13]), min_size=5, max_size=5)


def axis_rule(axis: str, value: Any, priority: int) -> AxisRule:
    axes = (value,) if isinstance(value, str) else tuple(value or ())
    return AxisRule(axis, axes, priority)


def by_priority(rules: Any) -> list[Any]:
    return sorted(rules, key=lambda rule: rule[2])


def mesh_of(sizes: dict[str, int]) -> Mesh:
    return Mesh(tuple(MeshAxis(axis, size) for axis, size in sizes.items()))


@given(own_names, own_rules, meshes, sizes)
def test_our_resolver_is_linen_where_indivisible_sizes_are_kept(
    names: Any, rules: Any, mesh: Any, sizes: Any
) -> None:
    ordered = by_priority(rules)
    table = rule_table([axis_rule(*rule) for rule in ordered], mesh_of(mesh), policy=Policy("keep"))
    dims = assign_axes(sizes[: len(names)], names, table)
    expected = nn.logical_to_mesh_axes(names, [(axis, value) for axis, value, _ in ordered])
    assert P(*partition_entries(dims)) == expected


@given(own_names, own_rules, meshes, sizes)
def test_the_default_policy_is_linen_without_the_rules_that_do_not_divide(
    names: Any, rules: Any, mesh: Any, sizes: Any
) -> None:
    shape = dict(zip(names, sizes, strict=False))

    def divides_here(rule: Any) -> bool:
        ways = math.prod(mesh[axis] for axis in axis_rule(*rule).mesh_axes)
        return rule[0] not in shape or divides(ways, shape[rule[0]])

    ordered = by_priority(rules)
    table = rule_table([axis_rule(*rule) for rule in ordered], mesh_of(mesh))
    dims = assign_axes(sizes[: len(names)], names, table)
    kept = [(axis, value) for axis, value, p in ordered if divides_here((axis, value, p))]
    assert P(*partition_entries(dims)) == nn.logical_to_mesh_axes(names, kept)


@given(own_names, own_rules, meshes, sizes)
def test_shard_shapes_are_those_of_jax(names: Any, rules: Any, mesh: Any, sizes: Any) -> None:
    table = rule_table([axis_rule(*rule) for rule in by_priority(rules)], mesh_of(mesh))
    dims = assign_axes(sizes[: len(names)], names, table)
    kinds = (AxisType.Auto,) * len(mesh)
    abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=kinds)
    sharding = NamedSharding(abstract, P(*partition_entries(dims)))
    expected = sharding.shard_shape(tuple(sizes[: len(names)]))
    assert tuple(dim.shard_size for dim in dims) == expected


#: A `PartitionSpec` turns the name "" into None on the way to Linen's resolver.
kept_names = own_names.filter(lambda names: "" not in names)


@given(own_rules, st.lists(kept_names, min_size=1, max_size=6))
def test_a_tree_is_placed_as_linen_places_it(rules: Any, arrays: Any) -> None:
    mesh = {"data": 2, "model": 2, "expert": 2, "replica": 1}
    known = [(name, None, 9) for name in NAMES]
    ordered = by_priority([*rules, *known])
    spec = make_spec([(axis, value) for axis, value, _ in ordered], mesh)
    tree = {
        f"w{number}": nn.LogicallyPartitioned(jax.ShapeDtypeStruct((8,) * len(n), "float32"), n)
        for number, n in enumerate(arrays)
    }
    found = Resolver(spec)
    logical = nn.get_partition_spec(tree)
    expected = nn.logical_to_mesh_sharding(
        logical, found.mesh, [(axis, value) for axis, value, _ in ordered]
    )
    assert found.shardings(tree, boxed=False) == expected
