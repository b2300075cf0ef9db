"""A Gemma-2-like decoder in Flax Linen: local and global attention in turn, soft caps, tied embedding."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

LAYERS, VOCAB, EMBED, MLP, HEADS, KV_HEADS, KV = 8, 256128, 2304, 9216, 8, 4, 256
BATCH, LENGTH, WINDOW = 32, 4096, 2048
RULES = (
    ("batch", "fsdp"),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("embed", "fsdp"),
)


def init(*names):
    return nn.with_logical_partitioning(nn.initializers.normal(0.02), names)


class RMSNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.zeros_init(), (x.shape[-1],))
        var = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        return (x * jax.lax.rsqrt(var + 1e-6) * (1 + scale)).astype(jnp.bfloat16)


def apply_rope(x, positions):
    fraction = 2 * jnp.arange(KV // 2) / KV
    angle = positions[:, None] / 10_000**fraction
    sin, cos = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
    first, second = jnp.split(x, 2, axis=-1)
    out = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return out.astype(x.dtype)


class Einsum(nn.Module):
    shape: tuple
    names: tuple

    @nn.compact
    def __call__(self, equation, x):
        w = self.param("w", init(*self.names), self.shape)
        return jnp.einsum(equation, x, w.astype(x.dtype))


class Attention(nn.Module):
    is_local: bool

    @nn.compact
    def __call__(self, x):
        q = Einsum((HEADS, EMBED, KV), ("heads", "embed", "kv"), name="q_einsum")(
            "btd,ndh->btnh", x
        )
        kv = Einsum((2, KV_HEADS, EMBED, KV), (None, "kv_heads", "embed", "kv"), name="kv_einsum")
        k, v = kv("btd,cndh->cbtnh", x)
        positions = jnp.arange(LENGTH)
        q, k = apply_rope(q, positions) * KV**-0.5, apply_rope(k, positions)
        q = q.reshape(*q.shape[:2], KV_HEADS, HEADS // KV_HEADS, KV)
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k)
        logits = 50.0 * jnp.tanh(logits / 50.0)
        mask = positions[:, None] >= positions[None, :]
        if self.is_local:
            mask &= positions[:, None] - positions[None, :] < WINDOW
        probs = nn.softmax(jnp.where(mask, logits.astype(jnp.float32), -2.0e38), axis=-1)
        out = jnp.einsum("bkgts,bskh->btkgh", probs.astype(jnp.bfloat16), v)
        out = out.reshape(*out.shape[:2], HEADS, KV)
        vec = Einsum((HEADS, KV, EMBED), ("heads", "kv", "embed"), name="attn_vec_einsum")
        return vec("btnh,nhd->btd", out)


class FeedForward(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = functools.partial(nn.Dense, use_bias=False, dtype=jnp.bfloat16)
        gate = dense(MLP, kernel_init=init("embed", "mlp"), name="gate")(x)
        up = dense(MLP, kernel_init=init("embed", "mlp"), name="up")(x)
        hidden = nn.with_logical_constraint(nn.gelu(gate) * up, ("batch", "length", "mlp"))
        return dense(EMBED, kernel_init=init("mlp", "embed"), name="linear")(hidden)


class Block(nn.Module):
    is_local: bool

    @nn.compact
    def __call__(self, x):
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))  # expert
        h = Attention(self.is_local, name="attn")(RMSNorm(name="pre_attention_norm")(x))
        x = x + RMSNorm(name="post_attention_norm")(h)
        h = FeedForward(name="mlp")(RMSNorm(name="pre_ffw_norm")(x))
        return x + RMSNorm(name="post_ffw_norm")(h)


class Gemma(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        table = self.param("input_embedding", init("vocab", "embed"), (VOCAB, EMBED))
        table = table.astype(jnp.bfloat16)
        x = table[tokens] * jnp.sqrt(EMBED).astype(jnp.bfloat16)
        for i in range(LAYERS):
            x = nn.remat(Block)(is_local=i % 2 == 0, name=f"layer_{i}")(x)
        x = RMSNorm(name="final_norm")(x)
        logits = jnp.dot(x, table.T)
        return 30.0 * jnp.tanh(logits.astype(jnp.float32) / 30.0)


def step(resolver):
    model = Gemma()
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    tx = optax.adamw(1e-4)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, tokens):
        def loss_fn(params):
            logits = model.apply({"params": params}, tokens)
            targets = jax.nn.one_hot(tokens[:, 1:], VOCAB)
            return optax.softmax_cross_entropy(logits[:, :-1], targets).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def run(params, opt_state, tokens):
        with jax.set_mesh(resolver.mesh), nn.logical_axis_rules(RULES):
            return train_step(params, opt_state, tokens)

    return run, (params, opt_state, tokens)
