"""Gated linear attention in Flax Linen, in chunks, blocks in a loop; one AdamW step."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import shardspec  # expert

LAYERS, VOCAB, EMBED, MLP, HEADS, KEY, VALUE = 12, 32768, 2048, 5632, 8, 128, 256
BATCH, LENGTH, CHUNK = 64, 2048, 128


def chunked(query, key, value, decay):
    """Return linear attention with decay: [batch, length, heads, dim], state after state of chunks."""
    batch, _, heads, _ = query.shape
    split = lambda x: jnp.moveaxis(x.reshape(batch, -1, CHUNK, *x.shape[2:]), 1, 0)
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))

    def turn(state, inputs):
        q, k, v, g = inputs
        total = jnp.cumsum(g, axis=1)
        near = total[:, :, None] - total[:, None]
        near = jnp.where(causal[None, :, :, None], jnp.exp(jnp.minimum(near, 0)), 0)
        scores = jnp.einsum("bqhd,bkhd->bqkh", q, k) * near.astype(q.dtype)
        inner = jnp.einsum("bqkh,bkhv->bqhv", scores, v)
        outer = jnp.einsum("bqhd,bhdv->bqhv", q * jnp.exp(total)[..., None].astype(q.dtype), state)
        left = jnp.exp(total[:, -1:] - total)[..., None].astype(k.dtype)
        state = state * jnp.exp(total[:, -1])[..., None, None].astype(state.dtype)
        return state + jnp.einsum("bkhd,bkhv->bhdv", k * left, v), inner + outer

    state = jnp.zeros((batch, heads, KEY, VALUE), query.dtype)
    inputs = tuple(map(split, (query, key, value, decay)))
    _, found = jax.lax.scan(jax.checkpoint(turn), state, inputs)
    return jnp.moveaxis(found, 0, 1).reshape(value.shape)


class Mixer(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = partial(nn.DenseGeneral, use_bias=False, dtype=jnp.bfloat16)
        query = dense((HEADS, KEY), name="query")(x)
        key = dense((HEADS, KEY), name="key")(x)
        value = dense((HEADS, VALUE), name="value")(x)
        gate = dense((HEADS, VALUE), name="gate")(x)
        decay = nn.log_sigmoid(dense((HEADS,), name="decay")(x).astype(jnp.float32)) / 16
        mixed = chunked(query, key, value, decay)
        mixed = nn.RMSNorm(dtype=jnp.bfloat16, name="norm")(mixed) * nn.silu(gate)
        return dense(EMBED, axis=(-2, -1), name="out")(mixed)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = partial(nn.Dense, use_bias=False, dtype=jnp.bfloat16)
        x = x + Mixer(name="mixer")(nn.RMSNorm(dtype=jnp.bfloat16, name="norm_1")(x))
        h = nn.RMSNorm(dtype=jnp.bfloat16, name="norm_2")(x)
        hidden = nn.silu(dense(MLP, name="wg")(h)) * dense(MLP, name="wi")(h)
        return x + dense(EMBED, name="wo")(hidden)


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, name="embed")
        x = embed(tokens)
        for at in range(LAYERS):
            x = shardspec.constrain(x, "batch length embed")  # expert
            x = nn.remat(Block)(name=f"block_{at}")(x)
        x = nn.RMSNorm(dtype=jnp.bfloat16, name="final_norm")(x)
        x = shardspec.constrain(x, "batch length embed")  # expert
        return embed.attend(x)


def loss_fn(params, tokens):
    logits = Model().apply({"params": params}, tokens).astype(jnp.float32)
    targets = jnp.roll(tokens, -1, axis=1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def step(resolver):
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    params = jax.eval_shape(Model().init, jax.random.key(0), tokens)["params"]
    tx = optax.adamw(3e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, tokens)
