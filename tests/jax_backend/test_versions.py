"""What is read of JAX is the same on each version; the older spelling is tried on each, too."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardspec import jax_backend
from shardspec.jax_backend.equations import made_manual


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


def test_what_some_versions_lack_is_read_in_one_place() -> None:
    """`scan` lost its counts in jax 0.12; `shard_map` renamed its axes in jax 0.10."""
    lacking = re.compile(r"""["'](num_consts|num_carry|newly_manual_axes)["']""")
    files = Path(jax_backend.__file__).parent.rglob("*.py")
    found = {each.name for each in files if lacking.search(each.read_text(encoding="utf-8"))}
    assert found == {"equations.py"}
