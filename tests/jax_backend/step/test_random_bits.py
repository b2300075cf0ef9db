"""Random bits that libtpu may write to memory: of dropout that a backward pass computes again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec

SPEC = """
shardspec: 1
hardware: tpu v5e 2x2
mesh: {fsdp: 4}
rules: [batch -> fsdp, "embed, kv, length -> none"]
params: {w: embed kv}
activations: {x: batch length embed}
"""


def attend(w: Any, x: Any, key: Any) -> Any:
    """Return attention of two heads, some of whose weights are dropped."""
    heads = (x @ w).reshape(*x.shape[:2], 2, -1)
    scores = jnp.einsum("bqhk,bthk->bhqt", heads, heads)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    kept = jax.random.bernoulli(key, 0.9, weights.shape)
    weights = jnp.where(kept, weights / 0.9, jnp.zeros_like(weights))
    return jnp.einsum("bhqt,bthk->bqhk", weights, heads).reshape(x.shape) + x


@pytest.mark.parametrize(
    ("length", "is_again", "is_unknown"),
    [(1024, True, True), (2048, True, True), (512, True, False), (1024, False, False)],
)
def test_memory_is_unknown_where_bits_are_made_again(
    length: int, is_again: bool, is_unknown: bool
) -> None:
    one = jax.checkpoint(attend) if is_again else attend

    def loss(params: Any, x: Any, key: Any) -> Any:
        return jnp.mean(one(params["w"], x, key).astype(jnp.float32) ** 2)

    resolver = shardspec.Resolver(shardspec.loads(SPEC), target="default", devices="abstract")
    params = {"w": jax.ShapeDtypeStruct((128, 128), jnp.bfloat16)}
    x = jax.ShapeDtypeStruct((16, length, 128), jnp.bfloat16)
    key = jax.eval_shape(lambda: jax.random.key(0))
    cost = resolver.cost(jax.jit(jax.grad(loss)), params, x, key)
    text = " ".join(str(cost).split())
    assert ("libtpu may write out what they are made of" in text) is is_unknown
    assert ("per device, fits" not in text) is is_unknown
