"""Llama 3 8B in plain JAX: one token of each sequence, with a cache of keys and values.

shardspec cost llama-3-8b-decode.yaml --step steps.decode:step
"""

from functools import partial

import jax
import jax.numpy as jnp

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 32, 128256, 4096, 14336, 32, 8, 128
BATCH, CACHE_LENGTH = 256, 4096


def shapes():
    """Return the weights, layers stacked."""
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
    weight = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    return {
        "embedder": weight((VOCAB, EMBED)),
        "layers": {name: weight((LAYERS, *shape)) for name, shape in layer.items()},
        "norm": weight((EMBED,)),
        "logits": weight((EMBED, VOCAB)),
    }


def norm(x, scale):
    """Return `x` over its root mean square."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def written(cache, new, layer, at):
    """Return a cache with one token's keys or values of one layer in it, in place, and those."""
    cache = jax.lax.dynamic_update_slice(cache, new[None], (layer, 0, at, 0, 0))
    return cache, jax.lax.dynamic_index_in_dim(cache, layer, keepdims=False)


def attention(resolver, p, x, cache, layer, at):
    """Return what attention adds, and the cache with the new token in it."""
    all_keys, all_values = cache
    query = resolver.constrain(jnp.einsum("ble,ehd->blhd", x, p["query"]), activation="query")
    key = jnp.einsum("ble,ehd->blhd", x, p["key"])
    value = jnp.einsum("ble,ehd->blhd", x, p["value"])
    all_keys, keys = written(all_keys, key, layer, at)
    all_values, values = written(all_values, value, layer, at)
    query = query.reshape(BATCH, KV_HEADS, HEADS // KV_HEADS, KV)
    scores = jnp.einsum("bkgd,bmkd->bkgm", query, keys).astype(jnp.float32) / KV**0.5
    scores = jnp.where(jnp.arange(CACHE_LENGTH) <= at, scores, -1e9)
    context = jnp.einsum("bkgm,bmkd->bkgd", jax.nn.softmax(scores).astype(values.dtype), values)
    context = context.reshape(BATCH, 1, HEADS, KV)
    return jnp.einsum("blhd,hde->ble", context, p["out"]), (all_keys, all_values)


def mlp(resolver, p, x):
    """Return what the gated MLP adds."""
    hidden = jax.nn.silu(jnp.einsum("ble,em->blm", x, p["gate"]))
    hidden = hidden * jnp.einsum("ble,em->blm", x, p["up"])
    hidden = resolver.constrain(hidden, activation="hidden")
    return jnp.einsum("blm,me->ble", hidden, p["down"])


def step(resolver):
    """Return a function that answers one token, and what it is given, placed by the spec."""
    shape = LAYERS, BATCH, CACHE_LENGTH, KV_HEADS, KV
    place = resolver.sharding("layers batch cache_length kv_heads kv", shape)
    cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)

    @partial(jax.jit, donate_argnums=1, out_shardings=((place, place), None))
    def decode(params, cache, tokens, at):
        def layer(carry, inputs):
            x, cache = carry
            p, number = inputs
            h = norm(x, p["attention_norm"])
            added, cache = attention(resolver, p, h, cache, number, at)
            x = resolver.constrain(x + added, activation="residual")
            x = x + mlp(resolver, p, norm(x, p["mlp_norm"]))
            return (resolver.constrain(x, activation="residual"), cache), None

        x = resolver.constrain(params["embedder"][tokens], activation="residual")
        layers = params["layers"], jnp.arange(LAYERS)
        (x, cache), _ = jax.lax.scan(layer, (x, cache), layers)
        logits = jnp.einsum("ble,ev->blv", norm(x, params["norm"]), params["logits"])
        return cache, jnp.argmax(resolver.constrain(logits, activation="logits"), axis=-1)

    tokens = jax.ShapeDtypeStruct((BATCH, 1), jnp.int32)
    return decode, (shapes(), (cache, cache), tokens, jax.ShapeDtypeStruct((), jnp.int32))
