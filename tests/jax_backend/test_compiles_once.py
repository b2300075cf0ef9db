"""A step over what the resolver placed compiles once, with or without `out_shardings`.

Without them, XLA chooses the layout of the results, and JAX may write the same layout without
trailing Nones: `P('data')` for `P('data', None)`. `jit` then keeps a second entry in its cache of
calls, which `_cache_size` counts, for the one program that it compiled.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec

_EVENTS: Counter[str] = Counter()
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _seconds, **_more: _EVENTS.update([event.rpartition("/")[2]])
)
PARAMS = {"w": ("embed", None), "b": (None,), "whole": (None, None)}


def _step(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        hidden = jnp.tanh(x @ params["w"] + params["b"])
        return jnp.sum(hidden**2) + jnp.sum(params["whole"] ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@pytest.mark.parametrize("is_stated", [False, True], ids=["free", "out_shardings"])
def test_a_loop_compiles_its_step_once(is_stated: bool) -> None:
    names = {path: " ".join(name or "_" for name in each) for path, each in PARAMS.items()}
    spec = make_spec([("embed", "data")], params=names)
    resolver = Resolver(spec)
    params = {path: jnp.ones((8,) * len(names)) for path, names in PARAMS.items()}
    places = resolver.shardings(params)
    params, x = resolver.put(params), jnp.ones((8, 8))
    step = jax.jit(_step, out_shardings=places if is_stated else None)
    params = step(params, x)
    after_first = _EVENTS.copy()
    assert after_first["backend_compile_duration"]
    for _ in range(2):
        params = step(params, x)
    assert after_first == _EVENTS, "nothing is traced, lowered or compiled again"
    assert resolver.verify_placement(params) == ()
    if is_stated:
        assert jax.tree.map(lambda array: array.sharding, params) == places
        assert step._cache_size() == 1  # type: ignore[attr-defined]
