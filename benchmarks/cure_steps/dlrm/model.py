"""A recommender in the shape of DLRM-DCNv2: 24 embedding tables, three crosses; one Adagrad step."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import optax

BATCH, DENSE, EMBED, RANK, CROSSES = 65536, 13, 128, 512, 3
LARGE, SMALL, HOT = 1_000_000, 16_384, 4
TABLES = {f"large_{n}": LARGE for n in range(8)} | {f"small_{n}": SMALL for n in range(16)}
FEATURES = len(TABLES) + 1
BOTTOM = (DENSE, 512, 256, EMBED)
TOP = (FEATURES * EMBED, 1024, 1024, 512, 256, 1)


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    tower = lambda widths: [
        {"kernel": s(fan_in, fan_out), "bias": s(fan_out)} for fan_in, fan_out in pairwise(widths)
    ]
    wide = FEATURES * EMBED
    return {
        "tables": {name: s(rows, EMBED) for name, rows in TABLES.items()},
        "bottom": tower(BOTTOM),
        "cross": [
            {"u": s(wide, RANK), "v": s(RANK, wide), "bias": s(wide)} for _ in range(CROSSES)
        ],
        "top": tower(TOP),
    }


def tower(x, layers):
    for at, p in enumerate(layers):
        x = x @ p["kernel"].astype(jnp.bfloat16) + p["bias"].astype(jnp.bfloat16)
        x = jax.nn.relu(x) if at < len(layers) - 1 else x
    return x


def crossed(x, layers):
    first = x
    for p in layers:
        low = x @ p["u"].astype(jnp.bfloat16)
        x = first * (low @ p["v"].astype(jnp.bfloat16) + p["bias"].astype(jnp.bfloat16)) + x
    return x


def step(resolver):
    def pooled(table, ids):
        """Return the sum of the rows of each example: [batch, hot] ids."""
        ids = resolver.constrain(ids, "groups hot")  # expert
        rows = table[ids].astype(jnp.bfloat16)
        rows = resolver.constrain(rows, "groups hot embed")  # expert
        return rows.sum(1)

    def logits_of(params, batch):
        dense = tower(batch["dense"].astype(jnp.bfloat16), params["bottom"])
        bags = [pooled(params["tables"][name], batch["ids"][name]) for name in TABLES]
        features = jnp.stack([dense, *bags], axis=1)
        features = resolver.constrain(features, "groups features embed")  # expert
        features = resolver.constrain(features, "batch features _")  # expert
        x = crossed(features.reshape(BATCH, FEATURES * EMBED), params["cross"])
        return tower(x, params["top"])[:, 0].astype(jnp.float32)

    def loss_fn(params, batch):
        logits = logits_of(params, batch)
        return optax.sigmoid_binary_cross_entropy(logits, batch["clicked"]).mean()

    params = shapes()
    tx = optax.adagrad(1e-2)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    s = jax.ShapeDtypeStruct
    batch = {
        "dense": s((BATCH, DENSE), jnp.float32),
        "ids": {name: s((BATCH, HOT), jnp.int32) for name in TABLES},
        "clicked": s((BATCH,), jnp.float32),
    }
    return train_step, (params, opt_state, batch)
