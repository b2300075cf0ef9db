"""`shardspec.constrain` goes by the innermost `with resolver:`, whatever JAX has traced before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec

X = jnp.ones((4, 8))


@jax.jit
def constrained(x: Any) -> Any:
    return shardspec.constrain(x, "batch mlp")


def placed() -> tuple[Any, ...]:
    return tuple(constrained(X).sharding.spec)


def test_a_block_inside_another_ends_without_a_trace() -> None:
    outer = Resolver(make_spec())
    inner = Resolver(make_spec(rules=[("batch", "model"), ("mlp", "data")]))
    with outer:
        with inner:
            assert placed() == ("model", "data")
        assert placed() == ("data", "model")
    with inner:
        assert placed() == ("model", "data")


def test_without_a_block_there_is_no_resolver() -> None:
    with pytest.raises(ShardspecError, match="runs under no resolver"):
        shardspec.constrain(X, "batch mlp")
