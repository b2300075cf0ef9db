"""A latent diffusion U-Net in the shape of SDXL's, channels last, blocks in lists; one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

BATCH, SIDE, LATENT, TIME, TEXT, TOKENS = 64, 64, 4, 1280, 2048, 77
CHANNELS, HEAD = (320, 640, 1280), 64


def conv_shape(size, fan_in, fan_out):
    return jax.ShapeDtypeStruct((size, size, fan_in, fan_out), jnp.float32)


def res_shapes(fan_in, fan_out):
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    found = {
        "norm_in": s(fan_in),
        "conv_in": conv_shape(3, fan_in, fan_out),
        "time": s(TIME, fan_out),
        "norm_out": s(fan_out),
        "conv_out": conv_shape(3, fan_out, fan_out),
    }
    return found | ({"skip": conv_shape(1, fan_in, fan_out)} if fan_in != fan_out else {})


def attention_shapes(width):
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    heads = width // HEAD
    one = lambda source: {
        "norm": s(width),
        "query": s(width, heads, HEAD),
        "key": s(source, heads, HEAD),
        "value": s(source, heads, HEAD),
        "out": s(heads, HEAD, width),
    }
    mlp = {"norm": s(width), "up": s(width, 8 * width), "down": s(4 * width, width)}
    return {"self": one(width), "cross": one(TEXT), "mlp": mlp}


def shapes():
    low, mid, high = CHANNELS
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "time": {"in": s(320, TIME), "out": s(TIME, TIME)},
        "first": conv_shape(3, LATENT, low),
        "down": [
            {"res": res_shapes(low, low), "shrink": conv_shape(3, low, low)},
            {
                "res": res_shapes(low, mid),
                "attention": attention_shapes(mid),
                "shrink": conv_shape(3, mid, mid),
            },
            {"res": res_shapes(mid, high), "attention": attention_shapes(high)},
        ],
        "middle": [res_shapes(high, high), attention_shapes(high), res_shapes(high, high)],
        "up": [
            {"res": res_shapes(high + high, high), "attention": attention_shapes(high)},
            {"res": res_shapes(high + mid, mid), "attention": attention_shapes(mid)},
            {"res": res_shapes(mid + low, low)},
        ],
        "last_norm": s(low),
        "last": conv_shape(3, low, LATENT),
    }


def conv(x, kernel, stride=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
    )


def group_norm(x, scale, groups=32):
    wide = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    wide = wide - wide.mean((1, 2, 4), keepdims=True)
    wide = wide * jax.lax.rsqrt((wide**2).mean((1, 2, 4), keepdims=True) + 1e-5)
    return wide.reshape(x.shape).astype(x.dtype) * scale


def layer_norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def attend(x, source, p):
    query = jnp.einsum("bte,ehd->bthd", x, p["query"])
    key = jnp.einsum("bse,ehd->bshd", source, p["key"])
    value = jnp.einsum("bse,ehd->bshd", source, p["value"])
    scores = jnp.einsum("bthd,bshd->bhts", query, key).astype(jnp.float32) / HEAD**0.5
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), value)
    return jnp.einsum("bthd,hde->bte", mixed, p["out"])


def resized(x):
    batch, side, _, width = x.shape
    return jax.image.resize(x, (batch, 2 * side, 2 * side, width), "nearest")


def step(resolver):
    def residual(x, time, p):
        h = conv(jax.nn.silu(group_norm(x, p["norm_in"])), p["conv_in"])
        h = resolver.constrain(h, "batch height width channels")  # expert
        h = h + (jax.nn.silu(time) @ p["time"])[:, None, None]
        h = conv(jax.nn.silu(group_norm(h, p["norm_out"])), p["conv_out"])
        x = conv(x, p["skip"]) if "skip" in p else x
        x = x + h
        x = resolver.constrain(x, "batch height width channels")  # expert
        return x

    def transformer(x, text, p):
        batch, side, _, width = x.shape
        h = x.reshape(batch, side * side, width)
        normed = layer_norm(h, p["self"]["norm"])
        h = h + attend(normed, normed, p["self"])
        h = h + attend(layer_norm(h, p["cross"]["norm"]), text, p["cross"])
        gate, value = jnp.split(layer_norm(h, p["mlp"]["norm"]) @ p["mlp"]["up"], 2, axis=-1)
        h = h + (jax.nn.gelu(gate) * value) @ p["mlp"]["down"]
        h = resolver.constrain(h, "batch height channels")  # expert
        return x + h.reshape(x.shape)

    @jax.checkpoint
    def block(x, time, text, p):
        x = residual(x, time, p["res"])
        return transformer(x, text, p["attention"]) if "attention" in p else x

    def predicted(params, x, time, text):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        angle = time[:, None] * jnp.exp(-jnp.log(1e4) * jnp.arange(160) / 160)
        wave = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1).astype(x.dtype)
        time = jax.nn.silu(wave @ p["time"]["in"]) @ p["time"]["out"]
        x = conv(x, p["first"])
        x = resolver.constrain(x, "batch height width channels")  # expert
        kept = []
        for each in p["down"]:
            x = block(x, time, text, {k: v for k, v in each.items() if k != "shrink"})
            kept.append(x)
            x = conv(x, each["shrink"], stride=2) if "shrink" in each else x
        first, attention, second = p["middle"]
        x = residual(transformer(residual(x, time, first), text, attention), time, second)
        for at, each in enumerate(p["up"]):
            x = resized(x) if at else x
            x = block(jnp.concatenate([x, kept.pop()], axis=-1), time, text, each)
        return conv(jax.nn.silu(group_norm(x, p["last_norm"])), p["last"])

    def loss_fn(params, batch, key):
        for_noise, for_time = jax.random.split(key)
        noise = jax.random.normal(for_noise, batch["latents"].shape, jnp.bfloat16)
        time = jax.random.uniform(for_time, (BATCH,))
        signal = jnp.cos(time * jnp.pi / 2)[:, None, None, None].astype(jnp.bfloat16)
        noisy = signal * batch["latents"] + jnp.sqrt(1 - signal**2) * noise
        out = predicted(params, noisy, time * 1000, batch["text"])
        return jnp.mean((out - noise).astype(jnp.float32) ** 2)

    params = shapes()
    tx = optax.adamw(1e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch, key):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, key)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    s = jax.ShapeDtypeStruct
    batch = {
        "latents": s((BATCH, SIDE, SIDE, LATENT), jnp.bfloat16),
        "text": s((BATCH, TOKENS, TEXT), jnp.bfloat16),
    }
    return train_step, (params, opt_state, batch, jax.eval_shape(lambda: jax.random.key(0)))
