"""A Gemma-like 7B with every constraint that it needs, always on: nothing is to be added."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV = 28, 256128, 3072, 24576, 16, 256
BATCH, LENGTH = 128, 4096


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = {
        "attention_norm": (EMBED,),
        "q": (EMBED, HEADS, KV),
        "k": (EMBED, HEADS, KV),
        "v": (EMBED, HEADS, KV),
        "o": (HEADS, KV, EMBED),
        "mlp_norm": (EMBED,),
        "gate": (EMBED, MLP),
        "up": (EMBED, MLP),
        "down": (MLP, EMBED),
    }
    layers = {name: s(LAYERS, *shape) for name, shape in layer.items()}
    return {"embedder": s(VOCAB, EMBED), "layers": layers, "final_norm": s(EMBED)}


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (wide * (1 + scale)).astype(jnp.bfloat16)


def step(resolver):
    constrain = resolver.constrain

    def attention(h, p):
        q, k, v = (
            constrain(jnp.einsum("bte,ehd->bthd", h, p[n]), activation="head") for n in "qkv"
        )
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / KV**0.5
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        context = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(jnp.bfloat16), v)
        context = constrain(context, activation="head")
        return constrain(jnp.einsum("bthd,hde->bte", context, p["o"]), activation="residual")

    def mlp(h, p):
        hidden = jax.nn.gelu(h @ p["gate"]) * (h @ p["up"])
        hidden = constrain(hidden, activation="hidden")
        return constrain(hidden @ p["down"], activation="residual")

    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        h = constrain(rms_norm(x, p["attention_norm"]), activation="whole")
        x = constrain(x + attention(h, p), activation="residual")
        h = constrain(rms_norm(x, p["mlp_norm"]), activation="whole")
        x = constrain(x + mlp(h, p), activation="residual")
        return x, None

    def loss_fn(params, tokens):
        table = params["embedder"].astype(jnp.bfloat16)
        x = constrain(table[tokens] * EMBED**0.5, activation="residual")
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = constrain(rms_norm(x, params["final_norm"]), activation="whole")
        logits = constrain(jnp.einsum("bte,ve->btv", x, table), activation="logits")
        targets = jnp.roll(tokens, -1, axis=1)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), targets
        )
        return losses.mean()

    params = shapes()
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)
    rows = resolver.sharding("batch length", (BATCH, LENGTH))

    @partial(
        jax.jit, donate_argnums=(0, 1), in_shardings=(*places, rows), out_shardings=(*places, None)
    )
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        grads = jax.lax.with_sharding_constraint(grads, places[0])
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
