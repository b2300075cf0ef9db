"""Constraints while a model is made from one example, as small programs do it."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import pytest

from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec
from tests.jax_backend.test_constrain import constraints

ONE, WHOLE = jnp.zeros((1, 8)), jnp.zeros((4, 8))


def linen(found: Resolver, names: str, mapped: str | None) -> Any:
    """Return a model of Linen with a constraint in a scanned layer."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: None) -> Any:
            return found.constrain(nn.Dense(8)(x), names, mapped=mapped), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            axes: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            layers = nn.scan(nn.remat(Layer), length=2, **axes)
            return layers()(x, None)[0]

    return Model()


def haiku(found: Resolver, names: str, mapped: str | None) -> Any:
    """Return a model of Haiku with a constraint."""

    def call(x: Any) -> Any:
        return found.constrain(hk.Linear(8)(x), names, mapped=mapped)

    return hk.without_apply_rng(hk.transform(call))


@pytest.mark.parametrize("make", [linen, haiku])
@pytest.mark.parametrize("how", [jax.jit, lambda function: function])
def test_one_example_makes_parameters_and_batches_are_constrained(make: Any, how: Any) -> None:
    model = make(Resolver(make_spec()), "batch mlp", None)
    params = how(model.init)(jax.random.key(0), ONE)
    assert constraints(model.apply, params, WHOLE) == ['[{"data"}, {"model"}]']
    with pytest.raises(ShardspecError, match="`batch` = 1 does not divide"):
        model.apply(params, ONE)


@pytest.mark.parametrize("make", [linen, haiku])
def test_names_that_nothing_has_are_refused_while_parameters_are_made(make: Any) -> None:
    model = make(Resolver(make_spec()), "batch nowhere", None)
    with pytest.raises(ShardspecError, match="unknown logical axis"):
        model.init(jax.random.key(0), ONE)


def test_sizes_of_one_example_of_vmap_are_those_of_parameters() -> None:
    def call(x: Any) -> Any:
        return found.constrain(hk.Linear(3)(x), "mlp", mapped="batch")

    found, model = Resolver(make_spec()), hk.without_apply_rng(hk.transform(call))
    params = model.init(jax.random.key(0), jnp.zeros(8))
    with pytest.raises(ShardspecError, match="`mlp` = 3 does not divide"):
        model.apply(params, jnp.zeros(8))
