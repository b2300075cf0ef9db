"""T5 1.1 XL in Flax Linen: logical axes on every parameter, scanned layers, gradients of four
microbatches added up in a scan, one AdamW step."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV = 24, 32128, 2048, 5120, 32, 64
BATCH, LENGTH, MICROBATCHES = 256, 512, 4


def dense(features, names, **kwargs):
    init = nn.with_logical_partitioning(nn.initializers.normal(0.02), names)
    return nn.DenseGeneral(features, use_bias=False, dtype=jnp.bfloat16, kernel_init=init, **kwargs)


class Norm(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
        scale = self.param("scale", init, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        return (wide * scale).astype(jnp.bfloat16)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x, memory, mask, bias):
        head = ("embed", "heads", "kv")
        q = dense((HEADS, KV), head, name="query")(x)
        k = dense((HEADS, KV), head, name="key")(memory)
        v = dense((HEADS, KV), head, name="value")(memory)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) + bias
        scores = jnp.where(mask, scores, -1e9)
        context = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(jnp.bfloat16), v)
        return dense(EMBED, ("heads", "kv", "embed"), axis=(-2, -1), name="out")(context)


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        gate = dense(MLP, ("embed", "mlp"), name="wi_0")(x)
        up = dense(MLP, ("embed", "mlp"), name="wi_1")(x)
        return dense(EMBED, ("mlp", "embed"), name="wo")(nn.gelu(gate) * up)


class EncoderLayer(nn.Module):
    @nn.compact
    def __call__(self, x, mask, bias):
        h = Norm(name="pre_attention_norm")(x)
        x = x + Attention(name="attention")(h, h, mask, bias)
        x = x + Mlp(name="mlp")(Norm(name="pre_mlp_norm")(x))
        return x, None


class DecoderLayer(nn.Module):
    @nn.compact
    def __call__(self, x, memory, causal, mask, bias):
        h = Norm(name="pre_self_attention_norm")(x)
        x = x + Attention(name="self_attention")(h, h, causal, bias)
        h = Norm(name="pre_cross_attention_norm")(x)
        x = x + Attention(name="cross_attention")(h, memory, mask, 0.0)
        x = x + Mlp(name="mlp")(Norm(name="pre_mlp_norm")(x))
        return x, None


def stack(layer, broadcast):
    return nn.scan(
        nn.remat(layer, prevent_cse=False),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(nn.broadcast,) * broadcast,
        length=LAYERS,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


class T5(nn.Module):
    resolver: object

    def relative_bias(self, name, bidirectional):
        init = nn.with_logical_partitioning(
            nn.initializers.normal(0.02), ("relpos_buckets", "heads")
        )
        table = self.param(name, init, (32, HEADS))
        distance = jnp.arange(LENGTH)[None, :] - jnp.arange(LENGTH)[:, None]
        near = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
        bucket = jnp.minimum(jnp.log2(near + 1.0) * 3, 31).astype(jnp.int32)
        return table[bucket].transpose(2, 0, 1)[None]

    @nn.compact
    def __call__(self, inputs, targets):
        resolver = self.resolver
        embedding = nn.Embed(
            VOCAB,
            EMBED,
            dtype=jnp.bfloat16,
            embedding_init=nn.with_logical_partitioning(
                nn.initializers.normal(1.0), ("vocab", "embed")
            ),
            name="token_embedder",
        )
        mask = (inputs > 0)[:, None, None, :]
        causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))[None, None]

        x = embedding(inputs)
        x = resolver.constrain(x, "batch length embed")  # expert
        bias = self.relative_bias("encoder_relpos_bias", True)
        x, _ = stack(EncoderLayer, 2)(name="encoder")(x, mask, bias)
        memory = Norm(name="encoder_norm")(x)

        y = embedding(jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1])
        y = resolver.constrain(y, "batch length embed")  # expert
        bias = self.relative_bias("decoder_relpos_bias", False)
        y, _ = stack(DecoderLayer, 4)(name="decoder")(y, memory, causal, mask, bias)
        y = Norm(name="decoder_norm")(y)
        return dense(VOCAB, ("embed", "vocab"), name="logits_dense")(y)


def step(resolver):
    model = T5(resolver)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    tx = optax.adamw(1e-3)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    def loss_fn(params, batch):
        logits = model.apply({"params": params}, batch["inputs"], batch["targets"])
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch["targets"]
        )
        return losses.mean()

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, batch):
        def split(x):
            return x.reshape(MICROBATCHES, BATCH // MICROBATCHES, LENGTH)

        def microbatch(carry, batch):
            grads, loss = carry
            new_loss, new_grads = jax.value_and_grad(loss_fn)(params, batch)
            return (jax.tree.map(jnp.add, grads, new_grads), loss + new_loss), None

        zeros = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
        (grads, loss), _ = jax.lax.scan(microbatch, zeros, jax.tree.map(split, batch))
        grads = jax.tree.map(lambda g: g / MICROBATCHES, grads)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss / MICROBATCHES

    return train_step, (params, opt_state, {"inputs": tokens, "targets": tokens})
