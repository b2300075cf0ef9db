"""The fast ways over a tree give what the plan says, array by array, whatever the tree is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import example, given
from hypothesis import strategies as st

from shardspec.diagnostics import Severity, ShardspecError
from shardspec.ir.spec import Override, Pattern
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import leaves_of
from tests.jax_backend.specs import make_spec

P = jax.sharding.PartitionSpec
LAYERS = ("layers_0", "layers_1", "layers_12", "h", "norm")
INNER = ("wi", "wo", "1", "kernel")
ALLOWED = dict.fromkeys(
    ("unnamed-array", "rank-mismatch", "indivisible", "size-mismatch"), Severity.ALLOW
)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def linen(*sizes: int) -> Any:
    return nn.LogicallyPartitioned(shape(*sizes), ("embed", "mlp")[: len(sizes)])


def variable(*sizes: int) -> Any:
    return nnx.Param(
        shape(*sizes), out_sharding=("mlp", "embed")[: len(sizes)], eager_sharding=False
    )


def unnamed(*sizes: int) -> Any:
    return nnx.BatchStat(shape(*sizes))


sizes = st.lists(st.sampled_from([4, 8, 6]), max_size=2)
arrays = st.builds(
    lambda make, sizes: make(*sizes), st.sampled_from([shape, linen, variable, unnamed]), sizes
)
plain = st.one_of(sizes.map(lambda sizes: shape(*sizes)), st.just(None), st.just(3), st.just(len))


def trees(leaves: Any) -> Any:
    inner = st.one_of(
        leaves,
        st.dictionaries(st.sampled_from(INNER), leaves, max_size=3),
        st.lists(leaves, max_size=2),
        st.tuples(leaves, leaves),
    )
    return st.dictionaries(st.sampled_from(LAYERS), inner, max_size=5).flatmap(
        lambda tree: st.sampled_from([tree, {"params": tree}, [tree], nnx.State(tree)])
    )


PARAMS = [
    {},
    {"layers_*/wi": "embed mlp", "**/kernel": "mlp"},
    {"**/{wi,wo}": "mlp embed", "layers_{0,12}/**": "embed"},
    {"layers_*2/*": "mlp", "**": "embed"},
]
OVERRIDES = [
    (),
    (Override(Pattern("layers_1/*"), logical_axes=("embed", "mlp")),),
    (Override(Pattern("**/1"), partition=((), ("data",))),),
]


@given(
    st.one_of(trees(plain), trees(arrays)),
    st.sampled_from(PARAMS),
    st.sampled_from(OVERRIDES),
    st.booleans(),
)
@example({"layers_0": shape(4), "layers_1": variable(4), "h": linen(4)}, PARAMS[1], (), True)
@example({"layers_0": {"a": shape(4)}, "layers_1": {"b": shape(4)}}, PARAMS[2], (), True)
def test_shardings_are_what_the_plan_says(
    tree: Any, params: dict[str, str], overrides: tuple[Override, ...], boxed: bool
) -> None:
    found = Resolver(make_spec(params=params, overrides=overrides, lints=ALLOWED))
    plan = {sharding.param.path: sharding for sharding in found.plan(tree).arrays}
    for _ in range(2):  # answers that are remembered are the same
        shardings = found.shardings(tree, boxed=boxed)
        live = [leaf for leaf in leaves_of(tree) if leaf.shape is not None]
        placed = jax.tree.leaves(shardings)
        assert len(placed) == len(live)
        for leaf, sharding in zip(live, placed, strict=True):
            dims = plan[leaf.path].dims
            assert sharding.spec == P(*(dim.mesh_axes or None for dim in dims)), leaf.path
        if boxed and len(jax.tree.leaves(tree)) == len(live):
            assert jax.tree.structure(shardings) == jax.tree.structure(tree)


@pytest.mark.parametrize("root", [shape(4), linen(4), variable(4), 3, {}, [], [len]])
def test_a_tree_that_is_one_leaf_or_none(root: Any) -> None:
    found = Resolver(make_spec(params={"**": "embed"}, lints=ALLOWED))
    shardings = found.shardings(root)
    if root != [len]:
        assert jax.tree.structure(shardings) == jax.tree.structure(root)
    assert len(jax.tree.leaves(shardings)) == len(found.plan(root).arrays)


def test_layers_do_not_share_containers() -> None:
    found = Resolver(make_spec(params={"**": "embed"}))
    tree = {f"layers_{number}": {"w": shape(4)} for number in range(3)}
    shardings = found.shardings(tree)
    assert shardings["layers_0"]["w"] is shardings["layers_1"]["w"]
    assert shardings["layers_0"] is not shardings["layers_1"]


def test_layers_alike_but_for_a_key_are_told_apart() -> None:
    found = Resolver(make_spec(params={"**/a": "embed", "**/b": "mlp"}))
    tree = {"layers_0": {"a": shape(8)}, "layers_1": {"b": shape(8)}}
    shardings = found.shardings(tree)
    assert shardings["layers_0"]["a"].spec == P("data")
    assert shardings["layers_1"]["b"].spec == P("model")


def test_what_cannot_be_hashed_is_placed_by_its_path() -> None:
    """A class that keeps a list beside its arrays, and names given as a list."""
    import equinox as eqx

    class Layer(eqx.Module):
        w: Any
        notes: list[str] = eqx.field(static=True)

    found = Resolver(make_spec(params={"layers/*/w": "embed"}))
    tree = {
        "layers": [Layer(shape(8), ["first"]), Layer(shape(8), ["second"])],
        "own": nn.Partitioned(shape(8), ["mlp"]),
    }
    shardings = found.shardings(tree)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)
    assert shardings["layers"][1].w.spec == P("data")
    assert shardings["own"].value.spec == P("model")


@pytest.mark.parametrize("tree", [{"layers_0": {"w": shape(6)}}, {"w": linen(6, 6)}])
@pytest.mark.parametrize("params", [{}, {"**": "mlp"}, {"layers_*0/w": "mlp"}])
def test_a_fault_is_raised_on_its_own(tree: Any, params: dict[str, str]) -> None:
    """Whichever way found it, no other exception is said to have come before."""
    found = Resolver(make_spec(params=params))
    with pytest.raises(ShardspecError) as error:
        found.shardings(tree)
    assert error.value.__context__ is None or error.value.__suppress_context__
