"""`policy: {indivisible: pad}` in code: sizes to build with, trees of true and padded shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shardspec

SPEC = """
shardspec: 1
axes: {batch: 16, vocab: 101, embed: 8, heads: 6, kv: 2, joined: {size: heads * kv, unit: kv}}
policy: {indivisible: pad}
mesh: {data: 2, tensor: 4}
rules:
  - batch -> data
  - vocab, joined -> tensor
  - embed, kv -> none
params:
  embedding: vocab embed
  bias: vocab
  head: embed vocab
  query: embed joined
"""


@pytest.fixture(scope="module")
def resolver() -> shardspec.Resolver:
    return shardspec.Resolver(shardspec.loads(SPEC))


def true_params() -> dict[str, Any]:
    draw = np.random.default_rng(0).normal
    shapes = {"embedding": (101, 8), "bias": (101,), "head": (8, 101), "query": (8, 12)}
    return {name: draw(size=shape).astype("float32") for name, shape in shapes.items()}


def shapes(tree: Any) -> Any:
    return jax.tree.map(np.shape, tree)


def test_code_builds_with_the_padded_sizes(resolver: shardspec.Resolver) -> None:
    assert (resolver.size("vocab"), resolver.size("heads"), resolver.size("joined")) == (104, 8, 16)


def test_there_and_back(resolver: shardspec.Resolver) -> None:
    true = true_params()
    padded = resolver.padded(true)
    assert shapes(padded) == {
        "embedding": (104, 8),
        "bias": (104,),
        "head": (8, 104),
        "query": (8, 16),
    }
    assert not np.any(padded["embedding"][101:])
    live = resolver.put(padded)
    assert live["embedding"].sharding.shard_shape((104, 8)) == (26, 8)
    assert resolver.verify_placement(live) == ()
    back = resolver.unpadded(live)
    for name, array in true.items():
        np.testing.assert_array_equal(array, np.asarray(back[name]))


def test_padded_stays_padded(resolver: shardspec.Resolver) -> None:
    padded = resolver.padded(true_params())
    assert shapes(resolver.padded(padded)) == shapes(padded)
    true = true_params()
    assert shapes(resolver.unpadded(true)) == shapes(true)


def test_structs_and_optimizer_state_follow(resolver: shardspec.Resolver) -> None:
    true = true_params()
    state = {"params": true, "opt_state": optax.adam(1e-3).init(true)}
    padded = resolver.padded(jax.eval_shape(lambda: state))
    (moments, _) = padded["opt_state"]
    assert moments.mu["query"].shape == (8, 16)
    assert moments.count.shape == ()
    assert shapes(resolver.unpadded(resolver.padded(state))) == shapes(state)


def test_arrays_of_the_true_shape_are_refused(resolver: shardspec.Resolver) -> None:
    with pytest.raises(shardspec.ShardspecError) as caught:
        resolver.shardings(true_params())
    assert {each.code.id for each in caught.value.diagnostics} == {"SHD302"}
    assert "resolver.padded(tree)" in str(caught.value)


def test_activations_have_the_padded_size(resolver: shardspec.Resolver) -> None:
    params = resolver.put(resolver.padded(true_params()))

    @jax.jit
    def logits(params: Any, x: jax.Array) -> jax.Array:
        return resolver.constrain(x @ params["head"] + params["bias"], "batch vocab")

    found = logits(params, jnp.ones((16, 8)))
    assert found.shape == (16, 104)
    assert found.sharding.shard_shape(found.shape) == (8, 26)
    plain = np.ones((16, 8)) @ true_params()["head"] + true_params()["bias"]
    np.testing.assert_allclose(found[:, :101], plain, rtol=1e-5)


def test_a_product_is_padded_in_whole_factors() -> None:
    """Where the minor factor grows, its padding stands behind each of the major one."""
    text = SPEC.replace("{size: heads * kv, unit: kv}", "kv * heads").replace(
        "vocab, joined", "vocab, heads"
    )
    text = text.replace("embed, kv ->", "embed, kv, joined ->") + "  split: heads\n"
    resolver = shardspec.Resolver(shardspec.loads(text))
    query = np.arange(8 * 12, dtype="float32").reshape(8, 12)
    padded = resolver.padded({"query": query})["query"]
    assert padded.shape == (8, 16)
    np.testing.assert_array_equal(padded.reshape(8, 2, 8)[:, :, :6], query.reshape(8, 2, 6))
