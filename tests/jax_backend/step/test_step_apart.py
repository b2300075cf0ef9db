"""Reading a step leaves JAX's own program as it was: what was read runs afterwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardspec import Resolver, loads

SPEC = """\
shardspec: 1
targets: {cpu: {hardware: 8 cpu, mesh: {fsdp: 4, tensor: 2}}}
rules: [batch -> fsdp, embed -> fsdp, mlp -> tensor]
params: {wi: embed mlp, wo: mlp embed}
activations: {hidden: batch mlp}
"""


def test_a_step_that_was_costed_runs_as_before() -> None:
    resolver: Any = Resolver(loads(SPEC), "cpu")

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        hidden = resolver.constrain(jnp.tanh(x @ params["wi"]), activation="hidden")
        return (hidden @ params["wo"]).sum()

    shapes = {"wi": jax.ShapeDtypeStruct((16, 32), jnp.float32)}
    shapes["wo"] = jax.ShapeDtypeStruct((32, 16), jnp.float32)
    params = resolver.put(jax.tree.map(lambda each: jnp.ones(each.shape), shapes))
    x = jax.device_put(jnp.ones((8, 16)), resolver.sharding("batch _"))
    before = resolver.cost(step, params, x)
    assert before.collectives
    assert jnp.allclose(step(params, x), 8 * 16 * 32 * jnp.tanh(16.0))
    assert resolver.cost(step, params, x).collectives == before.collectives
