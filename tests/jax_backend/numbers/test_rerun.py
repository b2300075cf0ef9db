"""A program that is run again computes what it computes, and is watched as it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from shardspec.jax_backend.numbers.rerun import Rerun

F32 = np.dtype("float32")
AUTO = (jax.sharding.AxisType.Auto,)
X = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")


def mesh_of(count: int) -> jax.sharding.Mesh:
    return jax.make_mesh((count,), ("data",), axis_types=AUTO, devices=jax.devices()[:count])


def ran(rerun: Rerun, closed: Any) -> tuple[list[Any], list[Any]]:
    with jax.set_mesh(rerun.mesh):
        return jax.jit(lambda leaves: rerun(closed, leaves))([X])


def scanned(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return carry * 0.5 + row, jnp.sin(carry)

    return jax.lax.scan(body, x[0], x, reverse=True)


def looped(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ x), (0, x))[1]


def branched(x: Any) -> Any:
    return jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.tanh(x)


clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (jnp.clip(g, -0.1, 0.1),))


def looked_up(x: Any) -> Any:
    return x.at[jnp.array([1, 1, 3])].add(1.0)[jnp.array([3, 1])]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "scan": scanned,
    "while": looped,
    "cond": branched,
    "custom_vjp": jax.grad(lambda x: clipped(x).sum()),
    "remat": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y) @ y)(x).sum()),
    "scatter": jax.grad(lambda x: (looked_up(x) ** 2).sum()),
    "jit": jax.jit(lambda x: jax.nn.softmax(x) @ x),
    "sorted": lambda x: jnp.sort(x, axis=0)[::-1],
    "random": lambda x: x * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_watched", [False, True])
def test_it_computes_the_same(name: str, is_watched: bool) -> None:
    closed = jax.make_jaxpr(FUNCTIONS[name])(X)
    rerun = Rerun(mesh_of(1), F32, is_watched=is_watched)
    outs, seen = ran(rerun, closed)
    expected = jax.tree_util.tree_leaves(FUNCTIONS[name](X))
    for out, known in zip(outs, expected, strict=True):
        np.testing.assert_allclose(out, known, rtol=1e-5, atol=1e-6)
    assert len(seen) == len(rerun.marks)
    assert bool(seen) == is_watched


def test_every_float_has_one_width() -> None:
    def narrow(x: Any) -> Any:
        y = x.astype(jnp.bfloat16)
        z, _ = jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(8, jnp.bfloat16), y)
        return jnp.einsum("ab,cb->ac", y, y), z, y.at[0].add(jnp.bfloat16(1))

    closed = jax.make_jaxpr(narrow)(X)
    outs, _ = ran(Rerun(mesh_of(1), F32), closed)
    assert {out.dtype for out in outs} == {F32}
    np.testing.assert_allclose(outs[0], X @ X.T, rtol=1e-5, atol=1e-5)


def test_the_form_of_what_devices_exchange_is_watched() -> None:
    def step(x: Any) -> Any:
        sent = jax.lax.all_to_all(x.reshape(2, 2, -1), "data", 0, 0)
        return jnp.sin(sent.swapaxes(0, 1).reshape(4, -1)).reshape(x.shape)

    mapped = jax.shard_map(step, mesh=mesh_of(2), in_specs=P("data"), out_specs=P("data"))
    rerun = Rerun(mesh_of(2), F32, is_watched=True)
    ran(rerun, jax.make_jaxpr(mapped)(X))
    assert [each.primitive for each in rerun.marks] == ["all_to_all", "transpose", "reshape", "sin"]


def test_a_kernel_is_interpreted() -> None:
    def kernel(x_ref: Any, y_ref: Any) -> None:
        y_ref[...] = jnp.sin(x_ref[...])

    def step(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
        return pl.pallas_call(kernel, out_shape=shape)(x.astype(jnp.bfloat16)) * 2

    closed = jax.make_jaxpr(step)(X)
    (out,), _ = ran(Rerun(mesh_of(1), F32), closed)
    assert out.dtype == F32
    np.testing.assert_allclose(out, 2 * np.sin(X), atol=0.02)


def sharded(mesh: Any, *, check_vma: bool) -> Callable[[Any], Any]:
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P("data"),
        out_specs=(P(), P("data")),
        check_vma=check_vma,
    )
    def body(x: Any) -> Any:
        return jax.lax.psum(x.sum(0), "data"), jnp.sin(x)

    return body


@pytest.mark.parametrize("check_vma", [False, True])
def test_a_shard_map_is_watched_device_by_device(check_vma: bool) -> None:
    closed = jax.make_jaxpr(sharded(mesh_of(4), check_vma=check_vma))(X)
    rerun = Rerun(mesh_of(4), F32, is_watched=True)
    outs, seen = ran(rerun, closed)
    np.testing.assert_allclose(outs[0], X.sum(0), rtol=1e-5, atol=1e-5)
    parts = {mark.primitive: value for mark, value in zip(rerun.marks, seen, strict=True)}
    assert parts["sin"].shape == (4, 2, 8)
    np.testing.assert_allclose(parts["sin"].reshape(8, 8), np.sin(X), rtol=1e-5)
    np.testing.assert_allclose(parts["reduce_sum"].sum(0), X.sum(0), rtol=1e-4, atol=1e-5)
    assert [end.axes for end in rerun.ends] == [frozenset(), frozenset({"data"})]


def test_random_numbers_of_a_device_are_constants() -> None:
    mesh = mesh_of(2)

    @partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def dropped(x: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("data"))
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0)

    closed = jax.make_jaxpr(dropped)(X)
    rerun = Rerun(mesh, F32)
    outs, _ = ran(rerun, closed)
    np.testing.assert_array_equal(outs[0], X)
    assert [place.line > 0 for place in rerun.device_random] == [True]
