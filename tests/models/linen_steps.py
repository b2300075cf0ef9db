"""A decoder in Flax Linen as people write it: `nn.scan`, `nn.remat`, `TrainState`, optax."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

#: What `Resolver` constrains by; a static attribute of the modules.
Constrain = Any


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    sizes: Any
    resolver: Constrain

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        s = self.sizes
        keep = self.resolver.constrain
        h = nn.RMSNorm(dtype=jnp.bfloat16, name="norm")(x)
        dense = {"use_bias": False, "dtype": jnp.bfloat16}
        q, k, v = (
            nn.DenseGeneral((s.heads, s.kv), name=name, **dense)(h) for name in ("q", "k", "v")
        )
        q = keep(q, activation="query")
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        out = nn.dot_product_attention(q, k, v, mask=mask, dtype=jnp.bfloat16)
        out = nn.DenseGeneral(s.embed, axis=(-2, -1), name="o", **dense)(out)
        x = keep(x + out, activation="residual")
        h = nn.RMSNorm(dtype=jnp.bfloat16, name="norm_mlp")(x)
        gate = nn.silu(nn.Dense(s.mlp, name="wg", **dense)(h))
        hidden = keep(gate * nn.Dense(s.mlp, name="wi", **dense)(h), activation="hidden")
        return keep(x + nn.Dense(s.embed, name="wo", **dense)(hidden), activation="residual"), None


class Decoder(nn.Module):
    """An embedding, a scanned and rematerialised stack, and logits."""

    sizes: Any
    resolver: Constrain

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        s = self.sizes
        embed = nn.Embed(s.vocab, s.embed, dtype=jnp.bfloat16, name="embedder")
        x = self.resolver.constrain(embed(tokens), activation="residual")
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=s.layers,
        )
        x, _ = stack(s, self.resolver, name="layers")(x, None)
        x = nn.RMSNorm(dtype=jnp.bfloat16, name="final")(x)
        logits = nn.Dense(s.vocab, use_bias=False, dtype=jnp.bfloat16, name="head")(x)
        return self.resolver.constrain(logits.astype(jnp.float32), activation="logits")


def linen_decoder(resolver: Any, s: Any) -> Any:
    """Return the train step and its arguments: a `TrainState`, and tokens."""
    model = Decoder(s, resolver)
    sharding = resolver.sharding("batch length", (s.batch, s.length))
    tokens = jax.ShapeDtypeStruct((s.batch, s.length), jnp.int32, sharding=sharding)

    def init(key: Any, tokens: Any) -> Any:
        params = model.init(key, tokens)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-4))

    shapes = jax.eval_shape(init, jax.random.key(0), tokens)
    state = resolver.abstract(shapes)

    def step(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = model.apply({"params": params}, tokens)
            hot = jax.nn.one_hot(tokens, s.vocab)
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * hot, -1))

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    shardings = (resolver.shardings(shapes), resolver.sharding(""))
    return jax.jit(step, donate_argnums=0, out_shardings=shardings), (state, tokens)
