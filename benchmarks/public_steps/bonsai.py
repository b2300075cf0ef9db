"""Mamba-2 of Bonsai by its default config (130 M), with the loss of its own model and AdamW."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.public_steps import Built, Public
from benchmarks.public_steps._training import bare, shaped, trained
from shardspec import Resolver

COMMIT = "36284254cf738d99c1c5d1e3a292d27656a0a365"


def mamba(resolver: Resolver) -> Built:
    """Return a train step for two sequences of 2,048 tokens a device."""
    bare("bonsai.models")
    from bonsai.models.mamba2 import modeling

    config = modeling.ModelConfig()
    model = nnx.eval_shape(lambda: modeling.Mamba2ForCausalLM(config, rngs=nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(6e-4, b2=0.95, weight_decay=0.1)
    )

    def loss(params: Any, tokens: Any) -> Any:
        return nnx.merge(graph, params, rest)(tokens, labels=tokens)["loss"]

    tokens = shaped(resolver, "batch _", (2 * resolver.mesh.size, 2048), jnp.int32)
    assert not jax.tree.leaves(rest)
    return trained(resolver, loss, nnx.to_pure_dict(params), optimizer, tokens)


STEPS = [
    Public(
        "mamba-2",
        "jax-ml/bonsai",
        COMMIT,
        "",
        "Mamba-2 130M, NNX, FSDP",
        """
shardspec: 1
axes: {batch: {doc: 2 a device}, vocab: 50280, embed: 768, inner: 1536}
rules: ["batch, embed -> fsdp"]
params:
  "**/embedder/embedding": vocab embed
  "**/in_proj/kernel": embed _
  "**/out_proj/kernel": inner embed
  "**/conv1d/conv/kernel": _ _ _
  "**/conv1d/conv/bias": _
  "**/mixer/{A_log,D,dt_bias}": _
  "**/{norm,final_norm}/weight": _
targets:
  v6e-16: {hardware: tpu v6e 4x4, mesh: {fsdp: 16}}
  node: {hardware: h100, mesh: {fsdp: 8}}
""",
        mamba,
    )
]
