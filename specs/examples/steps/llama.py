"""Llama 3 in Flax NNX, its layers stacked, scanned and rematerialised, and one train step of it.

shardspec cost llama-3-70b-scanned.yaml --step steps.llama:train
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 80, 128256, 8192, 28672, 64, 8, 128
BATCH, LENGTH = 512, 4096


class Attention(nnx.Module):
    """Grouped-query attention: eight query heads share a head of key and value."""

    def __init__(self, resolver, rngs):
        project = partial(nnx.LinearGeneral, EMBED, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.query = project((HEADS, KV))
        self.key = project((KV_HEADS, KV))
        self.value = project((KV_HEADS, KV))
        self.out = nnx.LinearGeneral(
            (HEADS, KV), EMBED, axis=(-2, -1), use_bias=False, dtype=jnp.bfloat16, rngs=rngs
        )
        self.constrain = resolver.constrain

    def __call__(self, x):
        query = self.constrain(self.query(x), activation="query")
        key = self.constrain(self.key(x), activation="key")
        value = self.constrain(self.value(x), activation="key")
        context = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.out(self.constrain(context, activation="query"))


class Mlp(nnx.Module):
    """A gated MLP."""

    def __init__(self, resolver, rngs):
        project = partial(nnx.Linear, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.gate, self.up = project(EMBED, MLP), project(EMBED, MLP)
        self.down = project(MLP, EMBED)
        self.constrain = resolver.constrain

    def __call__(self, x):
        hidden = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(self.constrain(hidden, activation="hidden"))


class Block(nnx.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, resolver, rngs):
        norm = partial(nnx.RMSNorm, EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention, self.mlp = Attention(resolver, rngs), Mlp(resolver, rngs)
        self.constrain = resolver.constrain

    def __call__(self, x):
        x = self.constrain(x + self.attention(self.attention_norm(x)), activation="residual")
        return self.constrain(x + self.mlp(self.mlp_norm(x)), activation="residual")


class Llama(nnx.Module):
    """An embedding, the stack, and logits."""

    def __init__(self, resolver, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs):
            return Block(resolver, rngs)

        self.embedder = nnx.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.layers = stacked(rngs)
        self.norm = nnx.RMSNorm(EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.logits = nnx.Linear(EMBED, VOCAB, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.constrain = resolver.constrain

    def __call__(self, tokens):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def through(x, block):
            return block(x)

        x = self.constrain(self.embedder(tokens), activation="residual")
        x = self.norm(through(x, self.layers))
        return self.constrain(self.logits(x).astype(jnp.float32), activation="logits")


def train(resolver):
    """Return one step of AdamW in float32, and what it is given: shapes, placed by the spec."""
    model = nnx.eval_shape(lambda: Llama(resolver, nnx.Rngs(0)))
    graph, params = nnx.split(model)
    optimizer = optax.adamw(3e-4)
    state = jax.eval_shape(optimizer.init, params)
    places = resolver.shardings(params), resolver.state_shardings(state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params, state, tokens):
        def loss(params):
            logits = nnx.merge(graph, params)(tokens)
            chosen = jax.nn.one_hot(jnp.roll(tokens, -1, axis=1), VOCAB)
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=-1))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return step, (params, state, tokens)
