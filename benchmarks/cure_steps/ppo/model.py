"""PPO on whole replies: a policy with a value head, a frozen reference, five losses; one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV = 16, 64000, 2048, 5632, 16, 128
BATCH, LENGTH = 128, 1024


def shapes(has_value):
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    layer = {
        "norm_1": (EMBED,),
        "query": (EMBED, HEADS, KV),
        "key": (EMBED, HEADS, KV),
        "value": (EMBED, HEADS, KV),
        "out": (HEADS, KV, EMBED),
        "norm_2": (EMBED,),
        "gate": (EMBED, MLP),
        "up": (EMBED, MLP),
        "down": (MLP, EMBED),
    }
    found = {
        "embedding": s(VOCAB, EMBED),
        "layers": {name: s(LAYERS, *shape) for name, shape in layer.items()},
        "final_norm": s(EMBED),
        "head": s(EMBED, VOCAB),
    }
    return found | ({"value_head": s(EMBED, 1)} if has_value else {})


def norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def attention(x, p):
    query, key, value = (jnp.einsum("ble,ehd->blhd", x, p[n]) for n in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) / KV**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
    return jnp.einsum("bqhd,hde->bqe", mixed, p["out"])


def layer(x, p):
    x = x + attention(norm(x, p["norm_1"]), p)
    h = norm(x, p["norm_2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None


def advantages_of(rewards, values, discount=1.0, decay=0.95):
    """Return the generalised advantages, from the last token to the first."""
    following = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], axis=1)
    deltas = rewards + discount * following - values

    def earlier(later, delta):
        found = delta + discount * decay * later
        return found, found

    _, found = jax.lax.scan(earlier, jnp.zeros(BATCH), deltas.T, reverse=True)
    return found.T


def step(resolver):
    def hidden_of(params, tokens):
        x = params["embedding"][tokens]
        x = resolver.constrain(x, "batch length embed")  # expert
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        return norm(x, params["final_norm"])

    def scored(params, hidden, tokens):
        """Return the log probability of each next token, and the entropy."""
        logits = hidden @ params["head"]
        logits = resolver.constrain(logits, "batch length vocab")  # expert
        logits = logits.astype(jnp.float32)
        logs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logs, jnp.roll(tokens, -1, axis=1)[..., None], axis=-1)[..., 0]
        return chosen, -(jnp.exp(logs) * logs).sum(-1)

    def loss_fn(params, batch, reference_logs):
        hidden = hidden_of(params, batch["tokens"])
        logs, entropy = scored(params, hidden, batch["tokens"])
        values = (hidden @ params["value_head"])[..., 0].astype(jnp.float32)
        rewards = batch["rewards"] - 0.05 * (batch["old_logs"] - reference_logs)
        advantages = advantages_of(rewards, batch["old_values"])
        returns = advantages + batch["old_values"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = jnp.exp(logs - batch["old_logs"])
        surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        near = batch["old_values"] + jnp.clip(values - batch["old_values"], -0.2, 0.2)
        value_loss = jnp.maximum((values - returns) ** 2, (near - returns) ** 2)
        per_token = 0.5 * value_loss - surrogate - 0.01 * entropy
        return (per_token * batch["mask"]).sum() / batch["mask"].sum()

    params, reference = shapes(True), shapes(False)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6))
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, reference, batch):
        hidden = hidden_of(reference, batch["tokens"])
        reference_logs, _ = scored(reference, hidden, batch["tokens"])
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, reference_logs)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    rows = lambda dtype: jax.ShapeDtypeStruct((BATCH, LENGTH), dtype)
    names = ("rewards", "old_logs", "old_values", "mask")
    batch = {"tokens": rows(jnp.int32)} | {name: rows(jnp.float32) for name in names}
    return train_step, (params, opt_state, reference, batch)
