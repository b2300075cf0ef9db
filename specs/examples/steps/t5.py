"""T5 1.1 XXL in Flax Linen, with the arrays that T5X gives it, and one train step of it.

shardspec cost t5-1.1-xxl.yaml --step steps.t5:train
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

LAYERS, VOCAB, EMBED, MLP, HEADS, KV, BUCKETS = 24, 32128, 4096, 10240, 64, 64, 32
#: Half of the 2,048 sequences of the spec, which has them in 8 parts: all at once do not fit.
BATCH, LENGTH = 1024, 512

dense = partial(nn.Dense, use_bias=False, dtype=jnp.bfloat16)
norm = partial(nn.RMSNorm, dtype=jnp.bfloat16)


class Attention(nn.Module):
    """Attention of T5: all heads side by side in each kernel, a learned bias, no scale."""

    constrain: Any

    @nn.compact
    def __call__(self, x, memory, bias):
        def heads(name, inputs):
            joined = dense(HEADS * KV, name=name)(inputs)
            split = joined.reshape(*joined.shape[:-1], HEADS, KV)
            return self.constrain(split, activation="query")

        query, key, value = heads("query", x), heads("key", memory), heads("value", memory)
        context = jax.nn.dot_product_attention(query, key, value, bias, scale=1.0)
        return dense(EMBED, name="out")(context.reshape(*x.shape[:-1], HEADS * KV))


class Mlp(nn.Module):
    """A gated MLP."""

    constrain: Any

    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(dense(MLP, name="wi_0")(x)) * dense(MLP, name="wi_1")(x)
        return dense(EMBED, name="wo")(self.constrain(hidden, activation="hidden"))


class RelativeBias(nn.Module):
    """A learned bias for each head and distance, shared by all layers of a stack."""

    is_causal: bool = False

    @nn.compact
    def __call__(self):
        shape = HEADS, BUCKETS
        table = self.param("rel_embedding", nn.initializers.normal(1.0), shape)
        place = jnp.arange(LENGTH)
        distance = place[None, :] - place[:, None]
        bucket = jnp.clip(distance + BUCKETS // 2, 0, BUCKETS - 1)
        bias = jnp.take(table, bucket, axis=1)
        return jnp.where(distance > 0, -1e9, bias)[None] if self.is_causal else bias[None]


class EncoderLayer(nn.Module):
    """Attention and an MLP, each behind a norm."""

    constrain: Any

    @nn.compact
    def __call__(self, x, bias):
        h = norm(name="pre_attention_layer_norm")(x)
        x = x + Attention(self.constrain, name="attention")(h, h, bias)
        x = self.constrain(x, activation="residual")
        x = x + Mlp(self.constrain, name="mlp")(norm(name="pre_mlp_layer_norm")(x))
        return self.constrain(x, activation="residual")


class DecoderLayer(nn.Module):
    """Attention to what came before, to the encoder, and an MLP."""

    constrain: Any

    @nn.compact
    def __call__(self, x, encoded, bias):
        h = norm(name="pre_self_attention_layer_norm")(x)
        x = x + Attention(self.constrain, name="self_attention")(h, h, bias)
        x = self.constrain(x, activation="residual")
        h = norm(name="pre_cross_attention_layer_norm")(x)
        x = x + Attention(self.constrain, name="encoder_decoder_attention")(h, encoded, None)
        x = self.constrain(x, activation="residual")
        x = x + Mlp(self.constrain, name="mlp")(norm(name="pre_mlp_layer_norm")(x))
        return self.constrain(x, activation="residual")


class Encoder(nn.Module):
    """24 layers, each worked out again in the backward pass."""

    constrain: Any

    @nn.compact
    def __call__(self, x):
        bias = RelativeBias(name="relpos_bias")()
        for number in range(LAYERS):
            x = nn.remat(EncoderLayer)(self.constrain, name=f"layers_{number}")(x, bias)
        return norm(name="encoder_norm")(x)


class Decoder(nn.Module):
    """24 layers, and logits with weights of their own."""

    constrain: Any

    @nn.compact
    def __call__(self, x, encoded):
        bias = RelativeBias(is_causal=True, name="relpos_bias")()
        for number in range(LAYERS):
            x = nn.remat(DecoderLayer)(self.constrain, name=f"layers_{number}")(x, encoded, bias)
        logits = dense(VOCAB, name="logits_dense")(norm(name="decoder_norm")(x))
        return self.constrain(logits.astype(jnp.float32), activation="logits")


class T5(nn.Module):
    """An encoder and a decoder over one embedding."""

    constrain: Any

    @nn.compact
    def __call__(self, inputs, targets):
        embedder = nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, name="token_embedder")

        def embed(tokens):
            # By one-hot vectors, as T5X does: a product splits however the table lies.
            chosen = jax.nn.one_hot(tokens, VOCAB, dtype=jnp.bfloat16)
            x = chosen @ embedder.embedding.astype(jnp.bfloat16)
            return self.constrain(x, activation="residual")

        encoded = Encoder(self.constrain, name="encoder")(embed(inputs))
        shifted = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        return Decoder(self.constrain, name="decoder")(embed(shifted), encoded)


def train(resolver):
    """Return one step of AdamW in float32, and what it is given: shapes, placed by the spec."""
    model = T5(resolver.constrain)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    optimizer = optax.adamw(1e-3)
    state = jax.eval_shape(optimizer.init, params)
    places = resolver.shardings(params), resolver.state_shardings(state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params, state, batch):
        def loss(params):
            logits = model.apply({"params": params}, batch["inputs"], batch["targets"])
            chosen = jax.nn.one_hot(batch["targets"], VOCAB)
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=-1))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, state, {"inputs": tokens, "targets": tokens})
