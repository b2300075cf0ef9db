"""What is read of JAX is the same on each version; the older spelling is tried on each, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardspec.jax_backend.versions import made_manual


def nested() -> list[Any]:
    """Return a `shard_map` over `a` and the one inside it, over `b`."""

    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda y: jax.lax.psum(y, "b"), in_specs=P(None, "b"), out_specs=P(), axis_names={"b"}
        )
        return inner(x)

    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    step = jax.shard_map(outer, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    found = jax.make_jaxpr(step)(jnp.ones((8, 8))).jaxpr.eqns[0]
    return [found, found.params["jaxpr"].eqns[0]]


def test_axes_that_are_manual_outside_are_left_out() -> None:
    assert [made_manual(each) for each in nested()] == [{"a"}, {"b"}]


def test_the_first_versions_list_those_of_outside_too() -> None:
    params = {"manual_axes": frozenset("ab"), "mesh": SimpleNamespace(manual_axes=("a",))}
    assert made_manual(SimpleNamespace(params=params)) == {"b"}
