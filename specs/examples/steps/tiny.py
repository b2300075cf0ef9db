"""The steps of the small models that the tests of this repository train: run it from its root.

shardspec cost specs/examples/tiny-t5.yaml --step specs.examples.steps.tiny:t5
shardspec cost specs/examples/tiny-moe.yaml --step specs.examples.steps.tiny:moe
"""

import jax
import jax.numpy as jnp
import optax

from tests.models import layers, moe_nnx, t5_linen


def t5(resolver):
    """Return one step of a T5 in Flax Linen."""
    return _step(resolver, t5_linen, ("inputs", "targets"))


def moe(resolver):
    """Return one step of a mixture of experts in Flax NNX."""
    return _step(resolver, moe_nnx, ("targets",))


def _step(resolver, model, fields):
    wiring = layers.Wiring(resolver.constrain)
    optimizer = optax.adam(1e-2)
    params = jax.eval_shape(model.init, jax.random.key(0))
    state = jax.eval_shape(optimizer.init, params)
    places = resolver.shardings(params), resolver.state_shardings(state, params)

    def step(params, state, batch):
        value, gradients = jax.value_and_grad(model.loss)(params, batch, wiring)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = jax.ShapeDtypeStruct((layers.BATCH, layers.LENGTH), jnp.int32)
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*places, None))
    return step, (params, state, dict.fromkeys(fields, tokens))
