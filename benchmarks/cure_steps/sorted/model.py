"""A decoder whose tokens are sorted by expert: a buffer for each expert, and a scatter back; AdamW."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV, EXPERTS, TOP = 8, 50304, 1536, 4096, 12, 128, 32, 4
BATCH, LENGTH = 64, 2048
SLOTS = TOP * LENGTH // EXPERTS * 3 // 2


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = {
        "ln_1": s(LAYERS, EMBED),
        "qkv": s(LAYERS, EMBED, 3, HEADS, KV),
        "proj": s(LAYERS, HEADS, KV, EMBED),
        "ln_2": s(LAYERS, EMBED),
        "gate": s(LAYERS, EMBED, EXPERTS),
        "experts": {
            "w1": s(LAYERS, EXPERTS, EMBED, MLP),
            "w3": s(LAYERS, EXPERTS, EMBED, MLP),
            "w2": s(LAYERS, EXPERTS, MLP, EMBED),
        },
    }
    return {"wte": s(VOCAB, EMBED), "blocks": layer, "ln_f": s(EMBED), "lm_head": s(EMBED, VOCAB)}


def rms(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attention(x, p):
    qkv = jnp.einsum("bte,enhd->nbthd", x, p["qkv"])
    q, k, v = qkv[0], qkv[1], qkv[2]
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / KV**0.5
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    probs = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
    return jnp.einsum("bhts,bshd,hde->bte", probs, v, p["proj"])


def step(resolver):
    def sorted_tokens(x, experts):
        """Give the tokens of one sequence to experts: which token is in which slot, and whether."""
        flat = experts.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        counts = jnp.bincount(flat, length=EXPERTS)
        starts = jnp.cumsum(counts) - counts
        slots = jnp.arange(SLOTS)[None, :]
        is_there = slots < counts[:, None]
        places = jnp.where(is_there, starts[:, None] + slots, 0)
        return order[places], is_there

    def moe(x, p):
        logits = jnp.einsum("bte,ex->btx", x, p["gate"]).astype(jnp.float32)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(logits), TOP)
        weights = weights / weights.sum(-1, keepdims=True)
        pairs, is_there = jax.vmap(sorted_tokens)(x, chosen)
        tokens = pairs // TOP
        rows = jnp.arange(x.shape[0])[:, None, None]
        inputs = x[rows, tokens] * is_there[..., None].astype(x.dtype)
        inputs = resolver.constrain(inputs, "batch _ slots embed")  # expert
        inputs = resolver.constrain(inputs, "groups expert slots embed")  # expert
        gate = jnp.einsum("bxse,xef->bxsf", inputs, p["experts"]["w1"])
        up = jnp.einsum("bxse,xef->bxsf", inputs, p["experts"]["w3"])
        outputs = jnp.einsum("bxsf,xfe->bxse", jax.nn.silu(gate) * up, p["experts"]["w2"])
        outputs = resolver.constrain(outputs, "groups expert slots embed")  # expert
        outputs = resolver.constrain(outputs, "batch _ slots embed")  # expert
        own = weights.reshape(x.shape[0], -1)[rows, pairs] * is_there
        outputs = outputs * own[..., None].astype(x.dtype)
        return jnp.zeros_like(x).at[rows, tokens].add(outputs)

    def block(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        x = x + attention(rms(x, p["ln_1"]), p)
        x = x + moe(rms(x, p["ln_2"]), p)
        x = resolver.constrain(x, "batch length embed")  # expert
        return x, None

    def loss_fn(params, tokens):
        x = params["wte"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["blocks"])
        logits = rms(x, params["ln_f"]) @ params["lm_head"].astype(jnp.bfloat16)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), jnp.roll(tokens, -1, axis=1)
        )
        return losses.mean()

    params = shapes()
    tx = optax.adamw(2e-4, b2=0.95)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
