"""The one product that all layers call, as models have it in a module of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def dense(x: Any, w: Any) -> Any:
    """Return what a weight makes of the last dimension."""
    return jnp.einsum("btd,df->btf", x, w.astype(x.dtype))


def norm(x: Any) -> Any:
    """Return values of a mean square of one."""
    mean = jnp.mean(jnp.square(x), -1, keepdims=True)
    return x * jax.lax.rsqrt(mean + 1e-6)
