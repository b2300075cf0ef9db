"""Llama 3 70B of `jax-llm-examples`: its decode step, quantized, on its explicit mesh.

The rules are those of its `ShardingRules`: paths name dimensions as its `ArrayInfo`s do.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import shaped
from shardspec import Resolver

COMMIT = "8b4b24602e0652100e9835ec6d91fed58bbea472"


def decode(resolver: Resolver) -> Built:
    """Return a step that gives 16 sequences a token each, with room for 4,096."""
    from llama3_jax import configs
    from llama3_jax import model as llama

    config = dataclasses.replace(configs.LLAMA3_70B, max_seq_len=4096, mesh=resolver.mesh)

    def arrays(tree: Any) -> Any:
        shapes = jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), tree, is_leaf=llama.is_param
        )
        return placed(shapes, resolver.shardings(shapes))

    weights = arrays(llama.Weights.abstract(config))
    cache = arrays(llama.KVCache.abstract(config, 16))

    @partial(jax.jit, donate_argnums=2)
    def step(tokens: Any, weights: Any, cache: Any) -> Any:
        with jax.sharding.use_abstract_mesh(resolver.mesh):
            return llama.decode_step.__wrapped__(tokens, weights, cache, config)

    return step, (shaped(resolver, "_ _", (16, 1), jnp.int32), weights, cache)


STEPS = [
    Public(
        "llama3-decode",
        "jax-ml/jax-llm-examples",
        COMMIT,
        "llama3",
        "Llama 3 70B, int8, a decode step on an explicit mesh",
        """
shardspec: 1
axes: {batch: 16, embed: 8192, ffw: 28672, q_heads: 64, kv_heads: 8, vocab: 128256}
rules: [batch -> x, "q_heads -> (y, z)", kv_heads -> y, "ffw -> (y, z)", "vocab -> (y, z)"]
params:
  embedding: _ embed
  gamma_final: embed
  lm_head: embed vocab
  layers/*/q/quant: embed q_heads _
  layers/*/{k,v}/quant: embed kv_heads _
  layers/*/o/quant: q_heads _ embed
  layers/*/{w_gate,w_up}/quant: embed ffw
  layers/*/w_down/quant: ffw embed
  layers/*/{q,k,v,o,w_down}/scale: embed
  layers/*/{w_gate,w_up}/scale: ffw
  layers/*/attn_{pre,post}_gamma: embed
  "{k,v}/*/quant": batch kv_heads _ _
  "{k,v}/*/scale": batch kv_heads _
  starts: batch
lints: {size-one-axis: allow}
targets:
  v5e-16: {hardware: tpu v5e 4x4, mesh: {x: 1 explicit, y: 4 explicit, z: 4 explicit}}
  node: {hardware: h100, mesh: {x: 1 explicit, y: 4 explicit, z: 2 explicit}}
""",
        decode,
    )
]
