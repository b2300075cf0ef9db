"""A reward model on pairs: a frozen decoder of 7B with LoRA adapters, the score read at the last token."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV, RANK = 16, 128256, 4096, 14336, 32, 8, 128, 64
PAIRS, LENGTH = 32, 2048


def stacked(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((LAYERS, *shape), dtype)


def base_shapes():
    return {
        "embed": jax.ShapeDtypeStruct((VOCAB, EMBED), jnp.bfloat16),
        "layers": {
            "input_norm": stacked(EMBED),
            "q_proj": stacked(EMBED, HEADS * KV),
            "k_proj": stacked(EMBED, KV_HEADS * KV),
            "v_proj": stacked(EMBED, KV_HEADS * KV),
            "o_proj": stacked(HEADS * KV, EMBED),
            "post_norm": stacked(EMBED),
            "gate_proj": stacked(EMBED, MLP),
            "up_proj": stacked(EMBED, MLP),
            "down_proj": stacked(MLP, EMBED),
        },
        "norm": jax.ShapeDtypeStruct((EMBED,), jnp.bfloat16),
    }


def lora_shapes():
    pair = lambda fan_in, fan_out: {
        "a": stacked(fan_in, RANK, dtype=jnp.float32),
        "b": stacked(RANK, fan_out, dtype=jnp.float32),
    }
    return {
        "layers": {
            "q_proj": pair(EMBED, HEADS * KV),
            "v_proj": pair(EMBED, KV_HEADS * KV),
            "o_proj": pair(HEADS * KV, EMBED),
        },
        "score": jax.ShapeDtypeStruct((EMBED, 1), jnp.float32),
    }


def rms_norm(x, weight):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt((x32**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def linear(x, base, lora, name):
    y = x @ base[name]
    if name in lora:
        low = x @ lora[name]["a"].astype(x.dtype)
        y = y + 2.0 * (low @ lora[name]["b"].astype(x.dtype))
    return y


def rotate(x):
    angle = jnp.arange(x.shape[1])[:, None] * 5e5 ** (-jnp.arange(KV // 2) / (KV // 2))
    cos, sin = jnp.cos(angle)[:, None].astype(x.dtype), jnp.sin(angle)[:, None].astype(x.dtype)
    x1, x2 = x[..., : KV // 2], x[..., KV // 2 :]
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attention(x, base, lora):
    b, t, _ = x.shape
    q = rotate(linear(x, base, lora, "q_proj").reshape(b, t, HEADS, KV))
    k = rotate(linear(x, base, lora, "k_proj").reshape(b, t, KV_HEADS, KV))
    v = linear(x, base, lora, "v_proj").reshape(b, t, KV_HEADS, KV)
    q = q.reshape(b, t, KV_HEADS, HEADS // KV_HEADS, KV)
    logits = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32) / KV**0.5
    logits = jnp.where(jnp.tril(jnp.ones((t, t), bool)), logits, -1e9)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(logits).astype(x.dtype), v)
    return linear(out.reshape(b, t, HEADS * KV), base, lora, "o_proj")


def mlp(x, base):
    return (jax.nn.silu(x @ base["gate_proj"]) * (x @ base["up_proj"])) @ base["down_proj"]


def step(resolver):
    def score(base, lora, tokens, lengths):
        x = base["embed"][tokens]
        x = resolver.constrain(x, "batch length embed")  # expert

        def layer(x, weights):
            own, adapters = weights
            x = x + attention(rms_norm(x, own["input_norm"]), own, adapters)
            x = x + mlp(rms_norm(x, own["post_norm"]), own)
            return x, None

        x, _ = jax.lax.scan(jax.checkpoint(layer), x, (base["layers"], lora["layers"]))
        x = rms_norm(x, base["norm"])
        last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
        return (last.astype(jnp.float32) @ lora["score"])[:, 0]

    def loss_fn(lora, base, batch):
        tokens = jnp.concatenate([batch["chosen"], batch["rejected"]])
        lengths = jnp.concatenate([batch["chosen_lengths"], batch["rejected_lengths"]])
        chosen, rejected = jnp.split(score(base, lora, tokens, lengths), 2)
        return -jax.nn.log_sigmoid(chosen - rejected).mean()

    base, lora = base_shapes(), lora_shapes()
    tx = optax.adamw(1e-4)
    opt_state = jax.eval_shape(tx.init, lora)

    @partial(jax.jit, donate_argnums=(1, 2))
    def train_step(base, lora, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(lora, base, batch)
        updates, opt_state = tx.update(grads, opt_state, lora)
        return optax.apply_updates(lora, updates), opt_state, loss

    tokens = jax.ShapeDtypeStruct((PAIRS, LENGTH), jnp.int32)
    lengths = jax.ShapeDtypeStruct((PAIRS,), jnp.int32)
    batch = {
        "chosen": tokens,
        "rejected": tokens,
        "chosen_lengths": lengths,
        "rejected_lengths": lengths,
    }
    return train_step, (base, lora, opt_state, batch)
