"""Memory of small programs against libtpu and XLA:GPU, on one chip: one rule of fusion each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec

pytest.importorskip("libtpu", reason="needs the extra tpu-aot")

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
#: What the model gets wrong on a GPU: kernels that share sums and shifts.
_NOT_GPU = frozenset(("a convolution", "a gated MLP", "a loss in bf16", "a sum along"))


def cases() -> list[Any]:
    """Return a case for each function and target; those of the nights marked."""
    found = []
    for name, (usual, _, _) in CASES.items():
        for target in ("tpu",) if name in _NOT_GPU else ("tpu", "gpu"):
            marks = () if target == usual else (pytest.mark.nightly,)
            found.append(pytest.param(name, target, id=f"{name} on {target}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "target"), cases())
def test_model_holds_what_the_compiler_holds(name: str, target: str) -> None:
    if target == "gpu" and not os.environ.get("SHARDSPEC_GPU_COMPILER"):
        pytest.importorskip("jax_cuda12_plugin", reason="needs the extra gpu-aot")
    _, function, given = CASES[name]
    resolver = shardspec.Resolver(shardspec.loads(SPEC), target, devices="abstract")
    proof = resolver.verify(jax.jit(function), *given)
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
