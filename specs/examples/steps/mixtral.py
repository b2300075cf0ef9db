"""Mixtral 8x7B in Flax Linen, its layers scanned as MaxText stacks them, and one train step of it.

shardspec cost mixtral-8x7b.yaml --step steps.mixtral:train
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 32, 32000, 4096, 14336, 32, 8, 128
EXPERTS, CHOICES = 8, 2
BATCH, LENGTH = 512, 4096
#: How many tokens of a sequence an expert takes; those beyond are dropped.
CAPACITY = LENGTH * CHOICES // EXPERTS

dense = partial(nn.DenseGeneral, use_bias=False, dtype=jnp.bfloat16)
norm = partial(nn.RMSNorm, dtype=jnp.bfloat16)


class Attention(nn.Module):
    """Grouped-query attention."""

    constrain: Any

    @nn.compact
    def __call__(self, x):
        query = self.constrain(dense((HEADS, KV), name="query")(x), activation="query")
        key, value = (dense((KV_HEADS, KV), name=name)(x) for name in ("key", "value"))
        context = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return dense(EMBED, axis=(-2, -1), name="out")(context)


class Experts(nn.Module):
    """A gated MLP for each expert; tokens travel to two of them and back."""

    constrain: Any

    @nn.compact
    def __call__(self, x):
        weights = nn.initializers.lecun_normal()
        up = self.param("wi_0", weights, (EXPERTS, EMBED, MLP)).astype(jnp.bfloat16)
        gate = self.param("wi_1", weights, (EXPERTS, EMBED, MLP)).astype(jnp.bfloat16)
        down = self.param("wo", weights, (EXPERTS, MLP, EMBED)).astype(jnp.bfloat16)
        dispatch, combine = self.routes(dense(EXPERTS, name="gate")(x))
        sent = jnp.einsum("ble,blxc->xbce", x, dispatch)
        sent = self.constrain(sent, activation="leaving")
        sent = self.constrain(sent, activation="dispatched")
        hidden = jax.nn.silu(jnp.einsum("xbce,xem->xbcm", sent, gate))
        hidden = hidden * jnp.einsum("xbce,xem->xbcm", sent, up)
        hidden = self.constrain(hidden, activation="expert_hidden")
        back = jnp.einsum("xbcm,xme->xbce", hidden, down)
        back = self.constrain(back, activation="dispatched")
        back = self.constrain(back, activation="leaving")
        return jnp.einsum("xbce,blxc->ble", back, combine)

    def routes(self, scores):
        """Return where each token goes, and with what weight: `[batch length expert slot]`."""
        chances = jax.nn.softmax(self.constrain(scores, activation="scores").astype(jnp.float32))
        taken = jnp.zeros_like(chances)
        for _ in range(CHOICES):
            best = jnp.argmax(jnp.where(taken > 0, -1.0, chances), axis=-1)
            taken += jax.nn.one_hot(best, EXPERTS)
        slots = (jnp.cumsum(taken, axis=1) * taken).astype(jnp.int32) - 1
        dispatch = jax.nn.one_hot(slots, CAPACITY, dtype=jnp.bfloat16)
        shares = chances * taken
        shares /= shares.sum(-1, keepdims=True)
        return dispatch, dispatch * shares.astype(jnp.bfloat16)[..., None]


class Layer(nn.Module):
    """Attention and experts, each behind a norm."""

    constrain: Any

    @nn.compact
    def __call__(self, x, _):
        h = norm(name="pre_self_attention_layer_norm")(x)
        x = x + Attention(self.constrain, name="self_attention")(h)
        x = self.constrain(x, activation="residual")
        h = norm(name="post_self_attention_layer_norm")(x)
        x = x + Experts(self.constrain, name="MoeBlock_0")(h)
        return self.constrain(x, activation="residual"), None


class Decoder(nn.Module):
    """All layers in one scan, worked out again in the backward pass, and logits."""

    constrain: Any

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            nn.remat(Layer, prevent_cse=False),
            variable_axes={"params": 1},
            split_rngs={"params": True},
            length=LAYERS,
        )
        x, _ = stack(self.constrain, name="layers")(x, None)
        x = norm(name="decoder_norm")(x)
        logits = dense(VOCAB, name="logits_dense")(x)
        return self.constrain(logits.astype(jnp.float32), activation="logits")


class Mixtral(nn.Module):
    """An embedding and the decoder."""

    constrain: Any

    @nn.compact
    def __call__(self, tokens):
        embedder = nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, name="token_embedder")
        x = self.constrain(embedder(tokens), activation="residual")
        return Decoder(self.constrain, name="decoder")(x)


def train(resolver):
    """Return one step of AdamW in float32, and what it is given: shapes, placed by the spec."""
    model = Mixtral(resolver.constrain)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    optimizer = optax.adamw(3e-4)
    state = jax.eval_shape(optimizer.init, params)
    places = resolver.shardings(params), resolver.state_shardings(state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params, state, tokens):
        def loss(params):
            chosen = jax.nn.one_hot(jnp.roll(tokens, -1, axis=1), VOCAB)
            chances = jax.nn.log_softmax(model.apply(params, tokens))
            return -jnp.mean(jnp.sum(chances * chosen, axis=-1))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, state, tokens)
