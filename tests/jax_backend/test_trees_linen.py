"""Flax Linen: boxes, `param_with_axes`, stacked layers, frozen dicts, several collections."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax.core import freeze
from flax.linen import partitioning as legacy

from shardspec import Resolver, loads
from tests.jax_backend.verbs import TEXT, assert_jit_obeys, specs_by_every_verb

X = jnp.ones((2, 8))
SPECS = {"wi/kernel": "P('data', 'model')", "wo/kernel": "P('model', 'data')"}
PARAMS = 'params:\n  "**/wi/kernel": embed mlp\n  "**/wo/kernel": mlp embed\n'


class Block(nn.Module):
    boxes: bool = True

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        def init(*names: str) -> Any:
            kernel = nn.initializers.lecun_normal()
            return nn.with_logical_partitioning(kernel, names) if self.boxes else kernel

        wi = nn.Dense(16, use_bias=False, kernel_init=init("embed", "mlp"), name="wi")
        wo = nn.Dense(8, use_bias=False, kernel_init=init("mlp", "embed"), name="wo")
        return x + wo(nn.relu(wi(x))), None


class Model(nn.Module):
    boxes: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for number in range(2):
            x, _ = Block(self.boxes, name=f"layers_{number}")(x)
        return x


LAYERS = {f"layers_{n}/{name}": spec for n in range(2) for name, spec in SPECS.items()}


def test_boxed() -> None:
    tree = Model().init(jax.random.key(0), X)
    assert specs_by_every_verb(tree) == LAYERS
    assert specs_by_every_verb(tree["params"]) == LAYERS
    assert specs_by_every_verb(freeze(tree)) == LAYERS
    live = assert_jit_obeys(Model().init, jax.random.key(0), X)
    assert isinstance(live["params"]["layers_0"]["wi"]["kernel"], nn.LogicallyPartitioned)


@pytest.mark.parametrize("wrap", [dict, freeze])
def test_unboxed(wrap: Any) -> None:
    def init(rng: Any) -> Any:
        return wrap(Model(boxes=False).init(rng, X))

    assert specs_by_every_verb(init(jax.random.key(0)), TEXT + PARAMS) == LAYERS
    assert_jit_obeys(init, jax.random.key(0), text=TEXT + PARAMS)


def test_shardings_without_boxes_serve_for_the_boxed_tree_too() -> None:
    found = Resolver(loads(TEXT))
    abstract = jax.eval_shape(Model().init, jax.random.key(0), X)
    shardings = found.shardings(abstract, boxed=False)
    live = jax.jit(Model().init, out_shardings=shardings)(jax.random.key(0), X)
    kernel = live["params"]["layers_1"]["wo"]["kernel"]
    assert kernel.value.sharding == shardings["params"]["layers_1"]["wo"]["kernel"]
    unboxed = jax.jit(lambda: nn.unbox(Model().init(jax.random.key(0), X)), out_shardings=shardings)
    assert unboxed()["params"]["layers_1"]["wo"]["kernel"].sharding == kernel.value.sharding


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scanned_layers(axis: int) -> None:
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scanned = nn.scan(
                Block,
                variable_axes={"params": axis},
                split_rngs={"params": True},
                length=3,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return scanned(name="layers")(x, None)[0]

    spec = ["'data'", "'model'"]
    spec.insert(axis, "None")
    tree = Stack().init(jax.random.key(0), X)
    assert specs_by_every_verb(tree)["layers/wi/kernel"] == f"P({', '.join(spec)})"
    assert_jit_obeys(Stack().init, jax.random.key(0), X)


def test_vmapped_layers() -> None:
    class Experts(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mapped = nn.vmap(
                Block,
                in_axes=None,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                axis_size=4,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return mapped(name="experts")(x)[0].sum(0)

    tree = Experts().init(jax.random.key(0), X)
    assert specs_by_every_verb(tree) == {
        "experts/wi/kernel": "P(None, 'data', 'model')",
        "experts/wo/kernel": "P(None, 'model', 'data')",
    }
    assert_jit_obeys(Experts().init, jax.random.key(0), X)


class WithAxes(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        normal = nn.initializers.lecun_normal()
        wi = legacy.param_with_axes("wi", normal, (8, 16), axes=("embed", "mlp"))
        wo = legacy.param_with_axes("wo", normal, (16, 8), axes=("mlp", "embed"))
        mean = legacy.variable_with_axes("stats", "mean", jnp.zeros, (16,), axes=("mlp",))
        return x + (x @ wi + mean.value) @ wo, None


def test_param_with_axes() -> None:
    tree = WithAxes().init(jax.random.key(0), X)
    assert set(tree) == {"params", "params_axes", "stats", "stats_axes"}
    expected = {"wi": "P('data', 'model')", "wo": "P('model', 'data')", "stats/mean": "P('model')"}
    assert specs_by_every_verb(tree) == expected
    assert specs_by_every_verb(freeze(tree)) == expected
    assert_jit_obeys(WithAxes().init, jax.random.key(0), X)


def test_param_with_axes_scanned() -> None:
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scanned = legacy.scan_with_axes(
                WithAxes,
                variable_axes={"params": 0, "stats": 0},
                split_rngs={"params": True},
                axis_name="layers",
                axes_collections=("params", "stats"),
                length=3,
            )
            return scanned(name="layers")(x, None)[0]

    tree = Stack().init(jax.random.key(0), X)
    assert specs_by_every_verb(tree) == {
        "layers/wi": "P(None, 'data', 'model')",
        "layers/wo": "P(None, 'model', 'data')",
        "stats/layers/mean": "P(None, 'model')",
    }
    assert_jit_obeys(Stack().init, jax.random.key(0), X)


def test_other_collections_keep_their_name() -> None:
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, name="norm")(x)

    text = f'{TEXT}params: {{"**/norm/*": embed}}\n'
    assert specs_by_every_verb(Normed().init(jax.random.key(0), X), text) == {
        "batch_stats/norm/mean": "P('data')",
        "batch_stats/norm/var": "P('data')",
        "norm/bias": "P('data')",
        "norm/scale": "P('data')",
    }
