"""Llama 3 8B in plain JAX: stacked layers under a scan with remat, one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 32, 128256, 4096, 14336, 32, 8, 128
BATCH, LENGTH = 64, 4096


def init_shapes():
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    stacked = lambda *shape: f32(LAYERS, *shape)
    return {
        "token_embedder": {"embedding": f32(VOCAB, EMBED)},
        "layers": {
            "pre_attention_norm": {"scale": stacked(EMBED)},
            "query": stacked(EMBED, HEADS, KV),
            "key": stacked(EMBED, KV_HEADS, KV),
            "value": stacked(EMBED, KV_HEADS, KV),
            "out": stacked(HEADS, KV, EMBED),
            "pre_mlp_norm": {"scale": stacked(EMBED)},
            "wi_0": stacked(EMBED, MLP),
            "wi_1": stacked(EMBED, MLP),
            "wo": stacked(MLP, EMBED),
        },
        "decoder_norm": {"scale": f32(EMBED)},
        "logits_dense": {"kernel": f32(EMBED, VOCAB)},
    }


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(jnp.bfloat16)


def rope(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 5e5 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[None, :, None, :], jnp.cos(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attention(q, k, v):
    b, t, h, d = q.shape
    q = q.reshape(b, t, k.shape[2], h // k.shape[2], d)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / d**0.5
    mask = jnp.tril(jnp.ones((t, t), bool))
    scores = jnp.where(mask, scores, -1e9)
    probs = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(jnp.bfloat16)
    return jnp.einsum("bkgts,bskd->btkgd", probs, v).reshape(b, t, h, d)


def step(resolver):
    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        h = rms_norm(x, p["pre_attention_norm"]["scale"])
        q = rope(jnp.einsum("bte,ehd->bthd", h, p["query"]))
        k = rope(jnp.einsum("bte,ehd->bthd", h, p["key"]))
        v = jnp.einsum("bte,ehd->bthd", h, p["value"])
        context = attention(q, k, v)
        x = x + jnp.einsum("bthd,hde->bte", context, p["out"])
        h = rms_norm(x, p["pre_mlp_norm"]["scale"])
        h = jax.nn.silu(h @ p["wi_0"]) * (h @ p["wi_1"])
        x = x + h @ p["wo"]
        return x, None

    def loss_fn(params, tokens, targets):
        x = params["token_embedder"]["embedding"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = rms_norm(x, params["decoder_norm"]["scale"])
        logits = x @ params["logits_dense"]["kernel"].astype(jnp.bfloat16)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), targets
        ).mean()

    params = init_shapes()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.1))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch["inputs"], batch["targets"])
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return train_step, (params, opt_state, {"inputs": tokens, "targets": tokens})
