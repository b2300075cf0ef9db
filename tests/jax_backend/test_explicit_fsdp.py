"""Weights split over the batch's mesh axis where that axis is explicit: what JAX allows of it.

docs/training.md says so; where a JAX release changes its mind, this is where it shows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardspec import Resolver, loads

SPEC = "shardspec: 1\nmesh: {data: 8 explicit}\nrules: ['batch, embed -> data', 'mlp -> none']\n"


@pytest.fixture
def resolver() -> Resolver:
    return Resolver(loads(SPEC))


def placed(resolver: Resolver, names: str, *sizes: int) -> Any:
    return jax.device_put(jnp.ones(sizes), resolver.sharding(names, sizes))


def test_a_contracted_dimension_on_the_batchs_axis_is_gathered_unasked(resolver: Resolver) -> None:
    x, wi = placed(resolver, "batch _", 8, 16), placed(resolver, "embed mlp", 16, 32)
    with jax.set_mesh(resolver.mesh):
        y = jax.jit(lambda x, w: x @ w)(x, wi)
    assert jax.typeof(y).sharding.spec == jax.P("data", None)


def test_a_dimension_that_stays_on_the_batchs_axis_is_a_type_error(resolver: Resolver) -> None:
    h, wo = placed(resolver, "batch _", 8, 32), placed(resolver, "mlp embed", 32, 16)
    with (
        jax.set_mesh(resolver.mesh),
        pytest.raises(Exception, match="illegally sharded result") as error,
    ):
        jax.jit(lambda h, w: h @ w)(h, wo)
    assert type(error.value).__name__ == "ShardingTypeError"


def test_gathered_at_use_the_weight_and_its_gradient_stay_split(resolver: Resolver) -> None:
    h, wo = placed(resolver, "batch _", 8, 32), placed(resolver, "mlp embed", 32, 16)

    def loss(w: Any, h: Any) -> Any:
        return jnp.sum(h @ resolver.constrain(w, "mlp _"))

    with jax.set_mesh(resolver.mesh):
        value, gradient = jax.jit(jax.value_and_grad(loss))(wo, h)
    assert gradient.sharding.is_equivalent_to(wo.sharding, 2)
    np.testing.assert_allclose(value, 8 * 32 * 16)
