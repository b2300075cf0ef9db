"""Live key-value caches lie as `caches:` says, whatever their batch and length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardspec import Resolver, ShardspecError, loads
from shardspec.ir.spec import PartitionSpec
from shardspec.jax_backend.step.reading import step_of

TEXT = """\
shardspec: 1
extends: serving
mesh: {data: 2, tensor: 4}
axes: {batch: 64, cache_length: 128, kv_heads: 8, kv: 16}
params: {"**/kernel": embed mlp}
caches: {"cache/{0,1}/{key,value}": "bf16[batch cache_length kv_heads kv]"}
"""


def layer(batch: int) -> dict[str, jnp.ndarray]:
    return {name: jnp.zeros((batch, 32, 8, 16), jnp.bfloat16) for name in ("key", "value")}


def test_a_live_cache_has_the_names_of_its_path() -> None:
    resolver = Resolver(loads(TEXT))
    tree = {"cache": [layer(4), layer(4)], "mlp": {"kernel": jnp.zeros((8, 16))}}
    found = resolver.shardings(tree)
    assert found["cache"][1]["value"].spec == P("data", None, "tensor", None)
    assert found["mlp"]["kernel"].spec == P(None, "tensor")
    resolver.verify_placement(resolver.put(tree))
    held = resolver.plan(tree).memory().by_kind
    assert held == {"parameters": 8 * 16 * 4 // 4, "caches": 4 * (4 * 32 * 8 * 16 * 2) // 8}


def test_another_path_has_no_names() -> None:
    with pytest.raises(ShardspecError, match="SHD205"):
        Resolver(loads(TEXT)).shardings({"cache": [{"other": jnp.zeros((4, 32, 8, 16))}]})


def test_a_batch_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(ShardspecError, match="SHD301"):
        Resolver(loads(TEXT)).shardings({"cache": [layer(3)]})


STACKED = """\
shardspec: 1
mesh: {data: 8}
rules: [batch -> data, embed -> none]
params: {w: embed _}
"""


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((8, 16, 32), (None, "data", None)),  # layers, the batch, and a length
        ((16, 8, 32), ("data", None, None)),
        ((8, 16, 16), ("data", None, None)),  # two dimensions may be the batch
        ((8, 12, 32), ("data", None, None)),  # none is as long
    ],
)
def test_a_cache_that_nothing_places_has_the_batch_where_it_is_as_long_as_the_tokens(
    shape: tuple[int, ...], wanted: tuple[str | None, ...]
) -> None:
    def step(params: Any, cache: Any, tokens: Any) -> Any:
        return params["w"][tokens], cache * 2

    given = ({"w": jnp.ones((8, 8))}, jnp.ones(shape), jnp.ones(16, jnp.int32))
    cost = Resolver(loads(STACKED)).cost(step, *given)
    assert cost.step is not None
    (cache,) = (each for each in cost.step.arguments if each.path == "cache")
    assert cache.is_guess
    assert tuple(axes[0] if axes else None for axes in cache.array.split.dims) == wanted


@pytest.mark.parametrize("entry", ["cache/{k,v}", "{k,v}"])
def test_an_entry_names_what_is_in_an_argument_with_its_name_or_without(entry: str) -> None:
    text = TEXT.replace("cache/{0,1}/{key,value}", entry)
    resolver = Resolver(loads(text), devices="abstract")
    cache = {name: jax.ShapeDtypeStruct((64, 128, 8, 16), jnp.bfloat16) for name in "kv"}
    kernel = {"mlp": {"kernel": jax.ShapeDtypeStruct((8, 16), jnp.bfloat16)}}

    def step(params: Any, cache: Any, x: Any) -> Any:
        return x @ params["mlp"]["kernel"], cache

    x = jax.ShapeDtypeStruct((64, 8), jnp.bfloat16)
    found = {each.path: each for each in step_of(resolver, step, kernel, cache, x).arguments}
    assert found.keys() >= {"mlp/kernel", "x"}
    for path in ("cache/k", "cache/v"):
        assert found[path].role == "cache"
        assert found[path].array.split == PartitionSpec((("data",), (), ("tensor",), ()))
        assert not found[path].is_guess
