"""One model five times: Linen, NNX, Equinox, Haiku, and a dict. Their paths are documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

VOCAB, EMBED, MLP, LAYERS = 32, 8, 16, 2
TOKENS = jnp.zeros((2, 4), jnp.int32)


class LinenLayer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.relu(nn.Dense(MLP, name="wi")(nn.LayerNorm(name="norm")(x)))
        return x + nn.Dense(EMBED, name="wo")(h)


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(VOCAB, EMBED, name="embed")(tokens)
        for number in range(LAYERS):
            x = LinenLayer(name=f"layers_{number}")(x)
        return x


class NnxLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(EMBED, rngs=rngs)
        self.wi = nnx.Linear(EMBED, MLP, rngs=rngs)
        self.wo = nnx.Linear(MLP, EMBED, rngs=rngs)


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, EMBED, rngs=rngs)
        self.layers = nnx.List([NnxLayer(rngs) for _ in range(LAYERS)])


class EquinoxLayer(eqx.Module):
    norm: eqx.nn.LayerNorm
    wi: eqx.nn.Linear
    wo: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(EMBED)
        self.wi = eqx.nn.Linear(EMBED, MLP, key=first)
        self.wo = eqx.nn.Linear(MLP, EMBED, key=second)


class EquinoxModel(eqx.Module):
    embed: eqx.nn.Embedding
    layers: list[EquinoxLayer]

    def __init__(self, key: Any) -> None:
        first, *others = jax.random.split(key, LAYERS + 1)
        self.embed = eqx.nn.Embedding(VOCAB, EMBED, key=first)
        self.layers = [EquinoxLayer(other) for other in others]


class HaikuLayer(hk.Module):
    def __call__(self, x: Any) -> Any:
        h = hk.LayerNorm(-1, create_scale=True, create_offset=True, name="norm")(x)
        h = jax.nn.relu(hk.Linear(MLP, name="wi")(h))
        return x + hk.Linear(EMBED, name="wo")(h)


def haiku_model(tokens: Any) -> Any:
    x = hk.Embed(VOCAB, EMBED, name="embed")(tokens)
    for number in range(LAYERS):
        x = HaikuLayer(name=f"layers_{number}")(x)
    return x


def dict_model() -> Any:
    def layer() -> Any:
        return {
            "norm": {"scale": jnp.ones(EMBED), "bias": jnp.ones(EMBED)},
            "wi": {"kernel": jnp.ones((EMBED, MLP)), "bias": jnp.ones(MLP)},
            "wo": {"kernel": jnp.ones((MLP, EMBED)), "bias": jnp.ones(EMBED)},
        }

    return {"embed": jnp.ones((VOCAB, EMBED)), "layers": [layer() for _ in range(LAYERS)]}


def _rng() -> Any:
    return jax.random.key(0)


#: Framework -> what gives the model's arrays as that framework holds them.
MODELS: dict[str, Callable[[], Any]] = {
    "Linen": lambda: LinenModel().init(_rng(), TOKENS),
    "NNX": lambda: NnxModel(nnx.Rngs(0)),
    "Equinox": lambda: EquinoxModel(_rng()),
    "Haiku": lambda: hk.transform(haiku_model).init(_rng(), TOKENS),
    "dict": dict_model,
}
