"""What the arguments of a step say before there is a spec."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from flax.training.train_state import TrainState

import shardspec
from shardspec.jax_backend.entry_point import arrays_of
from shardspec.jax_backend.step.trace import Call

SPEC = """\
shardspec: 1
hardware: tpu v5e 2x2
mesh: {data: rest}
rules: [batch -> data]
replicate: [{path: "**", because: nothing is decided}]
"""
WEIGHT, HELD = jnp.ones((64, 64)), jnp.ones((3, 4, 8, 16))
TOKENS = jnp.ones(4, jnp.int32)
WEIGHTS = {"wi": WEIGHT, "wo": WEIGHT}
FUSED = {"attn": {"kv": WEIGHTS}}


class Held(NamedTuple):
    k: Any
    v: Any


def _last(weights: Any, held: Any, tokens: Any) -> Any:
    first = jax.tree.leaves(held)[0]
    return jnp.sum(first) + (tokens[:, None] * weights["wi"][0]) @ weights["wo"]


def decode(weights: Any, held: Any, tokens: Any) -> Any:
    """Return tokens, and what was held with new values."""
    return _last(weights, held, tokens), jax.tree.map(lambda each: each + 1, held)


def reads(weights: Any, cache: Any, tokens: Any) -> Any:
    """Read a cache by its name, which does not come back."""
    return _last(weights, cache, tokens)


def of_variables(variables: Any, tokens: Any) -> Any:
    """Read the cache among Linen's variables."""
    return _last(variables["params"], variables["cache"], tokens)


def fused(weights: Any, cache: Any, tokens: Any) -> Any:
    """Have a projection that is called as caches are."""
    return _last(weights["attn"]["kv"], cache, tokens)


def trains_fused(weights: Any, tokens: Any) -> Any:
    """Return gradients of such a projection."""
    return jax.grad(lambda own: jnp.sum(fused(own, {"k": HELD}, tokens)))(weights)


@partial(jax.jit, donate_argnums=(1, 2))
def alone(weights: Any, k: Any, v: Any, tokens: Any) -> Any:
    """Have two caches that are arrays by themselves."""
    return _last(weights, k, tokens), k + 1, v + 1


def evaluate(weights: Any, images: Any, tokens: Any) -> Any:
    """Return scores alone."""
    return _last(weights, images, tokens)


def train(weights: Any, held: Any, tokens: Any) -> Any:
    """Return new weights, and what was held with new values."""
    grads = jax.grad(lambda own: jnp.sum(_last(own, held, tokens)))(weights)
    return jax.tree.map(lambda w, g: w - g, weights, grads), jax.tree.map(jnp.exp, held)


def adam(weights: Any, state: Any, cache: Any) -> Any:
    """Have optimizer state."""
    return weights, state, cache


def fails(weights: Any, cache: Any, tokens: Any) -> Any:
    """Want a name that no spec has yet."""
    return shardspec.constrain(_last(weights, cache, tokens), "batch mlp")


def two_models(one: Any, one_state: Any, two: Any, two_state: Any, images: Any) -> Any:
    """Train two models at once."""
    return one, one_state, two, two_state


def test_a_step_that_trains_two_models_has_the_parameters_of_both() -> None:
    two = {"conv": {"kernel": jnp.ones((3, 3, 4))}}
    tx = optax.adam(1e-3)
    given = (WEIGHTS, tx.init(WEIGHTS), two, tx.init(two), {"pixels": jnp.ones((256, 256, 3))})
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices="abstract", agree_within_s=None)
    found = arrays_of(Call(two_models, given, {}), resolver)
    assert {each.path for each in found.params} == {"wi", "wo", "conv/kernel"}
    states = [TrainState.create(apply_fn=None, params=params, tx=tx) for params in (WEIGHTS, two)]
    found = arrays_of(Call(train, (*states, TOKENS), {}), resolver)
    assert {each.path for each in found.params} == {"wi", "wo", "conv/kernel"}
    assert found.tokens is None, "four integers are no batch of sequences"
    batch = {"weights": jnp.ones((128, 96)), "tokens": jnp.ones((128, 96), jnp.int32)}
    found = arrays_of(Call(train, (*states, batch), {}), resolver)
    assert found.tokens == (128, 96)


@pytest.mark.parametrize(
    ("function", "given", "caches"),
    [
        (decode, (WEIGHTS, Held(HELD, HELD), TOKENS), {"k", "v"}),
        (jax.jit(decode), (WEIGHTS, [(HELD, HELD)] * 2, TOKENS), {"0/0", "0/1", "1/0", "1/1"}),
        (reads, (WEIGHTS, {"k": HELD}, TOKENS), {"k"}),
        (fails, (WEIGHTS, {"k": HELD}, TOKENS), {"k"}),
        (of_variables, ({"params": WEIGHTS, "cache": {"k": HELD}}, TOKENS), {"cache/k"}),
        (alone, (WEIGHTS, HELD, HELD, TOKENS), {"k", "v"}),
        (fused, (FUSED, {"k": HELD}, TOKENS), {"k"}),
        (trains_fused, (FUSED, TOKENS), set()),
        (evaluate, (WEIGHTS, {"image": HELD}, TOKENS), set()),
        (train, (WEIGHTS, {"k": HELD}, TOKENS), set()),
        (adam, (WEIGHTS, optax.adam(1e-3).init(WEIGHTS), {"k": HELD}), set()),
    ],
)
def test_caches_are_those_of_a_step_without_gradients(
    function: Any, given: tuple[Any, ...], caches: set[str]
) -> None:
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices="abstract", agree_within_s=None)
    found = arrays_of(Call(function, given, {}), resolver)
    assert {each.path for each in found.caches} == caches
    assert {each.path.rpartition("/")[2] for each in found.params} == {"wi", "wo"}
    assert found.is_serving == (function is alone or bool(caches))
    assert found.rows == ({4} if found.is_serving else set())


@pytest.mark.parametrize(("held", "is_serving"), [(HELD, True), (WEIGHT, False)])
def test_a_cache_may_have_the_path_of_a_parameter(held: Any, is_serving: bool) -> None:
    """`k` is a projection and a cache; an average of weights has their shapes, and is none."""
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices="abstract", agree_within_s=None)
    given = ({**WEIGHTS, "k": WEIGHT}, {"k": held}, TOKENS)
    found = arrays_of(Call(reads, given, {}), resolver)
    assert (found.is_serving, found.caches) == (is_serving, ())


def by_hand(weights: Any, moments: Any, cache: Any, tokens: Any) -> Any:
    """Train with moments of one's own, in code that wants a rule for `mlp` to be traced."""
    return fails(weights, cache, tokens), moments


def test_arrays_like_the_parameters_say_that_code_without_a_trace_trains() -> None:
    moments = {"mu": WEIGHTS, "nu": WEIGHTS}
    given = (WEIGHTS, moments, {"k": HELD}, TOKENS)
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices="abstract")
    found = arrays_of(Call(by_hand, given, {}), resolver)
    assert not found.is_serving
    assert {each.path for each in found.params} == {"wi", "wo"}


def test_what_is_frozen_of_a_model_is_a_parameter_too() -> None:
    """LoRA: adapters are trained, and their state says so; the weights beside them are not."""
    modules = ("layers/q", "layers/o")
    frozen = {"layers": {name[-1]: {"kernel": WEIGHT} for name in modules}, "embed": WEIGHT}
    adapters = {"layers": {name[-1]: {"a": HELD, "b": HELD} for name in modules}}
    images = {"pixels": jnp.ones((256, 256, 3)), "crops": {"left": jnp.ones((256, 256, 3))}}
    given = (frozen, adapters, optax.adam(1e-3).init(adapters), images)
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices="abstract")
    found = arrays_of(Call(two_models, given, {}), resolver)
    weights = {"embed", "layers/q/kernel", "layers/o/kernel"}
    lora = {f"{name}/{part}" for name in modules for part in "ab"}
    assert {each.path for each in found.params} == weights | lora
