"""A mixture of experts, GShard's way: dispatch and combine einsums with a capacity, top two of 16."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV, EXPERTS = 16, 32000, 2048, 8192, 16, 128, 16
BATCH, LENGTH = 128, 2048
CAPACITY = 2 * LENGTH // EXPERTS * 5 // 4


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = {
        "attn_norm": (EMBED,),
        "q": (EMBED, HEADS, KV),
        "k": (EMBED, HEADS, KV),
        "v": (EMBED, HEADS, KV),
        "o": (HEADS, KV, EMBED),
        "moe_norm": (EMBED,),
        "router": (EMBED, EXPERTS),
        "wi": (EXPERTS, EMBED, MLP),
        "wg": (EXPERTS, EMBED, MLP),
        "wo": (EXPERTS, MLP, EMBED),
    }
    layers = {name: s(LAYERS, *shape) for name, shape in layer.items()}
    return {
        "embed": s(VOCAB, EMBED),
        "layers": layers,
        "final_norm": s(EMBED),
        "head": s(EMBED, VOCAB),
    }


def rms_norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attention(x, p):
    q, k, v = (jnp.einsum("bte,ehd->bthd", x, p[n]) for n in "qkv")
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / KV**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    probs = jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16)
    return jnp.einsum("bthd,hde->bte", jnp.einsum("bhts,bshd->bthd", probs, v), p["o"])


def route(x, router):
    """Return the combine tensor [group, token, expert, slot] of each token's two best experts."""
    gates = jax.nn.softmax(jnp.einsum("gse,ex->gsx", x, router).astype(jnp.float32))
    values, indices = jax.lax.top_k(gates, 2)
    values = values / values.sum(-1, keepdims=True)
    combine, used = 0.0, 0
    for choice in range(2):
        mask = jax.nn.one_hot(indices[..., choice], EXPERTS, dtype=jnp.int32)
        place = (jnp.cumsum(mask, axis=1) - 1 + used) * mask
        used = used + mask.sum(axis=1, keepdims=True)
        slots = jax.nn.one_hot(jnp.where(mask > 0, place, -1), CAPACITY, dtype=jnp.bfloat16)
        combine = combine + values[..., choice, None, None].astype(jnp.bfloat16) * slots
    return combine


def step(resolver):
    def moe(x, p):
        combine = route(x, p["router"])
        dispatch = (combine > 0).astype(jnp.bfloat16)
        inputs = jnp.einsum("gsxc,gse->xgce", dispatch, x)
        inputs = resolver.constrain(inputs, "_ batch capacity embed")  # expert
        inputs = resolver.constrain(inputs, "expert groups capacity embed")  # expert
        hidden = jnp.einsum("xgce,xef->xgcf", inputs, p["wi"])
        hidden = jax.nn.silu(jnp.einsum("xgce,xef->xgcf", inputs, p["wg"])) * hidden
        outputs = jnp.einsum("xgcf,xfe->xgce", hidden, p["wo"])
        outputs = resolver.constrain(outputs, "expert groups capacity embed")  # expert
        outputs = resolver.constrain(outputs, "_ batch capacity embed")  # expert
        return jnp.einsum("gsxc,xgce->gse", combine, outputs)

    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        x = x + attention(rms_norm(x, p["attn_norm"]), p)
        x = x + moe(rms_norm(x, p["moe_norm"]), p)
        return x, None

    def loss_fn(params, tokens):
        x = params["embed"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = rms_norm(x, params["final_norm"])
        logits = jnp.einsum("bte,ev->btv", x, params["head"].astype(jnp.bfloat16))
        logits = logits.astype(jnp.float32)
        targets = jax.nn.one_hot(jnp.roll(tokens, -1, axis=1), VOCAB)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * targets, axis=-1))

    params = shapes()
    tx = optax.adamw(2e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
