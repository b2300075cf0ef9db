"""`shardspec.constrain`: by the resolver whose `with` block it runs in, and by none else."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend import constrain
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.trace import Call, traced
from tests.jax_backend.specs import make_spec

X = jnp.zeros((4, 8))


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """Begin as a new process does."""
    jax.clear_caches()
    constrain._USED.clear()
    yield
    assert constrain._CURRENT.get() == ()


def resolver(*rules: tuple[str, str]) -> Resolver:
    return Resolver(make_spec(rules, activations={"rows": "batch _"}))


BY_ROWS = resolver(("batch", "data"))
BY_COLUMNS = resolver(("batch", "model"))


def f(x: Any) -> Any:
    return shardspec.constrain(x * 2, "batch _")


def shardings(function: Any) -> list[str]:
    """Return the mesh axes that constraints name in the lowered function."""
    text = jax.jit(function).lower(X).as_text()
    return re.findall(r'sdy\.sharding_constraint \S+ <@mesh, \[\{"(\w+)"', text)


def test_outside_of_a_block_it_says_what_to_do() -> None:
    with pytest.raises(ShardspecError) as raised:
        f(X)
    (found,) = raised.value.diagnostics
    assert found.message == "`shardspec.constrain` runs under no resolver"
    assert "with resolver:" in (found.help or "")
    with BY_ROWS:
        f(X)
    with pytest.raises(ShardspecError, match="under no resolver"):
        f(X)


def test_it_constrains_as_the_resolver_does() -> None:
    with BY_ROWS:
        assert shardings(f) == ["data"]
        assert shardings(lambda x: shardspec.constrain(x * 2, activation="rows")) == ["data"]
        tree = shardspec.constrain({"a": X, "b": X}, "batch _")
        assert tree["a"].sharding == BY_ROWS.sharding("batch _")
        with pytest.raises(ShardspecError):
            shardspec.constrain(X, "batch _ _")
        with pytest.raises(ShardspecError):
            shardspec.constrain(X, activation="nothing")


def test_the_innermost_block_counts_and_ends() -> None:
    with BY_ROWS as outer:
        assert outer is BY_ROWS
        assert shardings(f) == ["data"]
        with BY_COLUMNS:
            assert shardings(f) == ["model"]
        assert shardings(f) == ["data"]


def test_a_block_ends_when_it_raises() -> None:
    with pytest.raises(ZeroDivisionError), BY_ROWS:
        raise ZeroDivisionError
    with pytest.raises(ShardspecError):
        f(X)


def test_the_same_function_is_traced_anew_under_another_resolver() -> None:
    step = jax.jit(f)

    def is_by(one: Resolver) -> bool:
        return bool(step(X).sharding.is_equivalent_to(one.sharding("batch _"), 2))

    with BY_ROWS:
        assert is_by(BY_ROWS)
    with BY_COLUMNS:
        assert is_by(BY_COLUMNS)
        with BY_ROWS:
            assert is_by(BY_ROWS)
        assert is_by(BY_COLUMNS)


def test_nothing_is_forgotten_for_an_equal_resolver_nor_where_nothing_was_constrained() -> None:
    traced = []

    @jax.jit
    def counted(x: Any) -> Any:
        traced.append(x)
        return x * 3

    counted(X)
    with BY_ROWS:
        counted(X)
        f(X)
    with resolver(("batch", "data")):
        counted(X)
    assert len(traced) == 1
    with BY_COLUMNS:
        counted(X)
    assert len(traced) == 2


def test_a_thread_of_its_own_is_in_no_block() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            f(X)
        except ShardspecError as error:
            raised.append(error)

    with BY_ROWS:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == 1


def test_a_step_is_traced_under_its_resolver() -> None:
    spec = make_spec((("batch", "data"),))
    own = Resolver(spec, devices="abstract", agree_within_s=None)
    module = traced(own, Call(f, [jax.ShapeDtypeStruct((512, 1024), jnp.float32)])).module
    assert "sdy.sharding_constraint" in str(module)
    with pytest.raises(ShardspecError):
        shardspec.constrain(X, "batch _")
