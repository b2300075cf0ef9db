"""A decoder in the shape of DeepSeek-V2-Lite: latent attention, shared and routed experts; AdamW."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, HEADS, KV, ROPE, LATENT = 8, 102400, 2048, 16, 128, 64, 512
DENSE_MLP, MLP, SHARED, EXPERTS, CHOSEN = 10944, 1408, 2816, 32, 4
BATCH, LENGTH = 32, 2048
CAPACITY = CHOSEN * LENGTH // EXPERTS * 5 // 4


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    attention = {
        "attention_norm": (EMBED,),
        "query": (EMBED, HEADS, KV + ROPE),
        "down_kv": (EMBED, LATENT + ROPE),
        "latent_norm": (LATENT,),
        "up_key": (LATENT, HEADS, KV),
        "up_value": (LATENT, HEADS, KV),
        "out": (HEADS, KV, EMBED),
        "mlp_norm": (EMBED,),
    }
    dense = {"gate": (EMBED, DENSE_MLP), "up": (EMBED, DENSE_MLP), "down": (DENSE_MLP, EMBED)}
    sparse = {
        "router": (EMBED, EXPERTS),
        "shared_gate": (EMBED, SHARED),
        "shared_up": (EMBED, SHARED),
        "shared_down": (SHARED, EMBED),
        "expert_gate": (EXPERTS, EMBED, MLP),
        "expert_up": (EXPERTS, EMBED, MLP),
        "expert_down": (EXPERTS, MLP, EMBED),
    }
    return {
        "embedding": s(VOCAB, EMBED),
        "first": {name: s(*shape) for name, shape in (attention | dense).items()},
        "layers": {name: s(LAYERS, *shape) for name, shape in (attention | sparse).items()},
        "final_norm": s(EMBED),
        "head": s(EMBED, VOCAB),
    }


def norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def rope(x):
    angle = jnp.arange(x.shape[1])[:, None] / 1e4 ** (jnp.arange(ROPE // 2) / (ROPE // 2))
    sin, cos = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def swiglu(x, gate, up, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def step(resolver):
    def attention(x, p):
        query = jnp.einsum("ble,ehd->blhd", x, p["query"])
        down = x @ p["down_kv"]
        latent = norm(down[..., :LATENT], p["latent_norm"])
        latent = resolver.constrain(latent, "batch length latent")  # expert
        rotated = rope(down[..., None, LATENT:])
        key = jnp.einsum("blc,chd->blhd", latent, p["up_key"])
        value = jnp.einsum("blc,chd->blhd", latent, p["up_value"])
        scores = jnp.einsum("bqhd,bkhd->bhqk", query[..., :KV], key)
        scores += jnp.einsum("bqhd,bkd->bhqk", rope(query[..., KV:]), rotated[:, :, 0])
        scores = scores.astype(jnp.float32) / (KV + ROPE) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return jnp.einsum("bqhd,hde->bqe", mixed, p["out"])

    def routed(x, p):
        gates = jax.nn.sigmoid(jnp.einsum("ble,ex->blx", x, p["router"]).astype(jnp.float32))
        best, chosen = jax.lax.top_k(gates, CHOSEN)
        best = best / best.sum(-1, keepdims=True)
        taken = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)
        flat = taken.reshape(x.shape[0], LENGTH * CHOSEN, EXPERTS)
        slot = ((jnp.cumsum(flat, axis=1) - 1) * flat).sum(-1).reshape(chosen.shape)
        slots = jax.nn.one_hot(slot, CAPACITY, dtype=x.dtype)
        combine = jnp.einsum(
            "blk,blkx,blkc->blxc", best.astype(x.dtype), taken.astype(x.dtype), slots
        )
        dispatch = (combine > 0).astype(x.dtype)
        sent = jnp.einsum("blxc,ble->bxce", dispatch, x)
        sent = resolver.constrain(sent, "batch _ capacity embed")  # expert
        sent = resolver.constrain(sent, "groups expert capacity embed")  # expert
        hidden = jax.nn.silu(jnp.einsum("bxce,xef->bxcf", sent, p["expert_gate"]))
        hidden = hidden * jnp.einsum("bxce,xef->bxcf", sent, p["expert_up"])
        back = jnp.einsum("bxcf,xfe->bxce", hidden, p["expert_down"])
        back = resolver.constrain(back, "groups expert capacity embed")  # expert
        back = resolver.constrain(back, "batch _ capacity embed")  # expert
        return jnp.einsum("blxc,bxce->ble", combine, back)

    def first(x, p):
        x = x + attention(norm(x, p["attention_norm"]), p)
        h = norm(x, p["mlp_norm"])
        return x + swiglu(h, p["gate"], p["up"], p["down"])

    def layer(x, p):
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        x = x + attention(norm(x, p["attention_norm"]), p)
        h = norm(x, p["mlp_norm"])
        x = x + swiglu(h, p["shared_gate"], p["shared_up"], p["shared_down"]) + routed(h, p)
        x = resolver.constrain(x, "batch length embed")  # expert
        return x, None

    def loss_fn(params, tokens):
        x = params["embedding"].astype(jnp.bfloat16)[tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x = jax.checkpoint(first)(x, jax.tree.map(lambda w: w.astype(x.dtype), params["first"]))
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        x = norm(x, params["final_norm"])
        logits = (x @ params["head"].astype(x.dtype)).astype(jnp.float32)
        targets = jnp.roll(tokens, -1, axis=1)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    params = shapes()
    tx = optax.adamw(3e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step, (params, opt_state, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32))
