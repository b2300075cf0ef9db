"""`shardspec.constrain` goes by the innermost `with resolver:`, whatever JAX has traced before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner
from flax import linen as nn

import shardspec
from shardspec.cli.main import cli
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.constrain import unconstrained
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


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return constrained(nn.Dense(8)(x))


def test_a_model_of_flax_is_made_without_a_block() -> None:
    made = Mlp().init(jax.random.key(0), X)
    with pytest.raises(ShardspecError, match="runs under no resolver"):
        Mlp().apply(made, jnp.ones((2, 8)))
    with Resolver(make_spec()):
        assert tuple(Mlp().apply(made, X).sharding.spec) == ("data", "model")


def test_what_was_traced_without_constraints_is_traced_again_under_a_resolver() -> None:
    with unconstrained():
        assert constrained(X) is not None
        with Resolver(make_spec()):
            assert placed() == ("data", "model")
    with pytest.raises(ShardspecError, match="runs under no resolver"):
        shardspec.constrain(X, "batch mlp")


ARRAYS = """
import jax
import jax.numpy as jnp
import shardspec
from flax import linen as nn


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return shardspec.constrain(nn.Dense(512, use_bias=False)(x), "batch mlp")


def arrays():
    x = jnp.ones((3, 8))
    params = Mlp().init(jax.random.key(0), x)
    return params, jax.eval_shape(Mlp().apply, params, x)
"""


def test_a_function_that_tells_arrays_needs_no_resolver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("told_arrays.py").write_text(ARRAYS)
    done = CliRunner().invoke(cli, ["manifest", "told_arrays:arrays"])
    assert done.exit_code == 0, done.output
    assert 'Dense_0/kernel": f32[8, 512]' in done.output
