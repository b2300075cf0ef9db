"""Equinox: modules with static fields and callables, and trees that `filter` made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from shardspec import Resolver, loads
from shardspec.jax_backend.trees import params_of
from tests.jax_backend.verbs import TEXT, assert_jit_obeys, specs_by_every_verb

PARAMS = """\
params:
  "layers/*/wi/weight": mlp embed
  "layers/*/wo/weight": embed mlp
  "layers/*/wi/bias": mlp
  "layers/*/wo/bias": embed
"""
SPECS = {
    "wi/weight": "P('model', 'data')",
    "wi/bias": "P('model')",
    "wo/weight": "P('data', 'model')",
    "wo/bias": "P('data')",
}
EXPECTED = {f"layers/{n}/{name}": spec for n in range(2) for name, spec in SPECS.items()}


class Block(eqx.Module):
    wi: eqx.nn.Linear
    wo: eqx.nn.Linear
    act: Callable[[Any], Any]
    width: int = eqx.field(static=True)

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.wi = eqx.nn.Linear(8, 16, key=first)
        self.wo = eqx.nn.Linear(16, 8, key=second)
        self.act, self.width = jax.nn.relu, 16

    def __call__(self, x: Any) -> Any:
        return x + self.wo(self.act(self.wi(x)))


class Model(eqx.Module):
    layers: tuple[Block, ...]
    norm: None = None

    def __init__(self, key: Any) -> None:
        self.layers = tuple(map(Block, jax.random.split(key, 2)))

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def model() -> Model:
    return Model(jax.random.key(0))


def test_a_module_with_callables_among_its_leaves() -> None:
    assert specs_by_every_verb(model(), TEXT + PARAMS) == EXPECTED
    shardings = Resolver(loads(TEXT + PARAMS)).shardings(model())
    assert isinstance(shardings, Model)
    assert shardings.layers[0].act is None
    assert shardings.layers[0].width == 16


def test_filtered_trees() -> None:
    arrays, static = eqx.partition(model(), eqx.is_array)
    assert specs_by_every_verb(arrays, TEXT + PARAMS) == EXPECTED
    assert params_of(static) == ()
    biases = eqx.filter(model(), lambda leaf: eqx.is_array(leaf) and leaf.ndim == 1)
    text = f'{TEXT}params: {{"**/wi/bias": mlp, "**/wo/bias": embed}}\n'
    assert specs_by_every_verb(biases, text) == {
        path: spec for path, spec in EXPECTED.items() if path.endswith("bias")
    }
    abstract = eqx.filter_eval_shape(Model, jax.random.key(0))
    assert specs_by_every_verb(abstract, TEXT + PARAMS) == EXPECTED


def test_arrays_made_in_place_and_used_in_filter_jit() -> None:
    def init() -> Any:
        return eqx.filter(model(), eqx.is_array)

    live = assert_jit_obeys(init, text=TEXT + PARAMS)
    whole = eqx.combine(live, eqx.filter(model(), eqx.is_array, inverse=True))
    x = jnp.ones(8)
    assert jnp.allclose(eqx.filter_jit(lambda tree, x: tree(x))(whole, x), model()(x), atol=1e-5)


def test_filter_shard_takes_the_shardings_of_the_arrays() -> None:
    found = Resolver(loads(TEXT + PARAMS))
    shardings = found.shardings(model())

    @eqx.filter_jit
    def moved(tree: Model) -> Model:
        arrays, static = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.lax.with_sharding_constraint(arrays, shardings), static)

    for live in (moved(model()), found.put(model())):
        assert live.layers[1].act is jax.nn.relu
        assert live.layers[1].wi.weight.sharding == shardings.layers[1].wi.weight


def test_stacked_layers() -> None:
    text = TEXT + PARAMS.replace("layers/*", "layers") + 'scan: {"layers/**": layers@0}\n'

    class Stack(eqx.Module):
        layers: Block

    tree = Stack(eqx.filter_vmap(Block)(jax.random.split(jax.random.key(0), 3)))
    assert specs_by_every_verb(tree, text) == {
        "layers/wi/weight": "P(None, 'model', 'data')",
        "layers/wi/bias": "P(None, 'model')",
        "layers/wo/weight": "P(None, 'data', 'model')",
        "layers/wo/bias": "P(None, 'data')",
    }


def test_state_beside_a_module() -> None:
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, axis_name="batch", mode="ema")
    text = TEXT + 'params: {"{weight,bias}": embed}\n'
    assert specs_by_every_verb(norm, text) == {
        "weight": "P('data')",
        "bias": "P('data')",
        "inference": "P()",
    }
    moved = Resolver(loads(TEXT)).put(state)
    assert jax.tree.structure(moved) == jax.tree.structure(state)


def test_flags_that_a_module_branches_on_are_not_moved() -> None:
    class Model(eqx.Module):
        linear: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __call__(self, x: Any) -> Any:
            return self.dropout(self.linear(x))

    tree = Model(eqx.nn.Linear(8, 8, key=jax.random.key(0)), eqx.nn.Dropout(0.5, inference=True))
    text = TEXT + 'params: {"linear/weight": mlp embed, "linear/bias": mlp}\n'
    moved = Resolver(loads(text)).put(tree)
    assert moved.dropout.inference is True
    assert moved.dropout.p == 0.5
    assert type(moved.dropout.p) is float
    assert eqx.filter_jit(lambda tree, x: tree(x))(moved, jnp.ones(8)).shape == (8,)
