"""Llama 3 8B on long sequences: attention goes over blocks of keys with a running softmax, in a scan."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 32, 128256, 4096, 14336, 32, 8, 128
BATCH, LENGTH, BLOCK = 8, 32768, 1024


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = {
        "norm_1": (EMBED,),
        "q": (EMBED, HEADS, KV),
        "k": (EMBED, KV_HEADS, KV),
        "v": (EMBED, KV_HEADS, KV),
        "o": (HEADS, KV, EMBED),
        "norm_2": (EMBED,),
        "gate": (EMBED, MLP),
        "up": (EMBED, MLP),
        "down": (MLP, EMBED),
    }
    layers = {name: s(LAYERS, *shape) for name, shape in layer.items()}
    return {
        "embedder": s(VOCAB, EMBED),
        "layers": layers,
        "final_norm": s(EMBED),
        "logits": s(EMBED, VOCAB),
    }


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(jnp.bfloat16)


def rope(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 8e6 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[None, :, None, :], jnp.cos(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def blockwise(q, k, v):
    """Causal attention over blocks of keys, rematerialised: no more than a block of scores is held."""
    q = q.reshape(BATCH, LENGTH, KV_HEADS, HEADS // KV_HEADS, KV) / KV**0.5
    position = jnp.arange(LENGTH)

    @jax.checkpoint
    def block(carry, inputs):
        top, total, out = carry
        k, v, start = inputs
        scores = jnp.einsum("btkgd,bskd->btkgs", q, k).astype(jnp.float32)
        seen = position[:, None] >= start + jnp.arange(BLOCK)[None, :]
        scores = jnp.where(seen[None, :, None, None, :], scores, -1e9)
        new_top = jnp.maximum(top, scores.max(-1))
        weights = jnp.exp(scores - new_top[..., None])
        scale = jnp.exp(top - new_top)
        total = total * scale + weights.sum(-1)
        added = jnp.einsum("btkgs,bskd->btkgd", weights.astype(v.dtype), v)
        return (new_top, total, out * scale[..., None] + added), None

    def in_blocks(x):
        return jnp.moveaxis(x.reshape(BATCH, LENGTH // BLOCK, BLOCK, KV_HEADS, KV), 1, 0)

    shape = q.shape[:-1]
    carry = jnp.full(shape, -1e9), jnp.zeros(shape), jnp.zeros(q.shape, jnp.float32)
    inputs = in_blocks(k), in_blocks(v), jnp.arange(0, LENGTH, BLOCK)
    (_, total, out), _ = jax.lax.scan(block, carry, inputs)
    return (out / total[..., None]).astype(jnp.bfloat16).reshape(BATCH, LENGTH, HEADS, KV)


def step(resolver):
    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        h = rms_norm(x, p["norm_1"])
        q = rope(jnp.einsum("bte,ehd->bthd", h, p["q"]))
        k = rope(jnp.einsum("bte,ehd->bthd", h, p["k"]))
        v = jnp.einsum("bte,ehd->bthd", h, p["v"])
        v = resolver.constrain(v, "batch length kv_heads kv")  # expert
        k = resolver.constrain(k, "batch kv_length kv_heads kv")  # expert
        v = resolver.constrain(v, "batch kv_length kv_heads kv")  # expert
        x = x + jnp.einsum("bthd,hde->bte", blockwise(q, k, v), p["o"])
        h = rms_norm(x, p["norm_2"])
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return x, None

    def loss_fn(params, tokens, targets):
        x = params["embedder"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = rms_norm(x, params["final_norm"])
        logits = (x @ params["logits"].astype(jnp.bfloat16)).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    params = shapes()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-5))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens, targets):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return train_step, (params, opt_state, tokens, tokens)
