from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import meta

from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import key_of, key_reader
from tests.jax_backend.specs import make_spec

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def variable(value: Any, **metadata: Any) -> Any:
    return nnx.Param(value, eager_sharding=False, **metadata)


class Noted(flax.struct.PyTreeNode, meta.AxisMetadata):
    """A box of somebody's own, with more in it than Flax's have."""

    value: Any
    names: Any = flax.struct.field(pytree_node=False)
    note: Any = flax.struct.field(pytree_node=False, default=None)

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: Any) -> Any:
        return self

    remove_axis = add_axis


@pytest.mark.parametrize(
    ("node", "start"),
    [
        (X, ((4, 8), None)),
        (jnp.ones(3), ((3,), None)),
        (np.ones(3), ((3,), None)),
        (np.float32(1), ((), None)),
        (2, ((), None)),
        (nn.Partitioned(X, ("a", "b")), ((4, 8), ("a", "b"))),
        (nn.LogicallyPartitioned(X, ("a", "b")), ((4, 8), ("a", "b"))),
        (variable(X, out_sharding=("a", "b")), ((4, 8), ("a", "b"))),
        (variable(X, out_sharding=()), ((4, 8), None)),
        (variable(1.5), ((), None)),
    ],
)
def test_a_key_begins_with_shape_and_names(node: Any, start: Any) -> None:
    key = key_of(node)
    assert key == key_reader(type(node))(node)
    assert key[:2] == start
    hash(key)


@pytest.mark.parametrize(
    "node",
    [
        len,
        np.array(["text"]),
        np.dtype("float32"),
        jnp.float32,
        jax.sharding.PartitionSpec("a"),
        Noted(X, ("a", "b")),
        nn.Partitioned({"tree": X}, ("a", "b")),
        variable({"tree": X}),
        nn.Partitioned(X, ["a", "b"]),
    ],
)
def test_what_has_no_key(node: Any) -> None:
    assert key_reader(type(node))(node) is None
    hash(key_of(node))


def test_boxes_that_differ_in_structure_have_keys_that_differ() -> None:
    boxes = [
        nn.Partitioned(X, ("a", "b")),
        nn.LogicallyPartitioned(X, ("a", "b")),
        nn.LogicallyPartitioned(X, ("a", "b"), rules=(("a", "x"),)),
        nn.LogicallyPartitioned(X, ("b", "a")),
        variable(X, out_sharding=("a", "b")),
        nnx.BatchStat(X, out_sharding=("a", "b"), eager_sharding=False),
    ]
    assert len(set(map(key_of, boxes))) == len(boxes)


def test_keys_tell_nodes_of_several_arrays_apart() -> None:
    groups = [
        [X, X],
        [X],
        [X, 1],
        [X, len],
        [nn.Partitioned(X, ("a", "b")), X],
        [nn.Partitioned(X, ["b", "a"]), X],
        {"b": X, "c": X},
        {},
    ]
    assert len(set(map(key_of, groups))) == len(groups)
    assert key_of([X, X]) == key_of([X, jax.ShapeDtypeStruct((4, 8), jnp.int8)])
    assert key_of({}) == key_of(None)


def test_a_box_of_ones_own_keeps_what_it_holds() -> None:
    found = Resolver(make_spec(params={"plain": "embed mlp"}))
    tree = {"own": Noted(X, ("mlp", "embed"), note="mine"), "plain": X}
    shardings = found.shardings(tree)
    assert shardings["own"].note == "mine"
    assert shardings["own"].value.spec == jax.sharding.PartitionSpec("model", "data")


@pytest.mark.parametrize("params", [{}, {"**": "embed"}])
def test_a_tree_of_partition_specs_is_refused(params: dict[str, str]) -> None:
    found = Resolver(make_spec(params=params))
    with pytest.raises(ShardspecError, match="`a/w` is a PartitionSpec"):
        found.shardings({"a": {"w": jax.sharding.PartitionSpec("embed")}})
