"""Memory of layers whose products a TPU computes in turns of a ring, against libtpu's figures."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec

SPEC = """
shardspec: 1
hardware: {machine}
mesh: {{fsdp: rest}}
rules:
  - batch, embed -> fsdp
  - mlp, length, vocab -> none
params:
  "**/{{a,c}}": embed mlp
  "**/b": mlp embed
  head: embed vocab
activations: {{x: batch length embed}}
"""


def layer(constrain: Any, x: Any, weights: Any, *, gated: bool) -> Any:
    hidden = jax.nn.relu(x @ weights["a"])
    if gated:
        hidden = hidden * (x @ weights["c"])
    return constrain(x + hidden @ weights["b"], "batch length embed")


def memory(machine: str, sizes: tuple[int, ...], *, remat: bool, gated: bool) -> float:
    """Return the GiB that a device holds by the model.

    Args:
      sizes: layers, width, hidden width, examples for each of the devices, and length.
    """
    layers, width, hidden, examples, length = sizes
    spec = shardspec.loads(SPEC.format(machine=machine))
    resolver = shardspec.Resolver(spec, target="default", devices="abstract")
    one = functools.partial(layer, resolver.constrain, gated=gated)
    one = jax.checkpoint(one) if remat else one

    def loss(weights: Any, head: Any, x: Any) -> Any:
        for each in weights.values():
            x = one(x, each)
        return jax.nn.logsumexp((x @ head).astype(jnp.float32), -1).mean()

    def train(weights: Any, head: Any, x: Any) -> Any:
        found = jax.grad(loss)(weights, head, x)
        return jax.tree.map(lambda old, new: old - 0.1 * new.astype(old.dtype), weights, found)

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = {"a": array(width, hidden), "b": array(hidden, width), "c": array(width, hidden)}
    given = {f"l{at}": weights for at in range(layers)}
    batch = array(examples * resolver.mesh.size, length, width)
    cost = resolver.cost(jax.jit(train, donate_argnums=0), given, array(width, 32768), batch)
    return cost.memory.total.bytes / 2**30


#: Layers, width, hidden width, examples for each device, length.
GATED, WIDE = (6, 2048, 8192, 4, 2048), (5, 4096, 16384, 2, 2048)


@pytest.mark.parametrize(
    ("machine", "sizes", "remat", "gated", "compiled"),
    [
        # libtpu 0.0.52, jax 0.10.2
        ("tpu v5e 4x4", GATED, True, True, 1.93),
        ("tpu v6e 4x4", GATED, True, True, 2.00),
        ("tpu v5p 2x2x4", GATED, True, True, 2.73),
        ("tpu v7x 2x2x2", GATED, True, True, 2.09),
        ("tpu v5p 2x2x4", GATED, False, True, 3.65),
        ("tpu v6e 4x4", GATED, False, True, 3.62),
        ("tpu v4 2x2x4", WIDE, True, False, 1.72),
        ("tpu v6e 4x4", WIDE, True, False, 1.20),
        ("tpu v5p 2x2x1", GATED, True, True, 1.05),  # four devices gather at once
    ],
)
def test_memory_is_that_of_libtpu(
    machine: str, sizes: tuple[int, ...], remat: bool, gated: bool, compiled: float
) -> None:
    assert memory(machine, sizes, remat=remat, gated=gated) == pytest.approx(compiled, rel=0.08)
