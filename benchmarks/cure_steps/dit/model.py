"""A diffusion transformer with adaptive norms: rectified flow on latents of 64 x 64 x 16, one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, EMBED, MLP, HEADS, KV, CLASSES = 36, 2304, 9216, 18, 128, 1001
BATCH, SIDE, CHANNELS, PATCH = 512, 64, 16, 2
TOKENS, PIXELS = (SIDE // PATCH) ** 2, PATCH * PATCH * CHANNELS


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = {
        "q": (EMBED, HEADS, KV),
        "k": (EMBED, HEADS, KV),
        "v": (EMBED, HEADS, KV),
        "o": (HEADS, KV, EMBED),
        "wi": (EMBED, MLP),
        "wo": (MLP, EMBED),
        "modulation": (EMBED, 6 * EMBED),
    }
    return {
        "patch_in": s(PIXELS, EMBED),
        "position": s(TOKENS, EMBED),
        "label": s(CLASSES, EMBED),
        "time_in": s(256, EMBED),
        "time_out": s(EMBED, EMBED),
        "layers": {name: s(LAYERS, *shape) for name, shape in layer.items()},
        "final_modulation": s(EMBED, 2 * EMBED),
        "patch_out": s(EMBED, PIXELS),
    }


def modulated(x, shift, scale):
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * (1 + scale[:, None]) + shift[:, None]


def patches(x):
    n = SIDE // PATCH
    x = x.reshape(x.shape[0], n, PATCH, n, PATCH, CHANNELS)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape[0], TOKENS, PIXELS)


def step(resolver):
    def layer(x, p, c):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split(c @ p["modulation"], 6, -1)
        h = modulated(x, shift_1, scale_1)
        q, k, v = (jnp.einsum("bte,ehd->bthd", h, p[n]) for n in "qkv")
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / KV**0.5
        context = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + gate_1[:, None] * jnp.einsum("bthd,hde->bte", context, p["o"])
        h = modulated(x, shift_2, scale_2)
        x = x + gate_2[:, None] * (jax.nn.gelu(h @ p["wi"]) @ p["wo"])
        return x

    def velocity(params, x, time, label):
        p = {n: w.astype(jnp.bfloat16) for n, w in params.items() if n != "layers"}
        angle = time[:, None] * jnp.exp(-jnp.log(1e4) * jnp.arange(128) / 128)
        c = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(jnp.bfloat16)
        c = jax.nn.silu(c @ p["time_in"]) @ p["time_out"] + p["label"][label]
        c = jax.nn.silu(c)
        x = patches(x) @ p["patch_in"] + p["position"]
        x = resolver.constrain(x, "batch query_tokens embed")  # expert
        body = jax.checkpoint(lambda x, p: (layer(x, p, c), None))
        x, _ = jax.lax.scan(body, x, params["layers"])
        shift, scale = jnp.split(c @ p["final_modulation"], 2, -1)
        return modulated(x, shift, scale) @ p["patch_out"]

    def loss_fn(params, batch, key):
        key_noise, key_time = jax.random.split(key)
        latents = batch["latents"]
        noise = jax.random.normal(key_noise, latents.shape, latents.dtype)
        time = jax.nn.sigmoid(jax.random.normal(key_time, (BATCH,)))
        mix = time[:, None, None, None].astype(latents.dtype)
        noisy = mix * latents + (1 - mix) * noise
        out = velocity(params, noisy, time * 1000, batch["labels"])
        return jnp.mean((out - patches(latents - noise)).astype(jnp.float32) ** 2)

    params = shapes()
    tx = optax.adamw(1e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch, key):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, key)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batch = {
        "latents": jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, CHANNELS), jnp.bfloat16),
        "labels": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    }
    return train_step, (params, opt_state, batch, jax.eval_shape(lambda: jax.random.key(0)))
