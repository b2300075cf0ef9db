"""Mamba 2.8B in plain JAX: a scan over layers, within it one over length; one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, INNER, STATE, RANK, WINDOW = 64, 50288, 2560, 5120, 16, 160, 4
BATCH, LENGTH, CHUNK = 64, 2048, 64


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "embedding": s(VOCAB, EMBED),
        "layers": {
            "norm": s(LAYERS, EMBED),
            "in_proj": s(LAYERS, EMBED, 2, INNER),
            "conv": s(LAYERS, WINDOW, INNER),
            "x_proj": s(LAYERS, INNER, RANK + 2 * STATE),
            "dt_proj": s(LAYERS, RANK, INNER),
            "dt_bias": s(LAYERS, INNER),
            "a_log": s(LAYERS, INNER, STATE),
            "skip": s(LAYERS, INNER),
            "out_proj": s(LAYERS, INNER, EMBED),
        },
        "final_norm": s(EMBED),
    }


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale).astype(
        jnp.bfloat16
    )


def causal_conv(u, kernel):
    padded = jnp.pad(u, ((0, 0), (WINDOW - 1, 0), (0, 0)))
    return sum(padded[:, i : i + u.shape[1]] * kernel[i] for i in range(WINDOW))


def step(resolver):
    def selective_scan(u, dt, a, b, c):
        """h' = exp(dt a) h + dt b u, y = c h, token after token, with remat of each chunk."""

        def token(h, inputs):
            u, dt, b, c = inputs
            decay = jnp.exp(dt[..., None].astype(jnp.float32) * a)
            h = decay * h + ((dt * u)[..., None] * b[:, None, :]).astype(jnp.float32)
            return h, jnp.einsum("bds,bs->bd", h, c.astype(jnp.float32)).astype(u.dtype)

        @jax.checkpoint
        def chunk(h, inputs):
            return jax.lax.scan(token, h, inputs)

        def in_chunks(x):
            return jnp.moveaxis(x, 1, 0).reshape(LENGTH // CHUNK, CHUNK, BATCH, x.shape[-1])

        h = jnp.zeros((BATCH, INNER, STATE), jnp.float32)
        _, y = jax.lax.scan(chunk, h, jax.tree.map(in_chunks, (u, dt, b, c)))
        return jnp.moveaxis(y.reshape(LENGTH, BATCH, INNER), 0, 1)

    def layer(x, p):
        p = p | {n: p[n].astype(jnp.bfloat16) for n in p if n != "a_log"}
        u, gate = jnp.moveaxis(
            jnp.einsum("ble,egi->blgi", rms_norm(x, p["norm"]), p["in_proj"]), 2, 0
        )
        u = jax.nn.silu(causal_conv(u, p["conv"]))
        rank, b, c = jnp.split(u @ p["x_proj"], [RANK, RANK + STATE], axis=-1)
        dt = jax.nn.softplus(rank @ p["dt_proj"] + p["dt_bias"])
        y = selective_scan(u, dt, -jnp.exp(p["a_log"]), b, c)
        y = (y + u * p["skip"]) * jax.nn.silu(gate)
        x = x + y @ p["out_proj"]
        return x, None

    def loss_fn(params, tokens):
        x = params["embedding"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = rms_norm(x, params["final_norm"])
        logits = jnp.einsum("ble,ve->blv", x, params["embedding"].astype(jnp.bfloat16))
        targets = jnp.roll(tokens, -1, axis=1)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), targets
        )
        return losses.mean()

    params = shapes()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-4))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
