"""Code that is not the user's: constraints are put into it from outside."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def mlp(p: Any, x: Any) -> Any:
    hidden = x @ p["wi"]
    hidden = jax.nn.relu(hidden)  # MARK
    return hidden @ p["wo"]


class Block:
    def __call__(self, p: Any, x: Any) -> Any:
        with jax.named_scope("mlp"):
            out = mlp(p, x)
        return x + out


def block(p: Any, x: Any) -> Any:
    return Block()(p, x)


def pair(p: Any, x: Any) -> Any:
    """Return values of different ranks: for each token, and for each sequence."""
    out = block(p, x)
    return out.mean(axis=-1), out


@jax.custom_vjp
def doubled(p: Any, x: Any) -> Any:
    return mlp(p, x) * 2


def _forward(p: Any, x: Any) -> Any:
    return mlp(p, x) * 2, (p, x)


def _backward(kept: Any, g: Any) -> Any:
    p, x = kept
    return jax.vjp(mlp, p, x)[1](2 * g)


doubled.defvjp(_forward, _backward)


def plain(p: Any, x: Any) -> Any:
    return block(p, block(p, x))


def scanned(p: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, _: (block(p, x), None), x, None, length=3)[0]


def again(p: Any, x: Any) -> Any:
    return jax.checkpoint(block)(p, x)


def jitted(p: Any, x: Any) -> Any:
    return jax.jit(block)(p, x)


def custom(p: Any, x: Any) -> Any:
    return x + doubled(p, x)


def either(p: Any, x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, partial(block, p), lambda x: x, x)


def batched(p: Any, x: Any) -> Any:
    return jax.vmap(partial(block, p))(x)


def counted(p: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, x: block(p, x), x)


def nested(p: Any, x: Any) -> Any:
    """All of it at once: a scan of a jitted function that is computed again."""
    body = jax.checkpoint(jax.jit(block))
    return jnp.tanh(jax.lax.scan(lambda x, _: (body(p, x), None), x, None, length=2)[0])
