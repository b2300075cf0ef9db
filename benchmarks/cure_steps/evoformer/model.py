"""Evoformer blocks in plain JAX: rows of an alignment, triangles of pairs; bf16, one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

BLOCKS, BATCH, SEQUENCES, RESIDUES = 8, 16, 128, 256
MSA, PAIR, HEADS, KV, OUTER, TOKENS, BINS = 256, 128, 8, 32, 32, 23, 64


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct((BLOCKS, *shape), jnp.float32)

    def attention(width):
        return {
            "norm": s(width),
            "query": s(width, HEADS, KV),
            "key": s(width, HEADS, KV),
            "value": s(width, HEADS, KV),
            "gate": s(width, HEADS, KV),
            "out": s(HEADS, KV, width),
        }

    def transition(width):
        return {"norm": s(width), "up": s(width, 4 * width), "down": s(4 * width, width)}

    def triangle():
        names = "left", "right", "left_gate", "right_gate", "gate", "out"
        return {"norm": s(PAIR), "norm_out": s(PAIR)} | {name: s(PAIR, PAIR) for name in names}

    whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "tokens": whole(TOKENS, MSA),
        "pairs": whole(2 * RESIDUES, PAIR),
        "blocks": {
            "rows": attention(MSA) | {"bias": s(PAIR, HEADS)},
            "columns": attention(MSA),
            "msa_transition": transition(MSA),
            "outer": {
                "norm": s(MSA),
                "left": s(MSA, OUTER),
                "right": s(MSA, OUTER),
                "out": s(OUTER, OUTER, PAIR),
            },
            "outgoing": triangle(),
            "incoming": triangle(),
            "starting": attention(PAIR) | {"bias": s(PAIR, HEADS)},
            "ending": attention(PAIR) | {"bias": s(PAIR, HEADS)},
            "pair_transition": transition(PAIR),
        },
        "masked": whole(MSA, TOKENS),
        "distogram": whole(PAIR, BINS),
    }


def norm(x, scale):
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def attend(x, p, bias=None):
    """Attend along the last dimension but one of [batch, rows, length, width]."""
    x = norm(x, p["norm"])
    query, key, value, gate = (
        jnp.einsum("brlw,whd->brlhd", x, p[name]) for name in ("query", "key", "value", "gate")
    )
    scores = jnp.einsum("brqhd,brkhd->brhqk", query, key) / KV**0.5
    if bias is not None:
        scores = scores + bias
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    mixed = jnp.einsum("brhqk,brkhd->brqhd", weights, value)
    return jnp.einsum("brlhd,hdw->brlw", mixed * jax.nn.sigmoid(gate), p["out"])


def transition(x, p):
    return jax.nn.relu(norm(x, p["norm"]) @ p["up"]) @ p["down"]


def multiplied(pair, p, equation):
    x = norm(pair, p["norm"])
    left = (x @ p["left"]) * jax.nn.sigmoid(x @ p["left_gate"])
    right = (x @ p["right"]) * jax.nn.sigmoid(x @ p["right_gate"])
    found = norm(jnp.einsum(equation, left, right), p["norm_out"])
    return (found @ p["out"]) * jax.nn.sigmoid(x @ p["gate"])


def step(resolver):
    def block(carry, p):
        msa, pair = carry
        p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        bias = jnp.einsum("bijw,wh->bhij", pair, p["rows"]["bias"])[:, None]
        msa = msa + attend(msa, p["rows"], bias)
        turned = msa.swapaxes(1, 2)
        turned = resolver.constrain(turned, "batch residues _ _")  # expert
        turned = turned + attend(turned, p["columns"])
        msa = turned.swapaxes(1, 2)
        msa = msa + transition(msa, p["msa_transition"])
        msa = resolver.constrain(msa, "batch sequences _ msa")  # expert
        x = norm(msa, p["outer"]["norm"])
        left, right = x @ p["outer"]["left"], x @ p["outer"]["right"]
        outer = jnp.einsum("bsic,bsjd->bijcd", left, right) / SEQUENCES
        pair = pair + jnp.einsum("bijcd,cdw->bijw", outer, p["outer"]["out"])
        pair = pair + multiplied(pair, p["outgoing"], "bikc,bjkc->bijc")
        pair = pair + multiplied(pair, p["incoming"], "bkic,bkjc->bijc")
        bias = jnp.einsum("bijw,wh->bhij", pair, p["starting"]["bias"])[:, None]
        pair = pair + attend(pair, p["starting"], bias)
        turned = pair.swapaxes(1, 2)
        bias = jnp.einsum("bijw,wh->bhij", turned, p["ending"]["bias"])[:, None]
        turned = turned + attend(turned, p["ending"], bias)
        pair = turned.swapaxes(1, 2)
        pair = pair + transition(pair, p["pair_transition"])
        pair = resolver.constrain(pair, "batch residues _ pair")  # expert
        return (msa, pair), None

    def loss_fn(params, batch):
        msa = params["tokens"].astype(jnp.bfloat16)[batch["tokens"]]
        msa = resolver.constrain(msa, "batch sequences _ msa")  # expert
        apart = jnp.arange(RESIDUES)[:, None] - jnp.arange(RESIDUES) + RESIDUES
        pair = params["pairs"].astype(jnp.bfloat16)[apart]
        pair = jnp.broadcast_to(pair, (BATCH, *pair.shape))
        pair = resolver.constrain(pair, "batch residues _ pair")  # expert
        (msa, pair), _ = jax.lax.scan(jax.checkpoint(block), (msa, pair), params["blocks"])
        tokens = (msa @ params["masked"].astype(msa.dtype)).astype(jnp.float32)
        bins = ((pair + pair.swapaxes(1, 2)) @ params["distogram"].astype(pair.dtype)).astype(
            jnp.float32
        )
        ce = optax.softmax_cross_entropy_with_integer_labels
        return ce(tokens, batch["tokens"]).mean() + ce(bins, batch["bins"]).mean()

    params = shapes()
    tx = optax.adamw(1e-3)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batch = {
        "tokens": jax.ShapeDtypeStruct((BATCH, SEQUENCES, RESIDUES), jnp.int32),
        "bins": jax.ShapeDtypeStruct((BATCH, RESIDUES, RESIDUES), jnp.int32),
    }
    return train_step, (params, opt_state, batch)
