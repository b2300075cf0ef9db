"""A draft model in the shape of Qwen 2.5 3B in Flax NNX, layers in a list, each rematerialised; one AdamW step."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 12, 151936, 2048, 11008, 16, 2, 128
BATCH, LENGTH = 64, 2048


def rope(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 1e6 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[None, :, None, :], jnp.cos(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Attention(nnx.Module):
    def __init__(self, rngs):
        linear = partial(nnx.Linear, dtype=jnp.bfloat16, rngs=rngs)
        self.q_proj = linear(EMBED, HEADS * KV)
        self.k_proj = linear(EMBED, KV_HEADS * KV)
        self.v_proj = linear(EMBED, KV_HEADS * KV)
        self.o_proj = linear(HEADS * KV, EMBED, use_bias=False)

    def __call__(self, x):
        batch, length, _ = x.shape
        q = self.q_proj(x).reshape(batch, length, HEADS, KV)
        k = self.k_proj(x).reshape(batch, length, KV_HEADS, KV)
        v = self.v_proj(x).reshape(batch, length, KV_HEADS, KV)
        k = jnp.repeat(rope(k), HEADS // KV_HEADS, axis=2)
        v = jnp.repeat(v, HEADS // KV_HEADS, axis=2)
        scores = jnp.einsum("bthd,bshd->bhts", rope(q), k).astype(jnp.float32) / KV**0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        weights = jax.nn.softmax(scores).astype(jnp.bfloat16)
        context = jnp.einsum("bhts,bshd->bthd", weights, v)
        return self.o_proj(context.reshape(batch, length, HEADS * KV))


class Mlp(nnx.Module):
    def __init__(self, rngs):
        linear = partial(nnx.Linear, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.gate_proj, self.up_proj = linear(EMBED, MLP), linear(EMBED, MLP)
        self.down_proj = linear(MLP, EMBED)

    def __call__(self, x):
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
    def __init__(self, rngs):
        norm = partial(nnx.RMSNorm, EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn, self.mlp = Attention(rngs), Mlp(rngs)

    def __call__(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Qwen(nnx.Module):
    def __init__(self, resolver, rngs):
        self.embed_tokens = nnx.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.layers = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.resolver = resolver

    def __call__(self, tokens):
        x = self.embed_tokens(tokens)
        x = self.resolver.constrain(x, "batch length embed")  # expert
        for layer in self.layers:
            x = nnx.remat(lambda layer, x: layer(x))(layer, x)
        return self.embed_tokens.attend(self.norm(x))


def step(resolver):
    graph, params = nnx.split(nnx.eval_shape(lambda: Qwen(resolver, nnx.Rngs(0))))
    tx = optax.adamw(1e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        def loss_fn(params):
            logits = nnx.merge(graph, params)(tokens[:, :-1]).astype(jnp.float32)
            log_probs = jax.nn.log_softmax(logits)
            chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
            return -chosen.mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
    return train_step, (params, opt_state, tokens)
