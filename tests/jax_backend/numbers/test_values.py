"""Values for arguments that have only shapes: what the program can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardspec.jax_backend.numbers.small import uses_of, value_for

INT = jax.ShapeDtypeStruct((64,), jnp.int32)
TABLE = jnp.ones((16, 4))


def drawn(function: Callable[..., Any], *structs: Any) -> list[Any]:
    closed = jax.make_jaxpr(function)(*structs)
    random = np.random.default_rng(0)
    pairs = zip(structs, uses_of(closed), strict=True)
    return [value_for(struct, use, random, np.dtype("float32")) for struct, use in pairs]


@pytest.mark.parametrize(
    "function",
    [
        lambda ids: TABLE[ids],
        lambda ids: jnp.take(TABLE, ids, axis=0),
        lambda ids: jax.nn.one_hot(ids, 16) @ TABLE,
        lambda ids: jax.jit(lambda i: TABLE[i])(ids),
        lambda ids: jax.lax.scan(lambda c, i: (c + TABLE[i], None), jnp.zeros(4), ids)[0],
        lambda ids: jax.checkpoint(lambda i: TABLE[jnp.roll(i, 1)])(ids),
    ],
)
def test_indices_are_below_what_they_index(function: Callable[..., Any]) -> None:
    (ids,) = drawn(function, INT)
    assert ids.min() >= 0
    assert ids.max() < 16
    assert len(set(ids.tolist())) > 8


def test_a_position_leaves_room_for_what_is_written_there() -> None:
    def write(cache: Any, new: Any, at: Any) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, at, axis=0)

    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 4), (30, 4))]
    found = [drawn(write, *structs, jax.ShapeDtypeStruct((), jnp.int32))[2]]
    assert all(0 <= each <= 2 for each in found)


def test_lengths_are_at_least_one() -> None:
    def masked(lengths: Any) -> Any:
        return jnp.arange(32)[None] < lengths[:, None]

    (lengths,) = drawn(masked, INT)
    assert lengths.min() >= 1
    assert lengths.max() < 32


def test_what_nothing_tells_apart_is_a_mask_with_something_in_each_row() -> None:
    mask, flags = drawn(
        lambda a, b: (a * 2.0, b),
        jax.ShapeDtypeStruct((8, 8), jnp.int32),
        jax.ShapeDtypeStruct((8, 8), jnp.bool_),
    )
    assert set(mask.ravel().tolist()) == {0, 1}
    assert mask[:, 0].all()
    assert flags[:, 0].all()
    assert not flags.all()


def test_second_moments_are_not_negative() -> None:
    nu, weight = drawn(
        lambda nu, w: w / (jnp.sqrt(nu * 0.99 + 0.01) + 1e-8),
        *(jax.ShapeDtypeStruct((8, 8), jnp.float32),) * 2,
    )
    assert nu.min() >= 0 > weight.min()


def test_keys_are_keys() -> None:
    raw, typed = drawn(
        lambda raw, key: (
            jax.random.normal(jax.random.wrap_key_data(raw), (2,)),
            jax.random.normal(key, (2,)),
        ),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        jax.eval_shape(lambda: jax.random.key(0)),
    )
    assert raw.dtype == np.uint32
    assert raw.max() > 2
    assert jnp.issubdtype(typed.dtype, jax.dtypes.prng_key)
