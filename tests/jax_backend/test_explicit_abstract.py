"""A step with explicit axes, costed on a machine that has none of its chips."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec

TEXT = """
shardspec: 1
axes: {vocab: 64, embed: 32}
rules: [vocab -> tensor, embed -> fsdp]
params: {table: vocab embed}
targets: {pod: {hardware: tpu v5p 2x2x2, mesh: {fsdp: 4 explicit, tensor: 2 explicit}}}
"""
TABLE, TOKENS = jax.ShapeDtypeStruct((64, 32), jnp.float32), ((16,), jnp.int32)


def looked_up(table: Any, tokens: Any) -> Any:
    """Look rows up as NNX does, where JAX cannot tell how the result is sharded."""
    take = jax.sharding.auto_axes(
        lambda table, tokens: jnp.take(table, tokens, axis=0), out_sharding=P("fsdp", None)
    )
    return (take(table, tokens) * (tokens > 0)[:, None]).sum()


@pytest.mark.parametrize("step", [looked_up, jax.jit(looked_up)])
def test_step_takes_arrays_of_the_mesh_of_the_resolver(step: Any) -> None:
    found = shardspec.Resolver(shardspec.loads(TEXT), "pod", devices="abstract")
    table = jax.ShapeDtypeStruct(
        TABLE.shape, TABLE.dtype, sharding=found.shardings({"table": TABLE})["table"]
    )
    assert table.sharding.mesh.axis_types == (AxisType.Explicit,) * 2
    tokens = jax.ShapeDtypeStruct(*TOKENS, sharding=NamedSharding(found.mesh, P("fsdp")))
    cost = found.cost(step, table, tokens)
    assert any("tensor" in each.mesh_axes for each in cost.step.collectives)


def test_fault_of_a_step_with_explicit_axes_is_raised_as_it_is() -> None:
    """Without a mesh in context another fault would be raised, of types that have no mesh."""
    found = shardspec.Resolver(shardspec.loads(TEXT), "pod", devices="abstract")
    tokens = jax.ShapeDtypeStruct(*TOKENS, sharding=NamedSharding(found.mesh, P("fsdp")))

    def wrong(tokens: Any) -> Any:
        return looked_up(jnp.zeros((64, 32)), tokens) + jnp.zeros(3) @ jnp.zeros(4)

    with pytest.raises(TypeError, match="contracting dimensions"):
        found.cost(wrong, tokens)
