"""Whisper large: a convolutional stem over mel frames, an encoder and a decoder with cross-attention."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV, MELS = 16, 51872, 1280, 5120, 20, 64, 128
BATCH, FRAMES, TEXT = 128, 3000, 448


def attention_shapes():
    s = lambda *shape: jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32)
    return {
        "ln": {"scale": s(EMBED), "bias": s(EMBED)},
        "query": {"kernel": s(EMBED, HEADS, KV), "bias": s(HEADS, KV)},
        "key": {"kernel": s(EMBED, HEADS, KV)},
        "value": {"kernel": s(EMBED, HEADS, KV), "bias": s(HEADS, KV)},
        "out": {"kernel": s(HEADS, KV, EMBED), "bias": s(EMBED)},
    }


def mlp_shapes():
    s = lambda *shape: jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32)
    return {
        "ln": {"scale": s(EMBED), "bias": s(EMBED)},
        "fc1": {"kernel": s(EMBED, MLP), "bias": s(MLP)},
        "fc2": {"kernel": s(MLP, EMBED), "bias": s(EMBED)},
    }


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {
        "conv1": {"kernel": s(3, MELS, EMBED), "bias": s(EMBED)},
        "conv2": {"kernel": s(3, EMBED, EMBED), "bias": s(EMBED)},
        "encoder": {"attn": attention_shapes(), "mlp": mlp_shapes()},
        "encoder_ln": {"scale": s(EMBED), "bias": s(EMBED)},
        "token_embedding": s(VOCAB, EMBED),
        "position_embedding": s(TEXT, EMBED),
        "decoder": {"attn": attention_shapes(), "cross": attention_shapes(), "mlp": mlp_shapes()},
        "decoder_ln": {"scale": s(EMBED), "bias": s(EMBED)},
    }


def layer_norm(x, p):
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return (y * p["scale"] + p["bias"]).astype(x.dtype)


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def attend(x, memory, p, mask=None):
    q = jnp.einsum("btd,dhk->bthk", x, p["query"]["kernel"]) + p["query"]["bias"]
    k = jnp.einsum("bsd,dhk->bshk", memory, p["key"]["kernel"])
    v = jnp.einsum("bsd,dhk->bshk", memory, p["value"]["kernel"]) + p["value"]["bias"]
    logits = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * KV**-0.5
    if mask is not None:
        logits = jnp.where(mask, logits, -1e30)
    weights = jax.nn.softmax(logits).astype(x.dtype)
    out = jnp.einsum("bhts,bshk->bthk", weights, v)
    return jnp.einsum("bthk,hkd->btd", out, p["out"]["kernel"]) + p["out"]["bias"]


def mlp(x, p):
    h = layer_norm(x, p["ln"])
    return dense(jax.nn.gelu(dense(h, p["fc1"])), p["fc2"])


def sinusoids(length):
    inverse = jnp.exp(-jnp.log(10000.0) * jnp.arange(EMBED // 2) / (EMBED // 2 - 1))
    angle = jnp.arange(length)[:, None] * inverse
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def step(resolver):
    def encode(params, mels):
        conv = partial(jax.lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"))
        x = jax.nn.gelu(
            conv(mels, params["conv1"]["kernel"], (1,), "SAME") + params["conv1"]["bias"]
        )
        x = jax.nn.gelu(conv(x, params["conv2"]["kernel"], (2,), "SAME") + params["conv2"]["bias"])
        x = x + sinusoids(FRAMES // 2).astype(x.dtype)
        x = resolver.constrain(x, "batch frames embed")  # expert

        @jax.checkpoint
        def block(x, p):
            h = layer_norm(x, p["attn"]["ln"])
            x = x + attend(h, h, p["attn"])
            return x + mlp(x, p["mlp"]), None

        x, _ = jax.lax.scan(block, x, params["encoder"])
        return layer_norm(x, params["encoder_ln"])

    def decode(params, tokens, audio):
        x = params["token_embedding"][tokens] + params["position_embedding"]
        x = resolver.constrain(x, "batch length embed")  # expert
        mask = jnp.tril(jnp.ones((TEXT, TEXT), bool))

        @jax.checkpoint
        def block(x, p):
            h = layer_norm(x, p["attn"]["ln"])
            x = x + attend(h, h, p["attn"], mask)
            x = x + attend(layer_norm(x, p["cross"]["ln"]), audio, p["cross"])
            return x + mlp(x, p["mlp"]), None

        x, _ = jax.lax.scan(block, x, params["decoder"])
        return layer_norm(x, params["decoder_ln"]) @ params["token_embedding"].T

    def loss_fn(params, batch):
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        audio = encode(params, batch["mels"])
        logits = decode(params, batch["tokens"], audio).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))
    params = shapes()
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batch = {
        "mels": jax.ShapeDtypeStruct((BATCH, FRAMES, MELS), jnp.bfloat16),
        "tokens": jax.ShapeDtypeStruct((BATCH, TEXT), jnp.int32),
        "targets": jax.ShapeDtypeStruct((BATCH, TEXT), jnp.int32),
    }
    return train_step, (params, opt_state, batch)
