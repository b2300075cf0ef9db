"""Constraints inside of `jax.vmap` that name what it maps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.resolver import Resolver

SPEC = """\
shardspec: 1
axes: {batch: 8, length: 4}
targets: {laptop: {mesh: {data: 4, model: 2}}}
rules: [batch -> data, embed -> data, mlp -> model, length -> none]
params: {w: embed mlp}
"""
X = np.arange(8 * 4 * 16, dtype=np.float32).reshape(8, 4, 16) / 512
WHOLE = '[{"data"}, {}, {"model"}]'
Function = Callable[[Any], Any]


@pytest.fixture(scope="module")
def found() -> Resolver:
    return Resolver(shardspec.loads(SPEC))


def constraints(function: Function, *args: Any) -> list[str]:
    """Return the shardings that constrain something in the lowered module."""
    text = jax.jit(function).lower(*args).as_text()
    return re.findall(r"sdy\.sharding_constraint \S+ <@mesh, (\[.*?\])>", text)


def scanned(function: Function) -> Function:
    return lambda x: jax.lax.scan(lambda c, _: (function(c), None), x, None, length=1)[0]


def branched(function: Function) -> Function:
    return lambda x: jax.lax.cond(x.sum() > 0, function, function, x)


#: What code may be in between a constraint and the `vmap` around it.
AROUND: dict[str, Callable[[Function], Function]] = {
    "nothing": lambda function: function,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": scanned,
    "cond": branched,
}


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("around", AROUND)
def test_all_dimensions_are_constrained(found: Resolver, around: str, derived: bool) -> None:
    def one(x: Any) -> Any:
        return found.constrain(jnp.sin(x), "length mlp", mapped="batch")

    def plain(x: Any) -> Any:
        return jnp.sum(jax.vmap(AROUND[around](jnp.sin))(x) ** 2)

    def loss(x: Any) -> Any:
        return jnp.sum(jax.vmap(AROUND[around](one))(x) ** 2)

    function, same = (jax.grad(loss), jax.grad(plain)) if derived else (loss, plain)
    assert set(constraints(function, X)) == {WHOLE}
    np.testing.assert_allclose(jax.jit(function)(X), jax.jit(same)(X), rtol=1e-6)


SIZES = {"batch": 8, "length": 4, "mlp": 16}
SPLIT = {8: '{"data"}', 4: "{}", 16: '{"model"}'}


@given(
    names=st.permutations(list(SIZES)),
    axes=st.lists(st.integers(0, 2), max_size=3),
)
def test_a_name_goes_to_what_its_vmap_maps(names: list[str], axes: list[int]) -> None:
    """Dimensions in any order, and any of them mapped by each `vmap`, the outermost first."""
    own = Resolver(shardspec.loads(SPEC))
    seen, mapped, dims = [*names], [], []
    for axis in axes:
        dims.append(axis % len(seen))
        mapped.append(seen.pop(dims[-1]))

    def function(x: Any) -> Any:
        return own.constrain(x, tuple(seen), mapped=tuple(mapped))

    for dim in reversed(dims):
        function = jax.vmap(function, in_axes=dim)
    x = jnp.zeros([SIZES[name] for name in names])
    (text,) = constraints(function, x)
    (shape,) = {
        each.outvars[0].aval.shape
        for each in jax.make_jaxpr(function)(x).jaxpr.eqns
        if each.primitive.name == "sharding_constraint"
    }
    assert text == f"[{', '.join(SPLIT[size] for size in shape)}]"


def test_gradients_of_each_example(found: Resolver) -> None:
    def one(x: Any) -> Any:
        return jnp.sum(found.constrain(x, "length mlp", mapped="batch") ** 2)

    assert set(constraints(jax.vmap(jax.grad(one)), X)) == {WHOLE}
    np.testing.assert_allclose(jax.vmap(jax.grad(one))(X), 2 * X)


def test_what_no_vmap_maps_is_constrained_as_beside_what_one_maps(found: Resolver) -> None:
    def one(x: Any) -> Any:
        return found.constrain(x, "length embed", mapped="batch")

    assert constraints(one, X[0]) == ["[{}, {}]"], "the batch has taken `data`"
    assert constraints(lambda x: found.constrain(x, "length embed"), X[0]) == ['[{}, {"data"}]']
    np.testing.assert_array_equal(one(jnp.asarray(X[0])), X[0])

    def with_table(x: Any) -> Any:
        return x + found.constrain(jnp.ones((4, 16)), "length mlp", mapped="batch")

    assert constraints(jax.vmap(with_table), X) == ['[{}, {"model"}]']


def test_it_works_under_spmd_axis_name_and_in_shard_map(found: Resolver) -> None:
    def one(x: Any) -> Any:
        return found.constrain(x, "length mlp", mapped="batch")

    def local(x: Any) -> Any:
        return jax.vmap(one)(x)

    spec = jax.sharding.PartitionSpec("data")
    inside = jax.shard_map(
        local, mesh=found.mesh, in_specs=spec, out_specs=spec, axis_names={"data"}
    )
    assert constraints(inside, X) == ['[{}, {}, {"model"}]']
    np.testing.assert_array_equal(jax.jit(inside)(X), X)


@pytest.mark.parametrize(
    ("names", "mapped", "code", "told"),
    [
        ("length", "batch", "SHD206", "names 2 dimensions"),
        ("length foo", "batch", "SHD202", "unknown logical axis `foo`"),
        ("length mlp", "bacth", "SHD202", "unknown logical axis `bacth`"),
        ("length batch", "batch", "SHD209", "batch"),
    ],
)
def test_faults_come_at_once(
    found: Resolver, names: str, mapped: str, code: str, told: str
) -> None:
    with pytest.raises(ShardspecError) as raised:
        jax.eval_shape(jax.vmap(lambda x: found.constrain(x, names, mapped=mapped)), X)
    (fault,) = raised.value.diagnostics
    assert fault.code.id == code
    assert told in str(raised.value)


def test_what_cannot_be_asked(found: Resolver) -> None:
    with pytest.raises(TypeError, match="mapped= with names"):
        found.constrain(X, activation="x", mapped="batch")
    with pytest.raises(TypeError, match="mapped= for one array"):
        found.constrain({"x": X}, {"x": "length mlp"}, mapped="batch")
