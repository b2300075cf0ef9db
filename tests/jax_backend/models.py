"""One small transformer in four forms: plain dict, dataclasses, Linen, NNX."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

VOCAB, EMBED, HEADS, KV, MLP, LAYERS = 32, 16, 4, 4, 32, 2
BATCH, LENGTH = 4, 8


def shapes() -> dict[str, Any]:
    """Return the arrays of the model as a nested dict of shapes."""
    projection = (EMBED, HEADS, KV)
    layer = {
        "attention": {
            **{name: {"kernel": projection} for name in ("query", "key", "value")},
            "out": {"kernel": (HEADS, KV, EMBED)},
        },
        "mlp": {"wi": {"kernel": (EMBED, MLP)}, "wo": {"kernel": (MLP, EMBED)}},
        "norm_1": {"scale": (EMBED,)},
        "norm_2": {"scale": (EMBED,)},
    }
    layers = {f"layers_{number}": layer for number in range(LAYERS)}
    return {"embedding": (VOCAB, EMBED), **layers, "norm": {"scale": (EMBED,)}}


def init_dict(rng: jax.Array) -> dict[str, Any]:
    """Return the parameters as a nested dict."""
    leaves, treedef = jax.tree.flatten(shapes(), is_leaf=lambda node: isinstance(node, tuple))
    keys = jax.random.split(rng, len(leaves))
    arrays = [jax.random.normal(key, shape) * 0.1 for key, shape in zip(keys, leaves, strict=True)]
    return treedef.unflatten(arrays)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """The same parameters with fields for components."""

    embedding: Any
    layers_0: Any
    layers_1: Any
    norm: Any


def init_dataclass(rng: jax.Array) -> Model:
    """Return the parameters as a dataclass pytree."""
    return Model(**init_dict(rng))


def _norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + scale)


def _layer(x: Any, layer: Any, constrain: Any) -> Any:
    attention, mlp = layer["attention"], layer["mlp"]
    h = _norm(x, layer["norm_1"]["scale"])
    q, k, v = (
        jnp.einsum("ble,ehd->blhd", h, attention[name]["kernel"])
        for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k), -1)
    mixed = jnp.einsum("bhlm,bmhd->blhd", weights, v)
    x = constrain(x + jnp.einsum("blhd,hde->ble", mixed, attention["out"]["kernel"]))
    h = jax.nn.relu(_norm(x, layer["norm_2"]["scale"]) @ mlp["wi"]["kernel"])
    return constrain(x + h @ mlp["wo"]["kernel"])


def forward(params: Any, tokens: Any, constrain: Any = lambda x: x) -> Any:
    """Return the logits of the model; `constrain` sees every residual."""
    if isinstance(params, Model):
        params = vars(params)
    x = constrain(params["embedding"][tokens])
    for number in range(LAYERS):
        x = _layer(x, params[f"layers_{number}"], constrain)
    return _norm(x, params["norm"]["scale"]) @ params["embedding"].T


def cross_entropy(logits: Any, tokens: Any) -> Any:
    """Return the mean loss of predicting each token from the one before."""
    chances = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], -1))


def batch() -> jax.Array:
    """Return the tokens of one batch."""
    return jax.random.randint(jax.random.key(7), (BATCH, LENGTH), 0, VOCAB)


_NAMES = {
    "query": ("embed", "heads", "kv"),
    "key": ("embed", "heads", "kv"),
    "value": ("embed", "heads", "kv"),
}


class LinenBlock(nn.Module):
    constrain: Any

    @nn.compact
    def __call__(self, x):
        def kernel(*names):
            return nn.with_logical_partitioning(nn.initializers.normal(0.1), names)

        def norm(name):
            scale = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
            return nn.RMSNorm(scale_init=scale, name=name)

        h = norm("norm_1")(x)
        q, k, v = (
            nn.DenseGeneral((HEADS, KV), use_bias=False, kernel_init=kernel(*names), name=name)(h)
            for name, names in _NAMES.items()
        )
        weights = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k), -1)
        h = jnp.einsum("bhlm,bmhd->blhd", weights, v)
        out = kernel("heads", "kv", "embed")
        x = x + nn.DenseGeneral(EMBED, (-2, -1), use_bias=False, kernel_init=out, name="out")(h)
        h = nn.Dense(MLP, kernel_init=kernel("embed", "mlp"), use_bias=False, name="wi")(
            norm("norm_2")(self.constrain(x))
        )
        wo = nn.Dense(EMBED, kernel_init=kernel("mlp", "embed"), use_bias=False, name="wo")
        return self.constrain(x + wo(jax.nn.relu(h)))


class LinenModel(nn.Module):
    constrain: Any = lambda x: x

    @nn.compact
    def __call__(self, tokens):
        table = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("vocab", "embed"))
        embed = nn.Embed(VOCAB, EMBED, embedding_init=table, name="token_embedder")
        x = self.constrain(embed(tokens))
        for number in range(LAYERS):
            x = LinenBlock(self.constrain, name=f"layers_{number}")(x)
        return embed.attend(x)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, constrain: Any) -> None:
        def kernel(*names):
            init = nnx.initializers.normal(0.1)
            return nnx.with_partitioning(init, names, eager_sharding=False)

        def dense(ins, outs, *names):
            return nnx.Linear(ins, outs, use_bias=False, kernel_init=kernel(*names), rngs=rngs)

        self.constrain = constrain
        self.wi = dense(EMBED, MLP, "embed", "mlp")
        self.wo = dense(MLP, EMBED, "mlp", "embed")
        ones = nnx.with_partitioning(nnx.initializers.ones, ("embed",), eager_sharding=False)
        self.norm = nnx.RMSNorm(EMBED, scale_init=ones, rngs=rngs)

    def __call__(self, x):
        return self.constrain(x + self.wo(jax.nn.relu(self.wi(self.norm(x)))))


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, constrain: Any = lambda x: x) -> None:
        table = nnx.with_partitioning(
            nnx.initializers.normal(0.1), ("vocab", "embed"), eager_sharding=False
        )
        self.embedder = nnx.Embed(VOCAB, EMBED, embedding_init=table, rngs=rngs)
        self.layers = nnx.List([NnxBlock(rngs, constrain) for _ in range(LAYERS)])

    def __call__(self, tokens):
        x = self.embedder(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.embedder.attend(x)
