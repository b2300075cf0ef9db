"""Llama 3 70B, one token for each of 64 sequences, with caches of keys and values as arguments."""

from functools import partial

import jax
import jax.numpy as jnp

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 80, 128256, 8192, 28672, 64, 8, 128
BATCH, CACHE_LENGTH = 64, 4096


def shapes():
    weight = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    layer = {
        "attention_norm": (EMBED,),
        "query": (EMBED, HEADS, KV),
        "key": (EMBED, KV_HEADS, KV),
        "value": (EMBED, KV_HEADS, KV),
        "out": (HEADS, KV, EMBED),
        "mlp_norm": (EMBED,),
        "gate": (EMBED, MLP),
        "up": (EMBED, MLP),
        "down": (MLP, EMBED),
    }
    return {
        "embedder": weight((VOCAB, EMBED)),
        "layers": {name: weight((LAYERS, *shape)) for name, shape in layer.items()},
        "norm": weight((EMBED,)),
        "logits": weight((EMBED, VOCAB)),
    }


def norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def step(resolver):
    def layer(x, inputs, at):
        p, keys, values = inputs
        h = norm(x, p["attention_norm"])
        query = jnp.einsum("be,ehd->bhd", h, p["query"])
        key = jnp.einsum("be,ehd->bhd", h, p["key"])
        value = jnp.einsum("be,ehd->bhd", h, p["value"])
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key[:, None], at, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(values, value[:, None], at, axis=1)
        query = query.reshape(BATCH, KV_HEADS, HEADS // KV_HEADS, KV)
        scores = jnp.einsum("bkgd,bmkd->bkgm", query, keys).astype(jnp.float32) / KV**0.5
        scores = jnp.where(jnp.arange(CACHE_LENGTH) <= at, scores, -1e9)
        probs = jax.nn.softmax(scores).astype(values.dtype)
        context = jnp.einsum("bkgm,bmkd->bkgd", probs, values)
        context = context.reshape(BATCH, HEADS, KV)
        x = x + jnp.einsum("bhd,hde->be", context, p["out"])
        h = norm(x, p["mlp_norm"])
        hidden = jax.nn.silu(h @ p["gate"]) * (h @ p["up"])
        x = x + hidden @ p["down"]
        return x, (keys, values)

    @partial(jax.jit, donate_argnums=1)
    def decode(params, caches, tokens, at):
        keys, values = caches
        keys = resolver.constrain(keys, "layers batch cache_length kv_heads kv")  # expert
        values = resolver.constrain(values, "layers batch cache_length kv_heads kv")  # expert
        x = params["embedder"][tokens]
        x = resolver.constrain(x, "_ embed")  # expert
        layers = params["layers"], keys, values
        x, caches = jax.lax.scan(lambda x, inputs: layer(x, inputs, at), x, layers)
        logits = norm(x, params["norm"]) @ params["logits"]
        return caches, jnp.argmax(logits, axis=-1)

    cache = jax.ShapeDtypeStruct((LAYERS, BATCH, CACHE_LENGTH, KV_HEADS, KV), jnp.bfloat16)
    tokens, at = jax.ShapeDtypeStruct((BATCH,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    return decode, (shapes(), (cache, cache), tokens, at)
