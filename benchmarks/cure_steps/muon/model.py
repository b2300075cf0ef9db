"""A GPT of half a billion with Muon: momentum of each matrix orthogonalised by Newton and Schulz."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV = 16, 50304, 1536, 6144, 12, 128
BATCH, LENGTH, ROUNDS = 128, 1024, 5


class MuonState(NamedTuple):
    momentum: Any


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "embedding": s(VOCAB, EMBED),
        "layers": {
            "qkv": s(LAYERS, EMBED, 3 * EMBED),
            "out": s(LAYERS, EMBED, EMBED),
            "up": s(LAYERS, EMBED, MLP),
            "down": s(LAYERS, MLP, EMBED),
        },
    }


def norm(x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def attention(x, p):
    qkv = (x @ p["qkv"]).reshape(*x.shape[:2], 3, HEADS, KV)
    query, key, value = norm(qkv[:, :, 0]), norm(qkv[:, :, 1]), qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) / KV**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
    return mixed.reshape(x.shape) @ p["out"]


def layer(x, p):
    p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
    x = x + attention(norm(x), p)
    return x + jnp.square(jax.nn.relu(norm(x) @ p["up"])) @ p["down"], None


def step(resolver):
    def orthogonal(matrices):
        """Return stacked matrices with their singular values near one."""
        x = matrices.astype(jnp.bfloat16)
        x = resolver.constrain(x, "stack _ _")  # expert
        is_tall = x.shape[-2] > x.shape[-1]
        x = jnp.swapaxes(x, -1, -2) if is_tall else x
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
        for _ in range(ROUNDS):
            square = x @ jnp.swapaxes(x, -1, -2)
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return jnp.swapaxes(x, -1, -2) if is_tall else x

    def muon(rate, decay=0.95):
        def init(params):
            return MuonState(jax.tree.map(jnp.zeros_like, params))

        def update(grads, state, params=None):
            momentum = jax.tree.map(lambda m, g: decay * m + g, state.momentum, grads)
            ahead = jax.tree.map(lambda m, g: decay * m + g, momentum, grads)
            return jax.tree.map(lambda m: -rate * orthogonal(m), ahead), MuonState(momentum)

        return optax.GradientTransformation(init, update)

    def loss_fn(params, tokens):
        table = params["embedding"].astype(jnp.bfloat16)
        x = norm(table[tokens])
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = jnp.einsum("ble,ve->blv", norm(x), table).astype(jnp.float32)
        targets = jnp.roll(tokens, -1, axis=1)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    params = shapes()
    tx = optax.multi_transform(
        {"matrix": muon(0.02), "table": optax.adamw(3e-4)},
        {"embedding": "table", "layers": "matrix"},
    )
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
