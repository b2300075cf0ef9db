"""Memory of small programs against libtpu and XLA:GPU, on one chip: one rule of fusion each."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardspec
from tests.versions_of_jax import needs_libtpu

SPEC = """
axes: {batch: 8}
rules: ["batch -> data"]
arrays: {w: "f32[batch]"}
targets:
  tpu: {hardware: tpu v5e 1x1, mesh: {data: rest}}
  gpu: {hardware: 1 h100, mesh: {data: rest}}
"""
Function = Callable[..., Any]


def shape(*sizes: int, dtype: Any = jnp.float32) -> Any:
    """Return an argument."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def pad(x: Any, low: int, between: int) -> Any:
    """Return `x` with zeros before it, or between its rows."""
    return jax.lax.pad(x, jnp.float32(0), [(0, 0, 0), (low, 0, between), (0, 0, 0)])


def graded(function: Function) -> Function:
    """Return the value of a sum of squares and all of its gradients."""

    def loss(*given: Any) -> Any:
        return jnp.sum(function(*given).astype(jnp.float32) ** 2)

    def both(*given: Any) -> Any:
        return jax.value_and_grad(loss, argnums=tuple(range(len(given))))(*given)

    return both


def made(x: Any) -> Any:
    """Return a value that a kernel makes."""
    return x * 2 + 1


def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Return a gated MLP."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def shifted(x: Any, taps: Any) -> Any:
    """Return a convolution along the length, as sums of shifted rows."""
    moved = (jnp.pad(x, [(0, 0), (at, 0), (0, 0)])[:, : x.shape[1]] for at in range(4))
    return sum(taps[at] * each for at, each in enumerate(moved))


def loss(hidden: Any, table: Any, ids: Any) -> Any:
    """Return a cross-entropy in bfloat16."""
    logits = jax.nn.log_softmax(hidden @ table)
    chosen = jax.nn.one_hot(ids, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(chosen * logits, -1).astype(jnp.float32))


BIG = shape(64, 1024, 1024)
WIDE = shape(64, 1024, 1024, dtype=jnp.bfloat16)
WEIGHT = shape(1024, 4096, dtype=jnp.bfloat16)
#: Function, arguments, and where it is tried on each run; the others are for the nights.
CASES: dict[str, tuple[str, Function, tuple[Any, ...]]] = {
    "strided slices": ("tpu", lambda x: made(x)[:, ::2] + made(x)[:, 1::2], (BIG,)),
    "two slices": ("tpu", lambda x: made(x)[:, :512] * made(x)[:, 512:], (BIG,)),
    "one slice": ("", lambda x: made(x)[:, 3:515] * 3, (BIG,)),
    "a pad": ("", lambda x: pad(made(x), 8, 0) * 3, (BIG,)),
    "a pad between": ("tpu", lambda x: pad(made(x), 0, 1) * 3, (BIG,)),
    "a concatenation": ("", lambda x: jnp.concatenate([made(x), x], 1) * 3, (BIG,)),
    "a shift": ("", lambda x: made(x) + pad(made(x), 1, 0)[:, :-1], (BIG,)),
    "a convolution": (
        "",
        graded(shifted),
        (shape(16, 2048, 1024, dtype=jnp.bfloat16), shape(4, 1024, dtype=jnp.bfloat16)),
    ),
    "a gated MLP": (
        "",
        graded(gated),
        (WIDE, WEIGHT, WEIGHT, shape(4096, 1024, dtype=jnp.bfloat16)),
    ),
    "a loss in bf16": (
        "tpu",
        jax.value_and_grad(loss, argnums=(0, 1)),
        (
            shape(16, 512, 1024, dtype=jnp.bfloat16),
            shape(1024, 32000, dtype=jnp.bfloat16),
            shape(16, 512, dtype=jnp.int32),
        ),
    ),
    "an embedding": (
        "tpu",
        jax.value_and_grad(lambda table, ids: jnp.sum(jnp.take(table, ids, axis=0) ** 2)),
        (shape(32000, 1024), shape(32, 1024, dtype=jnp.int32)),
    ),
    "a sum along": ("", graded(lambda x: jnp.cumsum(x, 1)), (shape(16, 2048, 1024),)),
}
#: What the model gets wrong: on GPUs kernels that share sums and shifts, on TPUs the order of three
#: products of which two are added up.
_WRONG = {
    "gpu": frozenset(("a convolution", "a gated MLP", "a loss in bf16", "a sum along")),
    "tpu": frozenset(("a gated MLP",)),
}


def cases() -> list[Any]:
    """Return a case for each function and target; those of the nights marked."""
    found = []
    for name, (usual, _, _) in CASES.items():
        for target in (each for each in ("tpu", "gpu") if name not in _WRONG[each]):
            marks = () if target == usual else (pytest.mark.nightly,)
            found.append(pytest.param(name, target, id=f"{name} on {target}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "target"), cases())
def test_model_holds_what_the_compiler_holds(name: str, target: str) -> None:
    if target == "gpu" and not os.environ.get("SHARDSPEC_GPU_COMPILER"):
        pytest.importorskip("jax_cuda12_plugin", reason="needs the extra gpu-aot")
    if target == "tpu":
        needs_libtpu()
    _, function, given = CASES[name]
    resolver = shardspec.Resolver(shardspec.loads(SPEC), target, devices="abstract")
    proof = resolver.verify(jax.jit(function), *given)
    assert proof.memory is not None
    assert proof.cost.memory.total.bytes == pytest.approx(proof.memory.bytes, rel=0.02)


def looked_back(caches: list[Any], x: Any, at: Any, heads: int) -> Any:
    """Return caches with a token more, layer by layer, and what attention reads of them.

    Each head of the caches has four queries.
    """

    def layer(carried: Any, number: Any) -> Any:
        x, *caches = carried
        query = x.reshape(x.shape[0], heads, 4, 128)
        read = []
        for index, cache in enumerate(caches):
            row = (query[:, :, 0] + index)[None, :, None]
            cache = lax.dynamic_update_slice(cache, row, (number, 0, at, 0, 0))
            read.append(lax.dynamic_index_in_dim(cache, number, keepdims=False))
            caches[index] = cache
        for keys, values in zip(read[::2], read[-1::-2], strict=True):
            weights = jax.nn.softmax(jnp.einsum("bkgd,bmkd->bkgm", query, keys))
            query = jnp.einsum("bkgm,bmkd->bkgd", weights, values)
        return (query.reshape(x.shape), *caches), None

    (x, *caches), _ = lax.scan(layer, (x, *caches), jnp.arange(8))
    return caches, x


@pytest.mark.parametrize(
    ("target", "batch", "count", "heads"),
    [
        ("gpu", 256, 2, 1),  # in place; the keys are turned
        pytest.param("gpu", 64, 2, 4, marks=pytest.mark.nightly),  # both are
        pytest.param("gpu", 64, 1, 4, marks=pytest.mark.nightly),
        pytest.param("gpu", 256, 1, 1, marks=pytest.mark.nightly),  # one cache for both
    ],
)
def test_caches_that_a_loop_changes_are_held_as_often_as_the_compiler_holds_them(
    target: str, batch: int, count: int, heads: int
) -> None:
    if target == "gpu" and not os.environ.get("SHARDSPEC_GPU_COMPILER"):
        pytest.importorskip("jax_cuda12_plugin", reason="needs the extra gpu-aot")
    resolver = shardspec.Resolver(shardspec.loads(SPEC), target, devices="abstract")
    caches = [jax.ShapeDtypeStruct((8, batch, 4096, heads, 128), "bfloat16")] * count
    x = jax.ShapeDtypeStruct((batch, heads * 512), "bfloat16")
    step = jax.jit(partial(looked_back, heads=heads), donate_argnums=0)
    proof = resolver.verify(step, caches, x, jax.ShapeDtypeStruct((), "int32"))
    assert proof.memory is not None
    assert proof.cost.memory.total.bytes == pytest.approx(proof.memory.bytes, rel=0.07)


def added_up(caches: list[Any], x: Any, at: Any) -> Any:
    """Return caches with a row more, layer by layer, and a sum over what they hold."""

    def layer(carried: Any, number: Any) -> Any:
        x, *caches = carried
        for index, cache in enumerate(caches):
            cache = lax.dynamic_update_slice(cache, (x + index)[None, :, None], (number, 0, at, 0))
            here = lax.dynamic_index_in_dim(cache, number, keepdims=False)
            x = jnp.einsum("bm,bmd->bd", jax.nn.softmax(jnp.einsum("bd,bmd->bm", x, here)), here)
            caches[index] = cache
        return (x, *caches), None

    (x, *caches), _ = lax.scan(layer, (x, *caches), jnp.arange(8))
    return caches, x


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        pytest.param(256, 2, marks=pytest.mark.nightly),  # room for a copy of each
        (576, 2),  # for one
        pytest.param(1152, 1, marks=pytest.mark.nightly),  # none, and no other to take
        pytest.param(384, 3, marks=pytest.mark.nightly),
    ],
)
def test_a_copy_is_saved_where_a_tpu_has_no_room(batch: int, count: int) -> None:
    needs_libtpu()
    resolver = shardspec.Resolver(shardspec.loads(SPEC), "tpu", devices="abstract")
    caches = [jax.ShapeDtypeStruct((8, batch, 4096, 128), "bfloat16")] * count
    x = jax.ShapeDtypeStruct((batch, 128), "bfloat16")
    step = jax.jit(added_up, donate_argnums=0)
    proof = resolver.verify(step, caches, x, jax.ShapeDtypeStruct((), "int32"))
    assert proof.memory is not None
    assert proof.cost.memory.total.bytes == pytest.approx(proof.memory.bytes, rel=0.02)


SHARDED = """
axes: {batch: 32, heads: 4}
rules: ["batch -> data", "heads -> model"]
arrays: {w: "f32[batch]"}
targets:
  tpu: {hardware: tpu v5e 4x4, mesh: {data: 4, model: 4}}
"""


@pytest.mark.parametrize(("dtype", "heads"), [("bfloat16", 4), ("int8", 8), ("float32", 4)])
def test_donated_cache_is_reused_if_its_sharding_is_stated(dtype: str, heads: int) -> None:
    """And SHD521 says so: its figure is what stating the sharding saves, to the byte."""
    pytest.importorskip("libtpu", reason="needs the extra tpu-aot")
    resolver = shardspec.Resolver(shardspec.loads(SHARDED), "tpu", devices="abstract")
    place = resolver.sharding("batch _ heads _", (32, 1024, heads, 128))
    cache = jax.ShapeDtypeStruct((32, 1024, heads, 128), dtype, sharding=place)

    def held(**how: Any) -> tuple[int, int, int]:
        proof = resolver.verify(jax.jit(lambda x: x + 1, donate_argnums=0, **how), cache)
        assert proof.memory is not None
        assert proof.cost.step is not None
        lost = sum(each.bytes for each in proof.cost.step.unreused)
        return proof.memory.bytes, proof.cost.memory.total.bytes, lost

    free, stated = held(), held(out_shardings=place)
    assert free[0] == free[1] == pytest.approx(stated[0] + free[2], abs=4096)
    assert stated[0] == pytest.approx(stated[1], abs=4096)
    assert stated[2] == 0
    assert bool(free[2]) == (dtype != "float32")
