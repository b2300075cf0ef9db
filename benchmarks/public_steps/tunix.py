"""Llama 3.2 1B of Tunix in full fine-tuning, with the shardings of its own `ShardingConfig`.

Its constraints need a mesh of devices in context that are not CPUs. Here they are put on the mesh
of the target, as they would be there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.public_steps import Built, Public
from benchmarks.public_steps._training import bare, shaped, trained
from shardspec import Resolver

COMMIT = "c7d8950f12a9c55a976bf2e1a0d8b447d71c20b3"


def llama(resolver: Resolver) -> Built:
    """Return a train step for 16 sequences of 2,048 tokens, decoder layers rematerialized."""
    bare("tunix")
    bare("tunix.models.llama3")
    from tunix.models.llama3 import model as llama3

    llama3.shard = lambda x, names: jax.lax.with_sharding_constraint(
        x, NamedSharding(resolver.mesh, PartitionSpec(*names))
    )
    config = llama3.ModelConfig.llama3p2_1b()
    config.remat_config = llama3.RematConfig.DECODER
    with nnx.use_eager_sharding(False):
        model = nnx.eval_shape(lambda: llama3.Llama3(config, rngs=nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    assert not jax.tree.leaves(rest)

    def loss(params: Any, tokens: Any, mask: Any) -> Any:
        length = tokens.shape[1]
        positions = jnp.cumsum(mask, axis=-1) - (jnp.cumsum(mask, axis=-1) >= 1)
        causal = jnp.tril(jnp.ones((length, length), jnp.bool_)) & mask[:, None, :]
        logits, _ = nnx.merge(graph, params, rest)(tokens, positions, None, causal)
        targets = jax.nn.one_hot(tokens[:, 1:], logits.shape[-1])
        targets = targets * mask[:, 1:].astype(targets.dtype)[..., None]
        found = jax.nn.log_softmax(logits[:, :-1, :])
        return -jnp.sum(found * targets) / (jnp.sum(mask[:, 1:]) + 1e-8)

    tokens = shaped(resolver, "batch _", (16, 2048), jnp.int32)
    mask = shaped(resolver, "batch _", (16, 2048), jnp.bool_)
    return trained(resolver, loss, nnx.to_pure_dict(params), optax.adamw(1e-5), tokens, mask)


STEPS = [
    Public(
        "tunix-llama",
        "google/tunix",
        COMMIT,
        "",
        "Llama 3.2 1B, NNX, FSDP and tensor, its constraints",
        """
shardspec: 1
axes: {batch: 16, vocab: 128256, embed: 2048, mlp: 8192, heads: 32, kv_heads: 8, norm: 2048}
rules: ["batch, embed -> fsdp", "vocab, heads, kv_heads, mlp, norm -> tp"]
params:
  embedder/input_embedding: vocab embed
  "**/q_proj/w": embed heads _
  "**/{k,v}_proj/w": embed kv_heads _
  "**/o_proj/w": heads _ embed
  "**/{gate_proj,up_proj}/kernel": embed mlp
  "**/down_proj/kernel": mlp embed
  "{final_norm,**/*_layernorm}/w": norm
targets:
  v4-8: {hardware: tpu v4 2x2x2, mesh: {fsdp: 4, tp: 2}}
  node: {hardware: h100, mesh: {fsdp: 4, tp: 2}}
""",
        llama,
    )
]
