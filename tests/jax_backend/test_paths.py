from __future__ import annotations

import collections
import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import freeze
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from shardspec.jax_backend.trees import component, params_of, path_of

Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    wi: object
    wo: object


@jax.tree_util.register_pytree_node_class
class Nameless:
    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def paths(tree: object) -> list[str]:
    return [param.path for param in params_of(tree)]


X = jax.ShapeDtypeStruct((4,), jnp.float32)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (DictKey("kernel"), "kernel"),
        (DictKey(0), "0"),
        (DictKey(""), ""),
        (SequenceKey(3), "3"),
        (GetAttrKey("wi"), "wi"),
        (FlattenedIndexKey(1), "1"),
        ("[own]", "own"),
    ],
)
def test_component_of_each_kind_of_key(key: object, text: str) -> None:
    assert component(key) == text


def test_params_is_dropped_at_the_root_only() -> None:
    assert path_of((DictKey("params"), DictKey("a"))) == "a"
    assert path_of((GetAttrKey("params"), DictKey("a"))) == "a"
    assert path_of((DictKey("a"), DictKey("params"), DictKey("b"))) == "a/params/b"
    assert path_of((DictKey("params"),)) == "params"
    assert path_of(()) == ""


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"b": X, "a": {"c": X}}, ["a/c", "b"]),
        ({"layers": [X, (X, {"w": X})]}, ["layers/0", "layers/1/0", "layers/1/1/w"]),
        (Pair({"a": X}, X), ["left/a", "right"]),
        (Block(X, {"kernel": X}), ["wi", "wo/kernel"]),
        ({"n": Nameless(X, [X])}, ["n/0", "n/1/0"]),
        ({"a": None, "b": X}, ["b"]),
        ({0: {1: X}}, ["0/1"]),
        (freeze({"params": {"a": X}}), ["a"]),
        (
            {"params": {"a": X}, "batch_stats": {"bn": {"mean": X}}},
            ["batch_stats/bn/mean", "a"],
        ),
        ({"w": nn.Partitioned(X, ("embed",))}, ["w"]),
        ({"w": nn.LogicallyPartitioned({"a": X, "b": X}, ("embed",))}, ["w/a", "w/b"]),
        ({"mlp/~/linear_0": {"w": X}}, ["mlp/~/linear_0/w"]),
        (X, [""]),
        ({}, []),
    ],
)
def test_paths_of_trees(tree: object, expected: list[str]) -> None:
    assert paths(tree) == expected


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        x = nn.Dense(8, kernel_init=init, name="wi")(x)
        return nn.Dense(4, name="wo")(x)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(
            nnx.initializers.lecun_normal(), ("embed", "mlp"), eager_sharding=False
        )
        self.wi = nnx.Linear(4, 8, kernel_init=init, rngs=rngs)
        self.wo = nnx.Linear(8, 4, rngs=rngs)


def test_linen_nnx_and_a_dict_have_the_same_paths() -> None:
    linen = jax.eval_shape(Linen().init, jax.random.key(0), jnp.ones((2, 4)))
    module = nnx.eval_shape(lambda: Nnx(nnx.Rngs(0)))
    state = nnx.state(module)
    plain = {
        "wi": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)},
        "wo": {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)},
    }
    expected = ["wi/bias", "wi/kernel", "wo/bias", "wo/kernel"]
    assert sorted(paths(linen)) == expected
    assert sorted(paths(module)) == expected
    assert sorted(paths(state)) == expected
    assert sorted(paths(nnx.to_pure_dict(state))) == expected
    assert sorted(paths(plain)) == expected
    by_path = [{p.path: p for p in params_of(tree)} for tree in (linen, module, state)]
    assert by_path[0] == by_path[1] == by_path[2]
    assert by_path[0]["wi/kernel"].logical_axes == ("embed", "mlp")
