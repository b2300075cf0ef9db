"""LLaMA 7B of EasyLM, pretrained as its example does: float32, its rules, AdamW.

`transformers` and `mlxu` are mocks. The module that looks for a mesh in context is, too: its
constraints are put on the mesh of the target instead. Positions are given, since the model counts
them by an argument of `jnp.clip` that JAX no longer has.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import optax

from benchmarks.public_steps import Built, Public
from benchmarks.public_steps._training import absent, key, shaped, trained
from shardspec import Resolver

COMMIT = "fe5b2c354e25d697fce7cd225e23bbbe72570da3"
TRANSFORMERS = (
    "transformers",
    "transformers.configuration_utils",
    "transformers.modeling_flax_outputs",
    "transformers.modeling_flax_utils",
)


def imported(resolver: Resolver) -> Any:
    """Return the module of the model, with constraints on this mesh."""
    from ml_collections import ConfigDict

    with absent("mlxu", "EasyLM.jax_utils", *TRANSFORMERS):
        utils: MagicMock = sys.modules["EasyLM.jax_utils"]  # type: ignore[assignment]
        utils.with_sharding_constraint = lambda x, spec: jax.lax.with_sharding_constraint(
            x, jax.sharding.NamedSharding(resolver.mesh, spec)
        )
        utils.get_gradient_checkpoint_policy = lambda name: getattr(jax.checkpoint_policies, name)
        mlxu: MagicMock = sys.modules["mlxu"]  # type: ignore[assignment]
        mlxu.config_dict = ConfigDict
        mlxu.update_config_dict = lambda config, more: config.update(more) or config
        from EasyLM.models.llama import llama_model
    return llama_model


def pretraining(resolver: Resolver) -> Built:
    """Return the train step for 8 sequences of 2,048 tokens a device."""
    from ml_collections import FrozenConfigDict

    llama = imported(resolver)
    standard = llama.LLaMAConfigurator.get_standard_llama_config("llama_7b")
    model = llama.FlaxLLaMAForCausalLMModule(FrozenConfigDict(standard))
    shape = 8 * resolver.mesh.size, 2048
    inputs, targets = (shaped(resolver, "batch _", shape, jnp.int32) for _ in range(2))
    mask = shaped(resolver, "batch _", shape, jnp.float32)
    few = jnp.zeros((4, 2048), jnp.int32)
    params = jax.eval_shape(
        lambda key: model.init(key, few, position_ids=few, return_dict=False), key()
    )
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 2000, 250_000, 3e-5)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    )

    def loss(params: Any, inputs: Any, targets: Any, mask: Any) -> Any:
        positions = jnp.clip(jnp.cumsum(jnp.ones_like(inputs), axis=-1) - 1, 0)
        logits, *_ = model.apply(
            params, inputs, position_ids=positions, deterministic=False, return_dict=False
        )
        length = jnp.maximum(jnp.sum(mask, axis=-1), 1e-10)
        likely = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        found = jnp.take_along_axis(likely, targets[..., None], axis=-1)[..., 0]
        found = jnp.where(mask > 0.0, found, 0.0)
        return -jnp.mean(jnp.sum(found, axis=-1) / length)

    return trained(resolver, loss, params, optimizer, inputs, targets, mask)


STEPS = [
    Public(
        "easylm-7b",
        "young-geng/EasyLM",
        COMMIT,
        "",
        "LLaMA 7B, Linen, unrolled, its rules by path",
        """
shardspec: 1
axes: {batch: {doc: 8 a device}, vocab: 32000, embed: 4096, heads: 4096, mlp: 11008}
rules: ["batch -> (dp, fsdp)", embed -> fsdp, "vocab, heads, mlp -> mp"]
params:
  "**/wte/embedding": vocab embed
  "**/{wq,wk,wv}/kernel": embed heads
  "**/wo/kernel": heads embed
  "**/{w1,w3}/kernel": embed mlp
  "**/w2/kernel": mlp embed
  "**/lm_head/kernel": embed vocab
  "**/{attention_norm,ffn_norm,ln_f}/kernel": _
lints: {size-one-axis: allow}
targets:
  v5p-64: {hardware: tpu v5p 4x4x4, mesh: {dp: 1, fsdp: 64, mp: 1}}
  two-nodes: {hardware: 2 * h100, mesh: {dp: 1, fsdp: 8, mp: 2}}
""",
        pretraining,
    )
]
