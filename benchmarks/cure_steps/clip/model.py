"""CLIP, an image tower and a text tower, with one contrastive loss over all pairs of the batch."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax

BATCH, PATCHES, PIXELS, TOKENS, VOCAB, JOINT = 16384, 256, 588, 80, 49408, 1280


@dataclass(frozen=True)
class Tower:
    layers: int
    embed: int
    heads: int
    kv: int
    mlp: int


IMAGE = Tower(48, 1664, 16, 104, 8192)
TEXT = Tower(32, 1280, 20, 64, 5120)


def tower_shapes(t):
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "final_norm": s(t.embed),
        "head": s(t.embed, JOINT),
        "layers": {
            "norm_1": s(t.layers, t.embed),
            "q": s(t.layers, t.embed, t.heads, t.kv),
            "k": s(t.layers, t.embed, t.heads, t.kv),
            "v": s(t.layers, t.embed, t.heads, t.kv),
            "o": s(t.layers, t.heads, t.kv, t.embed),
            "norm_2": s(t.layers, t.embed),
            "wi": s(t.layers, t.embed, t.mlp),
            "wo": s(t.layers, t.mlp, t.embed),
        },
    }


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    image = {"patch_embedding": s(PIXELS, IMAGE.embed), "position": s(PATCHES, IMAGE.embed)}
    text = {"token_embedding": s(VOCAB, TEXT.embed), "position": s(TOKENS, TEXT.embed)}
    return {
        "image": image | tower_shapes(IMAGE),
        "text": text | tower_shapes(TEXT),
        "temperature": s(),
    }


def layer_norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def encode(x, p, mask):
    @jax.checkpoint
    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        h = layer_norm(x, p["norm_1"])
        q, k, v = (jnp.einsum("bte,ehd->bthd", h, p[n]) for n in "qkv")
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        scores = scores if mask is None else jnp.where(mask, scores, -1e9)
        context = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + jnp.einsum("bthd,hde->bte", context, p["o"])
        x = x + jax.nn.gelu(layer_norm(x, p["norm_2"]) @ p["wi"]) @ p["wo"]
        return x, None

    x, _ = jax.lax.scan(layer, x, p["layers"])
    return layer_norm(x, p["final_norm"])


def step(resolver):
    def image_features(p, images):
        x = images @ p["patch_embedding"].astype(jnp.bfloat16)
        x = x + p["position"].astype(jnp.bfloat16)
        x = resolver.constrain(x, "batch patches embed")  # expert
        x = encode(x, p, None).mean(axis=1)
        return x @ p["head"].astype(jnp.bfloat16)

    def text_features(p, tokens):
        x = p["token_embedding"].astype(jnp.bfloat16)[tokens]
        x = x + p["position"].astype(jnp.bfloat16)
        x = resolver.constrain(x, "batch tokens embed")  # expert
        x = encode(x, p, jnp.tril(jnp.ones((TOKENS, TOKENS), bool)))
        last = jnp.argmax(tokens, axis=-1)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return x @ p["head"].astype(jnp.bfloat16)

    def normalized(z):
        z = z.astype(jnp.float32)
        return z / (jnp.linalg.norm(z, axis=-1, keepdims=True) + 1e-8)

    def loss_fn(params, images, tokens):
        zi = normalized(image_features(params["image"], images))
        zt = normalized(text_features(params["text"], tokens))
        logits = zi @ zt.T * jnp.exp(params["temperature"])
        labels = jnp.arange(BATCH)
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        columns = optax.softmax_cross_entropy_with_integer_labels(logits.T, labels).mean()
        return (rows + columns) / 2

    params = shapes()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(5e-4, b2=0.98, weight_decay=0.2))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, images, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, images, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    images = jax.ShapeDtypeStruct((BATCH, PATCHES, PIXELS), jnp.bfloat16)
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    return train_step, (params, opt_state, images, tokens)
