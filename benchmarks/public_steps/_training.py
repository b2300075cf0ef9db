"""What several public steps share: a train step around a loss, and modules that are absent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import util
from typing import Any
from unittest.mock import MagicMock

import jax
import optax
from flax import linen as nn

from benchmarks.public_steps import Built, placed
from shardspec import Resolver


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Put a mock in place of modules that repositories import and a step never calls."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: MagicMock() for name in names})
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def bare(name: str) -> None:
    """Make a package known without what its `__init__` imports."""
    spec = util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(name)
    sys.modules[name] = util.module_from_spec(spec)


def shaped(resolver: Resolver, names: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the shape of an argument, sharded by the names of its dimensions."""
    at = resolver.sharding(names, shape)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=at)


def key() -> Any:
    """Return the shape of a random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def weights(
    resolver: Resolver, boxed: Any, optimizer: optax.GradientTransformation
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the shardings of parameters and of their optimizer state, and both with these."""
    states = jax.eval_shape(optimizer.init, boxed)
    places = (
        resolver.shardings(boxed, boxed=False),
        resolver.state_shardings(states, boxed, boxed=False),
    )
    params, state = (placed(nn.unbox(x), at) for x, at in zip((boxed, states), places, strict=True))
    return places, (params, state)


def trained(
    resolver: Resolver,
    loss: Callable[..., Any],
    boxed: Any,
    optimizer: optax.GradientTransformation,
    *data: Any,
) -> Built:
    """Return a train step of a loss, which gets parameters and data.

    Parameters and optimizer state are donated, and returned as they came.
    """
    places, (params, state) = weights(resolver, boxed, optimizer)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params: Any, state: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *data)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, state, *data)
