"""`Resolver.cost`: the same figures in Python, with devices and without."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import shardspec
from shardspec.analysis.comparison import BY
from tests.models.small_steps import PROGRAMS, resolver


def test_a_step_in_python() -> None:
    own = resolver()
    function, args = PROGRAMS["gradient"](own)
    cost = own.cost(function, *args)
    assert type(cost) is shardspec.Cost
    assert cost.target == "pod"
    assert (cost.memory.parameters.bytes, cost.memory.parameters.mark) == (2 << 20, "=")
    assert cost.time is not None
    assert {row.name: row.wire_bytes for row in cost.by("axis")} == {
        "fsdp": 23068672,
        "tensor": 2097152,
    }
    for by in BY:
        sent = sum(row.wire_bytes for row in cost.by(by))
        assert sent == sum(each.wire_bytes for each in cost.collectives)
    text = str(cost)
    assert text.startswith("small.yaml   pod: TPU v5e 4x4, 16 chips   mesh fsdp=8 tensor=2")
    assert "weight mlp/wi" in text
    assert max(map(len, text.splitlines())) <= 100
    assert repr(cost).startswith("Cost(target pod, ~ ")


def test_rules_by_what_they_cost() -> None:
    own = resolver()
    function, args = PROGRAMS["gradient"](own)
    assert [
        str(asker) for row in own.cost(function, *args).by("rule") for asker in row.askers[0]
    ] == [
        "batch -> fsdp small.yaml:6",
        "embed -> fsdp small.yaml:8",
        "mlp -> tensor small.yaml:7",
    ]


def test_keywords_go_to_the_function() -> None:
    own = resolver()
    function, (params, x) = PROGRAMS["plain"](own)
    by_keyword = own.cost(lambda p, *, function, x: function(p, x), params, function=function, x=x)
    assert by_keyword.memory.total == own.cost(function, params, x).memory.total


def test_on_devices_it_costs_the_same() -> None:
    spec = "shardspec: 1\nmesh: {fsdp: 4, tensor: 2}\nrules: [mlp -> tensor, embed -> fsdp]\n\
params: {'**/wi': embed mlp}\n"
    loaded = shardspec.loads(spec, "spec.yaml")
    params = {"wi": jax.ShapeDtypeStruct((64, 128), jnp.float32)}
    x = jax.ShapeDtypeStruct((8, 64), jnp.float32)
    costs = [
        shardspec.Resolver(loaded, devices=devices).cost(lambda p, x: x @ p["wi"], params, x)
        for devices in (None, "abstract")
    ]
    assert str(costs[0]) == str(costs[1])


def test_what_cannot_be_laid_out_is_a_finding() -> None:
    own = resolver()
    with pytest.raises(shardspec.ShardspecError, match="SHD213"):
        own.cost(lambda x: own.constrain(x, activation="hiden"), jnp.zeros((8, 8)))


def _step(params: jax.Array, batch: jax.Array, *, rate: float, scale: float = 1.0) -> jax.Array:
    return (batch @ params).sum() * rate * scale


@pytest.mark.parametrize("verb", ["cost", "verify", "same_numbers"])
def test_arguments_that_do_not_fit_the_function_are_named(verb: str) -> None:
    ask = getattr(resolver(), verb)
    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    called = r"`_step\(params, batch, rate, scale\)`"
    for function in (_step, jax.jit(_step), functools.partial(_step)):
        with pytest.raises(TypeError, match=rf"{called} is given no `batch`, `rate`"):
            ask(function, shape)
    with pytest.raises(TypeError, match="cannot be called so: too many positional arguments"):
        ask(_step, shape, shape, 1.0)
    with pytest.raises(TypeError, match="a step is a function, not 3"):
        ask(3, shape)


def test_a_step_that_is_no_maker_of_one_is_named() -> None:
    with pytest.raises(TypeError, match="is given no `batch`, `rate`"):
        resolver().same_numbers(_step)
