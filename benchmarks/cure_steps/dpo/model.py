"""Direct preference optimization of a 3 B decoder beside its frozen reference; one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 16, 65536, 3072, 8192, 24, 8, 128
PAIRS, LENGTH, BETA = 32, 2048, 0.1


def shapes(dtype):
    s = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    return {
        "embedding": s(VOCAB, EMBED),
        "layers": {
            "norm_1": s(LAYERS, EMBED),
            "query": s(LAYERS, EMBED, HEADS, KV),
            "key": s(LAYERS, EMBED, KV_HEADS, KV),
            "value": s(LAYERS, EMBED, KV_HEADS, KV),
            "out": s(LAYERS, HEADS, KV, EMBED),
            "norm_2": s(LAYERS, EMBED),
            "gate": s(LAYERS, EMBED, MLP),
            "up": s(LAYERS, EMBED, MLP),
            "down": s(LAYERS, MLP, EMBED),
        },
        "norm": s(EMBED),
    }


def rms(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attention(x, p):
    query = jnp.einsum("ble,ehd->blhd", x, p["query"])
    key = jnp.repeat(jnp.einsum("ble,ehd->blhd", x, p["key"]), HEADS // KV_HEADS, axis=2)
    value = jnp.repeat(jnp.einsum("ble,ehd->blhd", x, p["value"]), HEADS // KV_HEADS, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) / KV**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
    return jnp.einsum("blhd,hde->ble", mixed, p["out"])


def step(resolver):
    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        x = x + attention(rms(x, p["norm_1"]), p)
        h = rms(x, p["norm_2"])
        h = jax.nn.silu(h @ p["gate"]) * (h @ p["up"])
        x = x + h @ p["down"]
        x = resolver.constrain(x, "batch length embed")  # expert
        return x, None

    def log_likelihood(params, tokens, mask):
        """Return the log-likelihood of each sequence of [batch, length] tokens."""
        x = params["embedding"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = rms(x, params["norm"])
        logits = jnp.einsum("ble,ve->blv", x, params["embedding"].astype(x.dtype))
        logits = resolver.constrain(logits, "batch length vocab")  # expert
        logits = logits.astype(jnp.float32)
        targets = jnp.roll(tokens, -1, axis=1)
        own = -optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return (own * mask).sum(-1)

    def loss_fn(params, reference, batch):
        tokens = jnp.concatenate([batch["chosen"], batch["rejected"]])
        mask = jnp.concatenate([batch["chosen_mask"], batch["rejected_mask"]])
        policy = log_likelihood(params, tokens, mask)
        frozen = jax.lax.stop_gradient(log_likelihood(reference, tokens, mask))
        chosen, rejected = jnp.split(policy - frozen, 2)
        return -jax.nn.log_sigmoid(BETA * (chosen - rejected)).mean()

    params, reference = shapes(jnp.float32), shapes(jnp.bfloat16)
    tx = optax.adamw(1e-6)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, reference, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, reference, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    s = jax.ShapeDtypeStruct
    batch = {name: s((PAIRS, LENGTH), jnp.int32) for name in ("chosen", "rejected")}
    batch |= {name: s((PAIRS, LENGTH), jnp.float32) for name in ("chosen_mask", "rejected_mask")}
    return train_step, (params, opt_state, reference, batch)
