"""A jitted init and a train step under the plan: arrays lie where it says, numbers are equal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import leaves_of, params_of
from tests.jax_backend import models
from tests.jax_backend.specs import PARAMS, make_spec


def resolver(**more: Any) -> Resolver:
    return Resolver(make_spec(activations={"residual": "batch length embed"}, **more))


def assert_lies_as_planned(found: Resolver, abstract: Any, live: Any) -> None:
    """Compare every shard of every array with the plan's trace, index by index."""
    plan = found.plan(abstract)
    mesh = found.mesh
    assert len(leaves_of(live)) == len(plan.arrays)
    for leaf in leaves_of(live):
        sharding = plan[leaf.path]
        spec = jax.sharding.PartitionSpec(*(dim.mesh_axes or None for dim in sharding.dims))
        expected = jax.sharding.NamedSharding(mesh, spec)
        indices = expected.devices_indices_map(leaf.value.shape)
        shards = leaf.value.addressable_shards
        assert len(shards) == 8
        for shard in shards:
            assert shard.data.shape == sharding.shard_shape
            assert shard.index == indices[shard.device]
        assert leaf.value.sharding.is_equivalent_to(expected, leaf.value.ndim)


def assert_close(actual: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-6)


OPTIMIZER = optax.sgd(0.1)


def step(params: Any, tokens: Any, apply: Any) -> tuple[Any, Any]:
    def loss(params: Any) -> Any:
        return models.cross_entropy(apply(params, tokens), tokens)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, _ = OPTIMIZER.update(gradients, OPTIMIZER.init(params))
    return value, optax.apply_updates(params, updates)


@pytest.mark.parametrize(
    "init",
    [models.init_dict, pytest.param(models.init_dataclass, marks=pytest.mark.nightly)],
)
def test_plain_trees(init: Any) -> None:
    found = resolver(params=PARAMS)
    rng = jax.random.key(0)
    abstract = jax.eval_shape(init, rng)
    shardings = found.shardings(abstract)
    assert jax.tree.structure(shardings) == jax.tree.structure(abstract)
    params = jax.jit(init, out_shardings=shardings)(rng)
    assert_lies_as_planned(found, abstract, params)
    assert {p.partition_spec.is_replicated for p in found.plan(abstract).arrays} == {False}

    def constrain(x: Any) -> Any:
        return found.constrain(x, activation="residual")

    tokens = jax.device_put(models.batch(), found.sharding("batch length", (4, 8)))
    sharded = jax.jit(
        lambda p, t: step(p, t, lambda p, t: models.forward(p, t, constrain)),
        in_shardings=(shardings, tokens.sharding),
        out_shardings=(None, shardings),
    )
    loss, after = sharded(params, tokens)
    plain_loss, plain_after = jax.jit(lambda p, t: step(p, t, models.forward))(
        init(rng), models.batch()
    )
    assert_lies_as_planned(found, abstract, after)
    assert_close((loss, after), (plain_loss, plain_after))


@pytest.mark.parametrize("boxed", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_linen(boxed: bool) -> None:
    found = resolver()
    rng, tokens = jax.random.key(0), models.batch()
    plain = models.LinenModel()
    model = models.LinenModel(lambda x: found.constrain(x, "batch length embed"))
    abstract = jax.eval_shape(model.init, rng, tokens)
    shardings = found.shardings(abstract, boxed=boxed)
    assert (jax.tree.structure(shardings) == jax.tree.structure(abstract)) is boxed
    variables = jax.jit(model.init, out_shardings=shardings)(rng, tokens)
    assert_lies_as_planned(found, abstract, variables)

    loss, after = jax.jit(
        lambda v, t: step(v, t, model.apply),
        in_shardings=(shardings, found.sharding("batch length")),
        out_shardings=(None, shardings),
    )(variables, tokens)
    plain_variables = jax.jit(plain.init)(rng, tokens)
    expected = jax.jit(lambda v, t: step(v, t, plain.apply))(plain_variables, tokens)
    assert_lies_as_planned(found, abstract, after)
    assert_close((loss, after), expected)


def test_linen_unboxed_by_the_user() -> None:
    found = resolver()
    rng, tokens = jax.random.key(0), models.batch()
    model = models.LinenModel()
    abstract = jax.eval_shape(model.init, rng, tokens)
    shardings = found.shardings(abstract, boxed=False)
    params = jax.jit(lambda r, t: nn.unbox(model.init(r, t)), out_shardings=shardings)(rng, tokens)
    assert jax.tree.structure(shardings) == jax.tree.structure(params)
    assert_lies_as_planned(found, abstract, params)


def test_nnx() -> None:
    found = resolver()
    tokens = models.batch()

    def build(constrain: Any) -> Any:
        return nnx.split(models.NnxModel(nnx.Rngs(0), constrain), nnx.Param, ...)

    def constrain(x: Any) -> Any:
        return found.constrain(x, "batch length embed")

    def apply(graph: Any, rest: Any) -> Any:
        return lambda params, tokens: nnx.merge(graph, params, rest)(tokens)

    graph, abstract, rest = jax.eval_shape(lambda: build(constrain))
    shardings = found.shardings(abstract)
    assert jax.tree.structure(shardings) == jax.tree.structure(abstract)
    params = jax.jit(lambda: build(constrain)[1], out_shardings=shardings)()
    assert_lies_as_planned(found, abstract, params)

    loss, after = jax.jit(
        lambda p, t: step(p, t, apply(graph, rest)),
        in_shardings=(shardings, found.sharding("batch length")),
        out_shardings=(None, shardings),
    )(params, tokens)
    plain_graph, plain_params, plain_rest = build(lambda x: x)
    expected = jax.jit(lambda p, t: step(p, t, apply(plain_graph, plain_rest)))(
        plain_params, tokens
    )
    assert_lies_as_planned(found, abstract, after)
    assert_close((loss, after), expected)


def test_nnx_module_is_updated_in_place() -> None:
    found = resolver()
    model = models.NnxModel(nnx.Rngs(0))
    nnx.update(model, found.put(nnx.state(model, nnx.Param)))
    assert_lies_as_planned(found, nnx.state(model, nnx.Param), nnx.state(model, nnx.Param))
    assert jnp.isfinite(nnx.jit(lambda m, t: m(t))(model, models.batch())).all()


def test_adam_state_of_a_plain_tree_by_the_parameters_shardings() -> None:
    found = resolver(params=PARAMS)
    optimizer = optax.adam(1e-3)
    params = found.put(models.init_dict(jax.random.key(0)))
    state = jax.jit(optimizer.init)(params)
    mu = jax.device_put(state[0].mu, found.shardings(params))
    assert_lies_as_planned(found, params, mu)


def test_put_moves_arrays_and_leaves_the_rest() -> None:
    found = resolver(params={"w": "embed mlp", "f": "_"})
    tree = {"w": np.ones((16, 32), np.float32), "f": jax.nn.relu, "n": None, "step": 3, "s": "text"}
    put = found.put(tree)
    assert put["f"] is jax.nn.relu
    assert put["n"] is None
    assert put["s"] == "text"
    assert put["w"].sharding == found.shardings(tree)["w"]
    assert type(put["step"]) is int  # code may branch on it
    assert {shard.data.shape for shard in put["w"].addressable_shards} == {(8, 8)}
    assert len(params_of(tree)) == 2
